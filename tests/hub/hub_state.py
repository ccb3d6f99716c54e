"""What the small Hub of the tests holds, what it was asked, what goes wrong; and its CDN."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlparse


@dataclass
class Repo:
    """One repository: its commits by id, in order, each with every file."""

    private: bool = False
    gated: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return next(reversed(self.commits))

    def add(self, files: dict[str, bytes]) -> str:
        text = f"{len(self.commits)}{sorted(files)}".encode()
        commit = hashlib.sha1(text + b"".join(files.values())).hexdigest()
        self.commits[commit] = files
        return commit


@dataclass
class Fault:
    """What goes wrong the next `times` times that a request for a matching path comes.

    kind: "drop" (half a file, then nothing), "short" (half a file, said to be whole), "other"
    (another file of the same size), or a status like "429".
    """

    pattern: str
    kind: str
    times: int
    method: str = "GET"


class SmallHub:
    """The state of both servers, and what they were asked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.log: list[tuple[str, str, str | None]] = []
        self.faults: list[Fault] = []
        self.tokens: set[str] = {"hf_test"}
        self.card_errors: list[str] = []
        self.url = self.cdn = ""

    def fetched(self) -> list[str]:
        """The paths of files that were read, in order, without repository and revision."""
        found = []
        for method, path, _ in self.log:
            match = re.fullmatch(r"/[^/]+/[^/]+/resolve/[^/]+/(.+)", path)
            if method == "HEAD" and match:
                found.append(match[1])
        return found

    def fault(self, method: str, path: str) -> str | None:
        with self.lock:
            for fault in self.faults:
                wanted = fault.method == method and re.search(fault.pattern, path)
                if fault.times > 0 and wanted:
                    fault.times -= 1
                    return fault.kind
        return None


class Handler(BaseHTTPRequestHandler):
    """What both servers share."""

    hub: SmallHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def begin(self) -> bool:
        """Log the request; False where a fault answered it already."""
        self.path_only = unquote(urlparse(self.path).path)
        with self.hub.lock:
            self.hub.log.append((self.command, self.path_only, self.headers.get("authorization")))
        kind = self.hub.fault(self.command, self.path_only)
        self.spoilt = kind
        if kind is None or not kind.isdigit():
            return True
        self.body()
        self.answer(int(kind), b"no", {"Retry-After": "0"} if kind == "429" else {})
        return False

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def json(self, document: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def fail(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self.answer(status, json.dumps({"error": message}).encode(), headers)

    def answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_file(self, data: bytes, headers: dict[str, str]) -> None:
        """`data`, or the part of it that `Range` asks for, spoilt where a fault says so."""
        if self.spoilt == "other":
            data = bytes(255 - b for b in data)
        if self.spoilt == "short":
            data = data[: len(data) // 2]
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        status, size = 200, len(data)
        if match:
            start = int(match[1])
            headers = {**headers, "Content-Range": f"bytes {start}-{size - 1}/{size}"}
            status, data = 206, data[start:]
        if self.spoilt != "drop":
            self.answer(status, data, headers)
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()


class Cdn(Handler):
    """Where large files are kept: PUT to upload, GET to read, by digest."""

    def do_GET(self) -> None:
        if self.begin():
            self.send_file(self.hub.blobs[self.path_only.strip("/")], {})

    def do_PUT(self) -> None:
        if self.begin():
            data = self.body()
            name = self.path_only.strip("/")
            if hashlib.sha256(data).hexdigest() != name:
                self.answer(400, b"another digest")
                return
            self.hub.blobs[name] = data
            self.answer(200, b"")
