"""A measurement in a process of its own: a document in, its last line back. Measures nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aotbuild.errors import BuildError


def run_module(module: str, document: dict[str, Any], *, cache: Path, what: str) -> dict[str, Any]:
    """Run `python -m module` on a JSON document.

    Args:
        module: which reads the document from stdin, and prints a JSON object as its last line.
        document: what it gets.
        cache: Inductor's cache folder, there or to be.
        what: names the process in the error.

    Raises:
        BuildError: it died; with the end of what it printed.
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


def _died(done: subprocess.CompletedProcess[str], what: str) -> BuildError:
    return BuildError(
        f"The process for {what} ended with exit code {done.returncode}: "
        f"{done.stderr.strip()[-1500:]}"
    )
