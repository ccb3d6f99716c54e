from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from aotbuild.errors import IntegrityError
from aotbuild.loaders.runner import Runner, open_library

from . import nets
from .conftest import Kit


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.so"
    file.write_bytes(b"\x7fELF" + bytes(100))
    with pytest.raises(IntegrityError, match="dynamic linker refuses"):
        open_library("0" * 64, os.open(file, os.O_RDONLY))


def test_containers_of_one_library_keep_their_constants_apart(kit: Kit) -> None:
    kit.net()
    first, second = nets.net(seed=1), nets.net(seed=2)
    call = nets.call(return_dict=False)
    expected = [m(**call)[0] for m in (first, second)]
    for module in (first, second):
        kit.load(net=module, fallback="error")
    for module, value in zip((first, second), expected, strict=True):
        torch.testing.assert_close(module(**call)[0], value, rtol=1e-4, atol=1e-5)


def test_the_handles_of_bound_tensors_are_given_back(kit: Kit) -> None:
    manifest = kit.net()
    entry = kit.store.get(manifest.key)
    assert entry is not None
    library = open_library(manifest.library.sha256, kit.store.open_library(entry))
    runner = Runner(library, torch.device("cpu"))
    plan = {c.name: c for c in manifest.constants}
    aliases = {c.name: torch.zeros(plan[c.name].shape) for c in runner.constants}
    runner.bind(aliases)
    bound = [t._use_count() for t in aliases.values()]  # type: ignore[attr-defined]
    for _ in range(5):
        runner.bind(aliases)
    assert [t._use_count() for t in aliases.values()] == bound  # type: ignore[attr-defined]
    runner.close()
    runner.close()
    assert {t._use_count() for t in aliases.values()} == {1}  # type: ignore[attr-defined]
