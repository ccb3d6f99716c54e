"""A header that keeps a library loadable on older systems than the one that compiled it.

A linker binds each symbol to the newest version that the build machine's libc and libstdc++ have.
Code that AOTInductor generates needs only a handful of symbols with versions above torch's own
floor (manylinux_2_28: GLIBC 2.28, GLIBCXX 3.4.25), and each is older than the version it gets; the
compiler is told to take the old one. Leaves calling the compiler to `host`.

Source: https://github.com/pypa/manylinux, PEP 600; the versions are those of the symbols'
introduction on x86-64, which libc and libstdc++ keep.
"""

from __future__ import annotations

import platform
from pathlib import Path

GLIBC = "2.28"
GLIBCXX = "3.4.25"
"""What a library compiled with the header needs at most; torch's own wheels need no less."""

_SYMBOLS = {
    "pthread_rwlock_rdlock": "GLIBC_2.2.5",
    "pthread_rwlock_unlock": "GLIBC_2.2.5",
    "pthread_rwlock_wrlock": "GLIBC_2.2.5",
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE": "GLIBCXX_3.4.11",
}

# libstdc++ asks `__libc_single_threaded` (GLIBC 2.32) whether reference counts need atomic
# instructions; a variable of the library's own that is never true answers for it.
_SINGLE_THREADED = """
#ifdef __cplusplus
extern "C" {
#endif
#define __libc_single_threaded aotbuild_single_threaded
__attribute__((weak, visibility("hidden"))) char aotbuild_single_threaded = 0;
#ifdef __cplusplus
}
#endif
"""


def write_floor_header(folder: Path) -> Path | None:
    """Write the header, to be given to the compiler as `-include`; None on other processors."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return None
    lines = [f'__asm__(".symver {name},{name}@{version}");' for name, version in _SYMBOLS.items()]
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / "symbol_floor.h"
    header.write_text(_SINGLE_THREADED + "\n".join(lines) + "\n")
    return header
