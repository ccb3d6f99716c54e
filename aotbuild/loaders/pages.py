"""Memory that nobody reads any more, handed back to the system before the process ends.

Best effort on Linux with glibc, nothing elsewhere: no result depends on it.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
from pathlib import Path

from torch import Tensor

_MADV_PAGEOUT = 21


class MappedFiles:
    """The files that are mapped into this process at one moment.

    Weights that were loaded from a safetensors file are pieces of one mapping. Emptying one frees
    nothing, since the others keep the mapping; but its pages needn't stay in memory.
    """

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._advise = getattr(ctypes.CDLL(None), "madvise", None)
        maps = Path("/proc/self/maps")
        if self._advise is None or not maps.exists():
            return
        self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        lines = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
        files = (f[0].split("-") for f in lines if len(f) == 6 and f[5].startswith("/"))
        self._ranges = sorted((int(begin, 16), int(end, 16)) for begin, end in files)

    def page_out(self, tensor: Tensor) -> None:
        """Drop the whole pages of `tensor` from memory, where they are a file's.

        Whoever reads them again finds the same values: unlike MADV_DONTNEED this keeps a page that
        was written to. The kernel skips files that this user couldn't write, and pages that another
        process has mapped too.
        """
        begin = tensor.data_ptr()
        end = begin + tensor.numel() * tensor.element_size()
        at = bisect.bisect_right(self._ranges, (begin, end)) - 1
        if tensor.device.type != "cpu" or at < 0 or self._ranges[at][1] < end:
            return
        first, last = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE
        if self._advise is not None and first < last and tensor.is_contiguous():
            size = (last - first) * mmap.PAGESIZE
            self._advise(first * mmap.PAGESIZE, size, _MADV_PAGEOUT)


def trim_heap() -> None:
    """Give back the C heap's free pages, which glibc keeps for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
