"""Under `fallback="error"`: when eager's weights are needed no more, and letting go of them.

What stands in for them `derived` keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from aotbuild.errors import ReleasedError
from aotbuild.loaders.locks import forking_lock
from aotbuild.loaders.rules import INT8_ROWS

if TYPE_CHECKING:
    from torch import nn

    from aotbuild.loaders.artifact import Artifact
    from aotbuild.loaders.component import Component

_SHOWN = 2


class Freeing:
    """One component's: does nothing until `begin`.

    Eager's answer is still wanted as long as an artifact has to compare its first one with it. So
    weights are freed after the last such comparison; where there is none, while they are bound.
    """

    def __init__(self, component: Component) -> None:
        self._component = component
        self._artifacts: tuple[Artifact, ...] = ()
        self._comparing = 0
        self._decided = False
        self._lock = forking_lock()

    @property
    def freed(self) -> bool:
        """Whether eager lacks weights."""
        return bool(self._component.weights.derived.freed)

    def begin(self, artifacts: Sequence[Artifact]) -> None:
        """Bind `artifacts`, all of the component's, and free what none of them reads."""
        self._artifacts = tuple(artifacts)
        if not self._settle():
            self._bind()
        for artifact in artifacts:
            binding = artifact.binding
            if binding.unfit is not None and not binding.only_cast:
                artifact.disabled = f"the module's weights don't fit: {binding.unfit}"
        self._settle()

    @contextmanager
    def comparing(self) -> Iterator[bool]:
        """Around a comparison with eager, which frees after the last one; whether eager can run."""
        with self._lock:
            possible = not self._decided
            self._comparing += possible
        try:
            yield possible
        finally:
            if possible:
                with self._lock:
                    self._comparing -= 1
                self._settle()

    def keep(self) -> None:
        """Free nothing from now on.

        Raises:
            ReleasedError: it is too late.
        """
        with self._component.gate.alone():
            if self.freed:
                raise self.refusal("restore()")
            with self._lock:
                self._artifacts = ()
                self._component.weights.derived.free = frozenset()

    def refusal(self, what: str) -> ReleasedError:
        """That `what` can't be, as weights are gone; and what can be done."""
        freed = self._component.weights.derived.freed
        named = ", ".join(list(freed)[:_SHOWN])
        more = f" and {len(freed) - _SHOWN} more" if len(freed) > _SHOWN else ""
        return ReleasedError(
            f"{what}: weights of {self._component.name} were freed once they were quantized "
            f"({named}{more}, {sum(freed.values()) / 1e6:.1f} MB), as fallback='error' never runs "
            "eager. Load the pipeline again; fallback='eager' keeps its weights."
        )

    def after_fork(self) -> None:
        """In a forked child: no other thread compares."""
        self._comparing = 0

    def _settle(self) -> bool:
        """Free what can be; whether there was anything."""
        with self._lock:
            idle = bool(self._artifacts) and not (self._decided or self._comparing)
            paths = self._unneeded() if idle else frozenset()
            if not paths:
                return False
            self._decided = True
            derived = self._component.weights.derived
            derived.free = paths
        module = self._component.module
        module.register_load_state_dict_pre_hook(derived.refill)  # type: ignore[no-untyped-call]
        for owner in {path.rpartition(".")[0] for path in paths}:
            found = module.get_submodule(owner)
            found.register_state_dict_pre_hook(self._refuse_saving)  # type: ignore[no-untyped-call]
        self._bind()
        return True

    def __deepcopy__(self, memo: dict[int, object]) -> Freeing:
        """A layer's copy: refused while weights are gone, else one that watches over the same."""
        if self.freed:
            raise self.refusal(f"a copy of {self._component.name}")
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise self.refusal(f"pickling {self._component.name}")

    def _refuse_saving(self, module: nn.Module, *_: object) -> None:
        """Before `state_dict()`, which would hand out empty weights for somebody to save."""
        if any(p is not None and not p.numel() for p in module._parameters.values()) and self.freed:
            raise self.refusal("state_dict()")

    def _bind(self) -> None:
        with self._component.gate.alone():
            for artifact in self._artifacts:
                artifact.bind()

    def _unneeded(self) -> frozenset[str]:
        """Paths that only int8 rows are made of; none before every artifact is checked."""
        serving = [a for a in self._artifacts if a.disabled is None]
        if not all(a.checked for a in serving):
            return frozenset()
        plans = [c for a in serving for c in a.manifest.constants]
        read = {p for c in plans if c.rule == INT8_ROWS for p in c.sources}
        others = (c for a in self._artifacts for c in a.manifest.constants if c.rule != INT8_ROWS)
        return frozenset(read - {p for c in others for p in c.sources} - self._tied())

    def _tied(self) -> set[str]:
        """Paths at which one tensor is held with others."""
        everywhere = self._component.whole.named_parameters(remove_duplicate=False)
        times = Counter(id(p) for _, p in everywhere)
        named = self._component.module.named_parameters(remove_duplicate=False)
        return {path for path, p in named if times[id(p)] > 1}
