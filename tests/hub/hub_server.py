"""A small Hub: the HTTP endpoints that huggingface_hub calls, so that the client runs as it is.

Files that git would keep are answered directly; large ones go by LFS and are redirected to a second
server on another port, as the Hub sends its readers to a CDN. Every request is logged. Xet isn't
spoken: the client is told not to use it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from hub_state import Cdn, Handler, Repo, SmallHub

LARGE = (".pt2", ".safetensors")
"""What goes by LFS however small, as the Hub's default .gitattributes has it; all else if big."""
REGULAR_BYTES = 10 << 20


@contextmanager
def serving() -> Iterator[SmallHub]:
    """A small Hub and its CDN on two ports of this machine."""
    hub = SmallHub()
    front = ThreadingHTTPServer(("127.0.0.1", 0), type("Front", (Front,), {"hub": hub}))
    cdn = ThreadingHTTPServer(("127.0.0.1", 0), type("Cdn", (Cdn,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{front.server_port}"
    hub.cdn = f"http://127.0.0.1:{cdn.server_port}"
    threads = [
        threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        for s in (front, cdn)
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip((front, cdn), threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


class Front(Handler):
    """The Hub itself."""

    def do_HEAD(self) -> None:  # noqa: N802
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802
        if not self.begin():
            return
        path = self.path_only
        if path == "/api/whoami-v2":
            self.json({"type": "user", "name": "org", "orgs": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.info(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            self.tree(match[1], match[2])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        else:
            self.fail(404, "", "no such page")

    def do_POST(self) -> None:  # noqa: N802
        if not self.begin():
            return
        path, data = self.path_only, self.body()
        if path == "/api/validate-yaml":
            errors = [{"message": m} for m in self.hub.card_errors]
            self.json({"errors": errors, "warnings": []}, 400 if errors else 200)
        elif path == "/api/repos/create":
            self.create(json.loads(data))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", path):
            self.preupload(match[1], match[2], json.loads(data))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.batch(json.loads(data))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", path):
            self.commit(match[1], [json.loads(line) for line in data.splitlines()])
        else:
            self.fail(404, "", "no such page")

    # Who may what

    def repo(self, name: str, *, write: bool = False) -> Repo | None:
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        repo = self.hub.repos.get(name)
        known = token in self.hub.tokens
        if repo is None or (repo.private and not known):
            self.fail(404 if known else 401, "RepoNotFound", "Repository not found")
        elif repo.gated and not known:
            self.fail(403, "GatedRepo", "Access to it is restricted")
        elif write and not known:
            self.fail(401, "", "Invalid credentials in Authorization header")
        else:
            return repo
        return None

    def revision(self, repo: Repo, revision: str) -> str | None:
        commit = repo.head if revision == "main" else revision
        if commit not in repo.commits:
            self.fail(404, "RevisionNotFound", "No such revision")
            return None
        return commit

    # Reading

    def info(self, name: str, revision: str) -> None:
        repo = self.repo(name)
        commit = self.revision(repo, revision) if repo else None
        if repo is None or commit is None:
            return
        siblings = [{"rfilename": n} for n in sorted(repo.commits[commit])]
        self.json(
            {"id": name, "modelId": name, "sha": commit, "private": repo.private, "tags": [],
             "gated": "auto" if repo.gated else False, "cardData": repo.card,
             "siblings": siblings}
        )  # fmt: skip

    def tree(self, name: str, revision: str) -> None:
        repo = self.repo(name)
        commit = self.revision(repo, revision) if repo else None
        if repo is None or commit is None:
            return
        files = repo.commits[commit].items()
        self.json([{"type": "file", "path": n, "size": len(d), "oid": git(d)} for n, d in files])

    def resolve(self, name: str, revision: str, file: str) -> None:
        repo = self.repo(name)
        commit = self.revision(repo, revision) if repo else None
        if repo is None or commit is None:
            return
        data = repo.commits[commit].get(file)
        if data is None:
            self.fail(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": commit}
        if not is_large(file, len(data)):
            self.send_file(data, {**headers, "ETag": f'"{git(data)}"'})
            return
        digest = hashlib.sha256(data).hexdigest()
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        self.answer(302, b"", {**headers, "Location": f"{self.hub.cdn}/{digest}"})

    # Writing

    def create(self, asked: dict[str, Any]) -> None:
        if not self.headers.get("authorization"):
            self.fail(401, "", "Invalid credentials in Authorization header")
            return
        name = f"{asked.get('organization') or 'org'}/{asked['name']}"
        private = asked.get("private") is True or asked.get("visibility") == "private"
        with self.hub.lock:
            there = name in self.hub.repos
            if not there:
                self.hub.repos[name] = Repo(private=private)
                self.hub.repos[name].add({".gitattributes": b"*.pt2 filter=lfs\n"})
        url = f"{self.hub.url}/{name}"
        self.json({"url": url, "name": name, "id": "1"}, 409 if there else 200)

    def preupload(self, name: str, revision: str, asked: dict[str, Any]) -> None:
        repo = self.repo(name, write=True)
        if repo is None:
            return
        files = repo.commits[repo.head]
        answers = [
            {
                "path": f["path"],
                "uploadMode": "lfs" if is_large(f["path"], f["size"]) else "regular",
                "shouldIgnore": False,
                "oid": oid(f["path"], files[f["path"]]) if f["path"] in files else None,
            }
            for f in asked["files"]
        ]
        self.json({"files": answers})

    def batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for wanted in asked["objects"]:
            upload = {"upload": {"href": f"{self.hub.cdn}/{wanted['oid']}"}}
            there = wanted["oid"] in self.hub.blobs
            objects.append({**wanted, **({} if there else {"actions": upload})})
        self.json({"transfer": "basic", "objects": objects})

    def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        repo = self.repo(name, write=True)
        if repo is None:
            return
        with self.hub.lock:
            parent = lines[0]["value"].get("parentCommit")
            if parent not in (None, repo.head):
                commit = None
            else:
                commit = repo.add({**repo.commits[repo.head], **self.files(lines[1:])})
        if commit is None:
            message = "A commit has happened since. Please refresh and try again."
            self.fail(412, "", message)
            return
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self.json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def files(self, lines: list[dict[str, Any]]) -> dict[str, bytes]:
        found = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                found[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                found[value["path"]] = self.hub.blobs[value["oid"]]
            else:
                raise AssertionError(line["key"])
        return found


def is_large(name: str, size: int) -> bool:
    return name.endswith(LARGE) or size > REGULAR_BYTES


def git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def oid(name: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if is_large(name, len(data)) else git(data)
