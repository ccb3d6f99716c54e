"""Paths that a caller of `load` named, and how what isn't one is refused. Reads nothing."""

from __future__ import annotations

import os
from pathlib import Path

LOCAL = ("/", "./", "../", "~")
"""How a string begins that names a file or folder, and no repository on the Hub."""


def is_local(value: object) -> bool:
    """Whether `value` is a path, and not the name of a repository."""
    return value.startswith(LOCAL) if isinstance(value, str) else isinstance(value, os.PathLike)


def local_path(argument: str, value: object, *, error: type[Exception]) -> Path:
    """`value` as a path, "~" expanded.

    Args:
        argument: its name, for the error.
        error: what to raise: UsageError or one below it.
    """
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError
        return Path(text).expanduser()
    except RuntimeError as e:  # no such user's home
        raise error(f"{argument}={value!r}: {e}") from e
    except (TypeError, ValueError) as e:
        raise error(f"{argument}={value!r} is no path: write './FOLDER', or a pathlib.Path.") from e
