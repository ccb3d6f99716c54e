"""What a quoted figure must name: the machine, its threads, the versions."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path

from aotbuild import probe


def facts() -> dict[str, str]:
    """Processor, cores, threads and versions, as text for a CSV's columns."""
    import torch

    versions = {name: version or "" for name, version in probe.versions().items()}
    return {
        "processor": processor_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "torch_threads": str(torch.get_num_threads()),
        "arch": probe.cpu_level(),
        "python": platform.python_version(),
        **versions,
        "date": datetime.date.today().isoformat(),
    }


def processor_name() -> str:
    """The model name of `/proc/cpuinfo`, or what the platform says."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
