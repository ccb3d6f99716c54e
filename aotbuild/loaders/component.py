"""One component of a pipeline as its artifacts share it: weights, state, who may run when.

What runs is `dispatch`'s concern.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import nn

from aotbuild.cache.key import json_differences
from aotbuild.errors import LoadError, ReleasedError, UsageError
from aotbuild.loaders.freeing import Freeing
from aotbuild.loaders.locks import forking_lock
from aotbuild.loaders.snapshot import Snapshot
from aotbuild.loaders.state import State, current_backend, module_state
from aotbuild.loaders.tree import walk
from aotbuild.loaders.weights import Weights

_SHOWN = 3


class Gate:
    """Lets runs overlap each other, and changes of what they read overlap nothing."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._changing = False
        self._waiting = 0
        self._threads: list[int] = []

    def after_fork(self) -> bool:
        """In a forked child: start anew; whether a run or a change was in flight in the parent."""
        busy = self._running > 0 or self._changing
        self._condition = threading.Condition()
        self._running, self._waiting, self._changing, self._threads = 0, 0, False, []
        return busy

    def enter(self) -> None:
        """Begin a run; waits while a change is going on or waiting."""
        with self._condition:
            while self._changing or self._waiting:
                self._condition.wait()
            self._running += 1
            self._threads.append(get_ident())

    def leave(self) -> None:
        """End a run."""
        with self._condition:
            self._running -= 1
            self._threads.remove(get_ident())
            if not self._running:
                self._condition.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one, once the runs in flight are done.

        Raises:
            LoadError: one of them is this thread's own, which a signal handler has interrupted.
        """
        with self._condition:
            if get_ident() in self._threads:
                raise LoadError(
                    "This thread is in a call of the component, so nothing about it can be changed "
                    "before that returns. A signal handler should only note what to do."
                )
            self._waiting += 1
            try:
                while self._changing or self._running:
                    self._condition.wait()
                self._changing = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()


class Component:
    """A module whose methods are swapped, with the tensors and the state that artifacts rely on.

    Attributes:
        device: where artifacts run: where its weights are, or would be.
        weightless: whether its parameters have no values, so that packed constants alone serve it.
        whole: the pipeline's own module, of which this one is a block; else the same.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        device: torch.device | None = None,
        *,
        whole: nn.Module | None = None,
        state: State | None = None,
    ) -> None:
        """Watch over `module`.

        Args:
            state: its `module_state`, where that is known already.
        """
        self.name = name
        self.module = module
        self.whole = module if whole is None else whole
        self.device = device_of(module) if device is None else device
        self.weightless = is_weightless(module)
        self.weights = Weights(module)
        self.gate = Gate()
        self.freeing = Freeing(self)
        self.state: State = module_state(module) if state is None else state
        self._lock = forking_lock()
        self._snapshot: Snapshot | None = None
        self._seen = 0
        self.lost = False
        _alive.add(self)

    def observe(self) -> int:
        """A number that stands for the module's state; another one once the state has changed.

        Looks closely only where the snapshot differs.
        """
        if self._snapshot is not None and self._snapshot.matches():
            return self._seen
        with self._lock:
            snapshot, state = Snapshot(self.module), module_state(self.module)
            if state != self.state:
                self._seen += 1
            self.weights.epoch += 1  # a layer may be another one that looks the same
            self._snapshot, self.state = snapshot, state
            return self._seen

    def cannot_run(self) -> bool:
        """Whether the module itself has nothing to compute with."""
        return self.weightless or self.freeing.freed

    def refusal(self, what: str) -> ReleasedError:
        """That `what` can't be, as the module has no weights; and what can be done."""
        if not self.weightless:
            return self.freeing.refusal(what)
        return ReleasedError(
            f"{what}: {self.name} was never given weights, and packed constants serve compiled "
            "calls alone. Load the component with its weights to run it eagerly."
        )

    def look_again(self) -> None:
        """Have the next `observe` look closely, whatever the snapshot says."""
        self._snapshot = None

    def settle(self) -> None:
        """Take what the module is now as seen, once the loader itself has set methods on it."""
        self._snapshot = Snapshot(self.module)


# Fork handlers can't be taken back, hence one for the process, and this one table.
_alive: weakref.WeakSet[Component] = weakref.WeakSet()


def _after_fork() -> None:
    """The gates of threads that the child doesn't have are nobody's to open.

    Where a run was in flight the library's own lock is held, so the child stays eager.
    """
    for component in list(_alive):
        component.freeing.after_fork()
        component.lost = component.gate.after_fork() or component.lost


os.register_at_fork(after_in_child=_after_fork)


def state_reason(built: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """What differs between the state an artifact was exported in and `here`; None if nothing."""
    backend = built.get("backend", {})
    now = {**here, "backend": current_backend(backend)} if "backend" in built else dict(here)
    found = list(json_differences("", dict(built), now))
    if not found:
        return None
    shown = [f"{path} is {b!r}, built with {a!r}" for path, a, b in found[:_SHOWN]]
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"the module's state changed: {', '.join(shown)}{more}"


def is_weightless(module: nn.Module) -> bool:
    """Whether it has parameters, and all of them on the meta device."""
    parameters = module.parameters()
    first = next(parameters, None)
    return first is not None and first.is_meta and all(p.is_meta for p in parameters)


def device_of(module: nn.Module) -> torch.device:
    """Where the module's first parameter or buffer is; the CPU for a module without any."""
    tensors = (t for of in (module.parameters(), module.buffers()) for t in of)
    first = next(tensors, None)
    return torch.device("cpu") if first is None else first.device


def precision_of(module: nn.Module) -> str:
    """The floating dtype that most of the module's numbers have; "float32" for none."""
    counts: dict[torch.dtype, int] = {}
    held = (t for _, m in walk(module) for t in m._parameters.values() if t is not None)
    for tensor in dict.fromkeys(held):  # in their order, a shared one once
        if tensor.is_floating_point():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    most = max(counts, key=lambda dtype: counts[dtype], default=torch.float32)
    return str(most).removeprefix("torch.")


def named_device(device: str | torch.device) -> torch.device:
    """`device` as tensors name it: a GPU with its index, the CPU without.

    Raises:
        UsageError: it is no device, or there is no such GPU.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise UsageError(f"device={device!r} is no device: write 'cpu', 'cuda' or 'cuda:0'.") from e
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device={device!r}: torch {torch.__version__} sees no such GPU here.")
    if str(found) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if found.type == "cpu" else found
