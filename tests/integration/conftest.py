"""`tiny`, built once for this machine's CPU by the program itself, and its stock pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tiny import RECIPE, Tiny, build_tiny

import aotbuild
from aotbuild.bench.pipeline import random_pipeline


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Everything that `tiny` asks for, in a store."""
    store = tmp_path_factory.mktemp("tiny") / "store"
    return Tiny(store, build_tiny(store))


@pytest.fixture
def pipeline() -> Any:
    """The stock pipeline with random weights, nothing loaded."""
    return random_pipeline(RECIPE)


@pytest.fixture
def loaded(tiny: Tiny, pipeline: Any) -> Iterator[aotbuild.Loaded]:
    """`pipeline` with the artifacts in it."""
    found = aotbuild.load(pipeline, tiny.store, store=tiny.store)
    yield found
    found.restore()
