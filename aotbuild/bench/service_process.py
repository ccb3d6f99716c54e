"""The example service as a process of its own: started, asked whether it is ready, stopped."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aotbuild.errors import BuildError, UsageError

MODULE = "examples.serve"
READY_S = 600.0
"""Within which a service must have loaded its weights."""

_POLL_S = 0.05


@contextmanager
def running(folder: Path, log: Path, environment: Mapping[str, str]) -> Iterator[Service]:
    """`python -m examples.serve` of the clone at `folder`, terminated on leaving.

    Args:
        log: file for what it prints.
        environment: beside this process's own; "" takes a variable away.

    Raises:
        UsageError: `folder` has no such service.
    """
    if not (folder / MODULE.replace(".", "/")).is_dir():
        raise UsageError(
            f"The example service isn't in {folder}: it comes with a clone of aotbuild, not with "
            "the package. Start your own, and name it: --url http://127.0.0.1:8000."
        )
    port = _free_port()
    merged = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:]), **environment}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, "--port", str(port)],
            cwd=folder,
            env={n: v for n, v in merged.items() if v},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Service(f"http://127.0.0.1:{port}", process, log)
    finally:
        process.terminate()
        try:
            process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Service:
    """A service that runs.

    Attributes:
        url: without a path. process: None for one that somebody else started. log: its output.
    """

    def __init__(
        self, url: str, process: subprocess.Popen[bytes] | None = None, log: Path | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.process = process
        self.log = log

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """What `/readyz` says: status and document; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)
        except OSError as e:
            return 0, {"status": "silent", "reason": str(e)}

    def wait_until_ready(self, timeout_s: float = READY_S) -> dict[str, Any]:
        """Its own words once it is ready.

        Raises:
            UsageError: it isn't ours, and nobody answers.
            BuildError: it says that it never will be, died, or took too long.
        """
        end = time.monotonic() + timeout_s
        while True:
            status, document = self.readiness()
            if status == 200:
                return document
            if status == 0 and self.process is None:
                raise UsageError(
                    f"Nobody answers at {self.url}/readyz: {document['reason']}. Start the service "
                    "first, or leave --url out to have the example started."
                )
            died = self.process is not None and self.process.poll() is not None
            if died or document.get("status") == "failed" or time.monotonic() > end:
                said = "" if self.log is None else self.log.read_text(errors="replace")[-1500:]
                raise BuildError(
                    f"The service at {self.url} isn't ready: {document.get('reason')}\n{said}"
                )
            time.sleep(_POLL_S)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
