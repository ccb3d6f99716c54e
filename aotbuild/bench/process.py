"""A measurement in a process of its own: a document in, its last line back. Measures nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aotbuild.errors import BuildError

_TRACEBACK = "Traceback (most recent call last):\n"
_LINES = 3


class DiedError(BuildError):
    """A process that ended without an answer; `printed` is what it wrote to its standard error."""

    def __init__(self, words: str, *, printed: str) -> None:
        super().__init__(words)
        self.printed = printed


def run_module(module: str, document: dict[str, Any], *, cache: Path, what: str) -> dict[str, Any]:
    """Run `python -m module` on a JSON document.

    Args:
        module: which reads the document from stdin, and prints a JSON object as its last line.
        document: what it gets.
        cache: Inductor's cache folder, there or to be.
        what: names the process in the error.

    Raises:
        DiedError: it did; with the end of what it printed.
    """
    return _run(["-m", module], document, cache=cache, what=what)


def run_code(
    code: str, arguments: list[str], document: dict[str, Any], *, cache: Path, what: str
) -> dict[str, Any]:
    """`run_module`, for a program given as text: nothing is imported before its first line."""
    return _run(["-c", code, *arguments], document, cache=cache, what=what)


def _run(
    arguments: list[str], document: dict[str, Any], *, cache: Path, what: str
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
    )
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as e:
        raise _died(done, what) from e
    if done.returncode != 0 or not isinstance(answer, dict):
        raise _died(done, what)
    return answer


def _died(done: subprocess.CompletedProcess[str], what: str) -> DiedError:
    words = f"The process for {what} ended with exit code {done.returncode}: "
    return DiedError(words + done.stderr.strip()[-1500:], printed=done.stderr)


def raised(printed: str) -> str:
    """The exception that a process's last traceback ends with, in one line; else its last line."""
    _, _, tail = printed.rpartition(_TRACEBACK)
    lines = tail.splitlines()
    while lines and (not lines[0].strip() or lines[0][0].isspace()):
        lines.pop(0)
    text = [line.strip() for line in lines if line.strip()]
    return " ".join(text[:_LINES] if _TRACEBACK in printed else text[-1:])
