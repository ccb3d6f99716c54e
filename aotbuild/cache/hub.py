"""The Hub, spoken to here alone, and by its own client: settings, tokens, proxies are that one's.

What is published or fetched is decided elsewhere (`publish`, `fetch`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aotbuild.cache.hub_errors import BusyError, may_pass, worded
from aotbuild.errors import HubError, SourceError

T = TypeVar("T")

CONFIGS = ("model_index.json", "config.json", "*/config.json", "*/*_config.json")
"""What decides an architecture: a few kilobytes of a checkpoint, none of its weights."""

TRIES = 5
"""How often a request is made that fails for a reason that may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What the Hub says of a repository.

    Attributes:
        name: "organisation/name".
        commit: what the revision stands for, 40 hex digits.
        files: every path in it.
        private: whether others can read it.
        gated: whether readers must ask first.
        card: the metadata of its README.
    """

    name: str
    commit: str
    files: frozenset[str]
    private: bool
    gated: bool
    card: Mapping[str, Any]


class Hub:
    """The Hub that huggingface_hub is set up for: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, ...

    Every method raises SourceError for what isn't there or isn't allowed, and HubError for a Hub
    that can't be reached or fails for good.
    """

    def __init__(self, *, pause_s: float = 0.5) -> None:
        self._pause_s = pause_s

    def look(self, repository: str, revision: str | None = None) -> Repository:
        """The repository at a revision, by default its main branch."""
        from huggingface_hub import HfApi

        info = self._ask(repository, lambda: HfApi().model_info(repository, revision=revision))
        data: Any = info.card_data
        card = {} if data is None else data.to_dict()
        return Repository(
            name=repository,
            commit=str(info.sha),
            files=frozenset(s.rfilename for s in info.siblings or ()),
            private=bool(info.private),
            gated=bool(info.gated),
            card=card,
        )

    def read(self, repository: str, commit: str, name: str, *, again: bool = False) -> bytes:
        """A small file at a commit, from the client's own cache where it has been read before.

        `again` asks the Hub, whatever the cache has.
        """
        from huggingface_hub import hf_hub_download

        what = f"{name} of {repository}"
        path = self._ask(
            what, lambda: hf_hub_download(repository, name, revision=commit, force_download=again)
        )
        # The client keeps a file below the commit that the Hub says it sent it from.
        if commit not in Path(path).parts:
            raise SourceError(f"The Hub sent {what} from another commit than {commit}.")
        return Path(path).read_bytes()

    def download(
        self, repository: str, commit: str, name: str, folder: Path, *, again: bool = False
    ) -> Path:
        """A file at a commit, below `folder`; `again` asks the Hub whatever any cache has."""
        from huggingface_hub import hf_hub_download

        path = self._ask(
            f"{name} of {repository}",
            lambda: hf_hub_download(
                repository, name, revision=commit, local_dir=folder, force_download=again
            ),
        )
        return Path(path)

    def create(self, repository: str, *, private: bool) -> None:
        """The repository, unless it is there."""
        from huggingface_hub import HfApi

        self._ask(
            repository, lambda: HfApi().create_repo(repository, private=private, exist_ok=True)
        )

    def commit(self, repository: str, operations: Iterable[Any], *, parent: str, title: str) -> str:
        """Commit on top of `parent` and nothing else; the new commit.

        Args:
            operations: of huggingface_hub; large files go up the Hub's own way, once.

        Raises:
            ConflictError: the branch isn't at `parent` any more.
            BusyError: it failed, and nobody knows whether it was done.
        """
        from huggingface_hub import HfApi

        listed = list(operations)

        def send() -> str:
            done = HfApi().create_commit(
                repository, listed, commit_message=title, parent_commit=parent
            )
            return str(done.oid)

        try:
            return self._ask(repository, send, tries=1)
        except HubError as e:
            cause = e.__cause__
            if isinstance(cause, Exception) and may_pass(cause):
                raise BusyError(str(e)) from cause
            raise

    def _ask(self, what: str, call: Callable[[], T], *, tries: int = TRIES) -> T:
        for turn in range(1, tries + 1):
            try:
                return call()
            except Exception as e:
                # The client raises its own, its HTTP library's and the system's exceptions.
                if turn == tries or not may_pass(e):
                    raise worded(what, e) from e
            time.sleep(self._pause_s * 2 ** (turn - 1) * (0.5 + random.random()))
        raise AssertionError


def fetch_configs(repository: str, revision: str | None = None) -> Path:
    """A local diffusers folder with the configs of a checkpoint on the Hub, without weights.

    Args:
        repository: "organisation/name".
        revision: a commit, branch or tag; the default branch where None.

    Raises:
        SourceError: no such repository or revision, or the Hub can't be reached.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=list(CONFIGS))
    except Exception as e:
        # The Hub's client raises its own, its HTTP library's and the system's exceptions.
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise SourceError(
            f"The configs of {repository} can't be fetched from the Hub: {reason} "
            "A local diffusers folder works without it."
        ) from e
    return Path(folder)
