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

from aotbuild.errors import AotbuildError, HubError, SourceError

T = TypeVar("T")

CONFIGS = ("model_index.json", "config.json", "*/config.json", "*/*_config.json")
"""What decides an architecture: a few kilobytes of a checkpoint, none of its weights."""

TRIES = 5
"""How often a request is made that fails for a reason that may pass."""


class ConflictError(HubError):
    """Somebody else committed since; read what they did, and commit on top of it."""


class BusyError(HubError):
    """A failure that may pass, of a request that can't just be made again."""


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

        path = self._ask(
            f"{name} of {repository}",
            lambda: hf_hub_download(repository, name, revision=commit, force_download=again),
        )
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
            if isinstance(cause, Exception) and _may_pass(cause):
                raise BusyError(str(e)) from cause
            raise

    def _ask(self, what: str, call: Callable[[], T], *, tries: int = TRIES) -> T:
        for turn in range(1, tries + 1):
            try:
                return call()
            except Exception as e:
                # The client raises its own, its HTTP library's and the system's exceptions.
                if turn == tries or not _may_pass(e):
                    raise worded(what, e) from e
            time.sleep(self._pause_s * 2 ** (turn - 1) * (0.5 + random.random()))
        raise AssertionError


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    status = _status(error)
    if status is not None:
        return status in (408, 429) or status >= 500
    module = type(error).__module__.partition(".")[0]
    broken = "Consistency check failed" in str(error)  # the client's word for a file cut short
    return module in ("httpx", "httpx2") or broken or isinstance(error, ConnectionError)


def _status(error: BaseException) -> int | None:
    """The HTTP status of the error, or of the one that it stands for."""
    found = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(found, int) or error.__cause__ is None:
        return found if isinstance(found, int) else None
    return _status(error.__cause__)


def worded(what: str, error: Exception) -> AotbuildError:
    """The client's error as one of ours, saying what to do about it."""
    from huggingface_hub import errors

    status = _status(error)
    if isinstance(error, errors.GatedRepoError):
        return SourceError(
            f"{what} is gated. Ask for access on its page, then log in with `hf auth login`."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(f"{what} has no such revision. Leave it out to see the current commit.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return SourceError(
            f"There is no repository {what} on the Hub, or you may not read it: check its name; a "
            "private one needs `hf auth login` or HF_TOKEN. A local folder is written './FOLDER'."
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return SourceError(f"The Hub has no {what} at that commit.")
    if isinstance(error, errors.HFValidationError):
        return SourceError(f"{what} isn't a repository's name: write 'organisation/name'.")
    if status in (409, 412):
        return ConflictError(f"{what} changed on the Hub meanwhile. Try again.")
    if status in (401, 403):
        return SourceError(
            f"The Hub refused it for {what} ({status}): log in with `hf auth login`, with a token "
            "that may do it."
        )
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        return HubError(
            f"{what} isn't here, and the Hub can't be asked: {_reason(error)} With a lockfile "
            "`aotbuild prefetch` brings beforehand all that a start needs."
        )
    reason = _reason(error)
    if "name resolution" in reason or "Name or service not known" in reason:
        return HubError(
            f"The Hub can't be reached for {what}: {reason} Check the network, a proxy "
            "(HTTPS_PROXY), or a mirror's address (HF_ENDPOINT)."
        )
    return HubError(f"The Hub failed for {what}: {reason} Try again later.")


def _reason(error: Exception) -> str:
    """What the client's error says, of several lines the first; all of a refused card."""
    cause = error.__cause__
    own = isinstance(error, ValueError) or not isinstance(cause, Exception)
    text = str(error if own or not str(cause).strip() else cause)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = " ".join(lines if own else lines[:1])[:400] or type(error).__name__
    return line if line.endswith(".") else f"{line}."


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
