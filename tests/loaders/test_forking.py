from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import torch

from aotbuild.loaders import runner

from . import nets
from .conftest import Kit

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(check: Callable[[], bool]) -> int:
    """The signal that a forked child died of, or its exit code: 0 where `check` held."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_child_serves_when_it_is_forked_while_a_thread_holds_the_locks(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    loaded = kit.load(net=module)
    known, other = nets.call(return_dict=False), nets.call(size=32, return_dict=False)
    expected = [module(**call)[0] for call in (known, other)]
    dispatcher = vars(module)["forward"]

    def serves() -> bool:
        answers = [module(**call)[0] for call in (known, other)]
        hits = sum(loaded.metrics()["net"]["hits"].values())
        return hits == 2 and all(map(torch.equal, answers, expected))

    with dispatcher._lock, dispatcher.tally._lock, runner._lock:
        assert in_child(serves) == 0
    assert sum(loaded.metrics()["net"]["hits"].values()) == 1


def test_child_runs_eagerly_when_it_is_forked_in_the_middle_of_a_call(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    loaded = kit.load(net=module)
    call = nets.call(return_dict=False)
    expected = module(**call)[0]
    gate = vars(module)["forward"]._component.gate

    def runs() -> bool:
        torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)
        return sum(loaded.metrics()["net"]["hits"].values()) == 1

    gate.enter()
    try:
        assert in_child(runs) == 0
    finally:
        gate.leave()
