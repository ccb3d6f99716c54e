"""`aotbuild` in a process that ends with the thread that started it: a driver's, a worker's."""

from __future__ import annotations

import runpy

from aotbuild.build.worker import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    runpy.run_module("aotbuild", run_name="__main__", alter_sys=True)
