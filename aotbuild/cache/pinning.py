"""Which commit of a collection is meant: said in full, or refused with the present one to paste."""

from __future__ import annotations

import re
from collections.abc import Collection

from aotbuild.cache.hub import Hub
from aotbuild.errors import HubError, SourceError

COMMIT = re.compile(r"[0-9a-f]{40}")


def check_owner(repository: str, owners: str | Collection[str] | None) -> None:
    """Refuse a collection of an owner that isn't allowed; None allows all, one text is one owner.

    Raises:
        SourceError: naming those that are.
    """
    owner = repository.partition("/")[0]
    owners = (owners,) if isinstance(owners, str) else owners
    if owners is not None and owner not in owners:
        raise SourceError(
            f"{repository} is of {owner!r}, and allowed are {', '.join(owners) or 'none'}: see "
            "owners= and AOTBUILD_ALLOWED_OWNERS."
        )


def pinned(
    hub: Hub, name: str, revision: str | None, *, allow_unpinned: bool, shell: bool = False
) -> str:
    """The commit that `revision` is, or that it stands for now where that is allowed.

    Args:
        shell: word the refusal in options of the command line, not in Python's arguments.

    Raises:
        SourceError: it isn't one; the error has the current one in a line to paste.
    """
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    if allow_unpinned:
        return hub.look(name, revision).commit
    loose = "--allow-unpinned" if shell else "allow_unpinned=True"
    said = "no revision" if revision is None else f"{_spelt(revision, shell)}, which may move"
    try:
        now = f"now it is at\n    {_spelt(_present(hub, name, revision), shell)}"
    except HubError as e:
        now = f"what it is at now isn't known: {e}"
    raise SourceError(
        f"{name} is named with {said}. An artifact is native code, so a whole commit must say "
        f"which is meant (or {loose}, whichever it is then); {now}"
    )


def _spelt(revision: str, shell: bool) -> str:
    return f"--revision {revision}" if shell else f"revision={revision!r}"


def _present(hub: Hub, name: str, revision: str | None) -> str:
    """The commit of the revision, or of the main branch where there is no such one."""
    try:
        return hub.look(name, revision).commit
    except SourceError:
        return hub.look(name).commit
