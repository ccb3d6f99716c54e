"""What the Hub's client raises, told as ours: what failed, and what to do about it."""

from __future__ import annotations

import socket

from aotbuild.errors import AotbuildError, HubError, SourceError, StoreError


class ConflictError(HubError):
    """Somebody else committed since; read what they did, and commit on top of it."""


class BusyError(HubError):
    """A failure that may pass, of a request that can't just be made again."""


_ADDRESS = ("name resolution", "Name or service not known", "missing an 'http")
"""In what the client says of a host that there isn't, or an HF_ENDPOINT that is no address."""


def may_pass(error: Exception) -> bool:
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
    if status is None and _is_local(error):
        return StoreError(
            f"{what} can't be written: {error}. Make room or allow it, or name another place: the "
            "store's (AOTBUILD_STORE), the Hub client's own cache (HF_HOME)."
        )
    reason = _reason(error)
    if any(words in reason for words in _ADDRESS):
        return HubError(
            f"The Hub can't be reached for {what}: {reason} Check the network, a proxy "
            "(HTTPS_PROXY), or a mirror's address (HF_ENDPOINT)."
        )
    return HubError(f"The Hub failed for {what}: {reason} Try again later.")


def _is_local(error: Exception) -> bool:
    """Whether the disk or the system refused it, not the network."""
    network = (ConnectionError, TimeoutError, socket.gaierror)
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, network)


def _reason(error: Exception) -> str:
    """What the client's error says, of several lines the first; all of a refused card."""
    cause = error.__cause__
    own = isinstance(error, ValueError) or not isinstance(cause, Exception)
    text = str(error if own or not str(cause).strip() else cause)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = " ".join(lines if own else lines[:1])[:400] or type(error).__name__
    return line if line.endswith(".") else f"{line}."
