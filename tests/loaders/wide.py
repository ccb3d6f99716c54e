"""A module of tens of MB, and what its memory is in a process of its own that loads it.

Imported as `wide` by test and process alike, since the module's source is part of its identity.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

LAYERS, WIDTH = 24, 1024


class Wide(nn.Module):
    """Layers one after the other, each of 4.2 MB."""

    config: ClassVar[dict[str, Any]] = {"layers": LAYERS}

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(WIDTH, WIDTH, device="meta") for _ in range(layers)
        ).to_empty(device="cpu")
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=WIDTH**-0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, sample: Tensor) -> Tensor:
        for layer in self.layers:
            sample = layer(sample)
        return sample


def status_mb(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) / 1e3


def measure(store: str, libraries: str, weights: str) -> None:
    """Print, in MB over what the process had before: eager's weights, the peak, what remains.

    `weights`: a safetensors file to map them from; "" for weights in plain memory. The library
    lies extracted in `libraries` already, as unpacking it takes memory of its own.
    """
    from safetensors.torch import load_file

    import aotbuild
    import aotbuild.loaders.load
    from aotbuild.loaders.rules import int8_rows

    torch.set_num_threads(1)
    sample = torch.randn(4, WIDTH)
    with torch.no_grad():
        warm = Wide(layers=1)
        warm(sample)
        int8_rows([warm.layers[0].weight[:8]])
        del warm
        before = status_mb("VmRSS")
        module = Wide().eval()
        if weights:
            values = load_file(weights)
            module.load_state_dict(values, assign=True)
            del values
        module(sample)
        eager = status_mb("VmRSS") - before
        expected = module(sample)
        pipeline = SimpleNamespace(wide=module)
        aotbuild.load(pipeline, store, store=libraries, fallback="error")
        error = (module(sample) - expected).norm() / expected.norm()
    assert error < 0.1, error
    print(eager, status_mb("VmHWM") - before, status_mb("VmRSS") - before)


if __name__ == "__main__":
    measure(*sys.argv[1:])
