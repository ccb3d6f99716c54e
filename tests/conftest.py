"""The one place that skips: which marked tests can't run here, and why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow`: run the tests on models at their real size too."""
    parser.addoption("--slow", action="store_true", help="run tests that take minutes each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine, this torch or this run has no means or time for."""
    for item in items:
        for reason in _obstacles(config, {mark.name for mark in item.iter_markers()}):
            item.add_marker(pytest.mark.skip(reason=reason))


def _obstacles(config: pytest.Config, marks: set[str]) -> Iterable[str]:
    if "slow" in marks and not config.getoption("--slow"):
        yield "takes minutes: run with --slow"
    if marks & {"gpu", "cuda_build"}:
        import torch

        if "gpu" in marks and not torch.cuda.is_available():
            yield "needs an NVIDIA GPU: torch finds none here"
        if "cuda_build" in marks and torch.version.cuda is None:
            yield f"needs a CUDA build of torch: this one is {torch.__version__}"
