from __future__ import annotations

import inspect
import subprocess
import sys

import aotbuild
from aotbuild import errors


def test_all_is_sorted_and_complete() -> None:
    assert sorted(aotbuild.__all__) == aotbuild.__all__
    assert dir(aotbuild) == aotbuild.__all__
    assert all(getattr(aotbuild, name) is not None for name in aotbuild.__all__)
    raised = {n for n, c in vars(errors).items() if inspect.isclass(c)}
    assert raised <= set(aotbuild.__all__)


def test_every_exception_stands_in_the_tree_that_is_drawn() -> None:
    for name, value in vars(errors).items():
        if inspect.isclass(value):
            assert name in str(errors.__doc__)


def test_importing_aotbuild_imports_nothing_heavy() -> None:
    code = (
        "import sys, aotbuild; "
        "print([m for m in ('torch', 'diffusers', 'click', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
