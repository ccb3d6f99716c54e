"""What a quoted figure must name: the machine, its threads, the versions."""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
from pathlib import Path

from aotbuild import probe


def facts(device: str = "cpu") -> dict[str, str]:
    """Processor, cores, threads, GPU and versions, as text for a CSV's columns.

    Args:
        device: "cuda" for what the first GPU is, and how it is clocked; else these are empty.
    """
    import torch

    versions = {name: version or "" for name, version in probe.versions().items()}
    return {
        "processor": processor_name(),
        "cores": str(probe.cores()),
        "torch_threads": str(torch.get_num_threads()),
        "arch": probe.cpu_level(),
        **_gpu(device),
        "python": platform.python_version(),
        "aotbuild": probe.version_of("aotbuild") or "",
        "commit": _commit(),
        **versions,
        "date": datetime.date.today().isoformat(),
    }


_GPU_FACTS = {
    "gpu": "name",
    "gpu_clock_mhz": "clocks.max.sm",
    "gpu_memory_clock_mhz": "clocks.max.memory",
    "gpu_power_limit_w": "power.limit",
    "gpu_driver": "driver_version",
}
"""Our columns, and what `nvidia-smi --query-gpu` calls them."""


def _gpu(device: str) -> dict[str, str]:
    """What nvidia-smi says of the first GPU; its name alone where that doesn't answer."""
    if device != "cuda":
        return dict.fromkeys(_GPU_FACTS, "")
    import torch

    query = f"--query-gpu={','.join(_GPU_FACTS.values())}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0"]
    values = _output(command).split(", ")
    if len(values) != len(_GPU_FACTS):
        return {**dict.fromkeys(_GPU_FACTS, ""), "gpu": torch.cuda.get_device_name(0)}
    return dict(zip(_GPU_FACTS, values, strict=True))


def _commit() -> str:
    """The commit of the source that runs; empty where it was installed without its history."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return ""
    return _output(["git", "-C", str(folder), "rev-parse", "HEAD"])


def _output(command: list[str]) -> str:
    """What a program prints; nothing where it isn't there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def processor_name() -> str:
    """The model name of `/proc/cpuinfo`, or what the platform says."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
