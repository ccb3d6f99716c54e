"""An artifact's constant plan put into effect: each constant made, aliased, bound, and watched.

Whether eager's tensors fit is `judging`'s concern, what is made of them `weights`' and `derived`'s,
the library's binding `runner`'s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aotbuild.cache.manifest import Constant
from aotbuild.errors import IntegrityError
from aotbuild.loaders.judging import Judge, Verdict
from aotbuild.loaders.rules import CONCAT, INT8_ROWS, REAL, STORED, pick
from aotbuild.loaders.running import Code
from aotbuild.loaders.strides import dtype_name, same_strides
from aotbuild.loaders.watch import Watch, watch
from aotbuild.loaders.weights import Slot, Weights

_SHOWN = 3
RELEASED = "released"
"""What `Binding.unfit` is once its tensors were let go."""


class Binding:
    """The constants of one artifact, bound to one module's tensors.

    One alias per constant lives as long as the binding: a detached tensor that shares the eager
    tensor's memory. Binding anew assigns the aliases' `data`. `current` says at every call whether
    eager's tensors are still those that were judged; `refit` judges them again, and binds them if
    they fit. The caller keeps `refit` and runs apart.

    Attributes:
        unfit: why the tensors that were judged last don't fit; None where they do.
        only_cast: whether they lack nothing but a cast from `precision`, which the pipeline itself
            may make before it calls (fp16 SDXL does, of its VAE, before every decode).
    """

    def __init__(
        self,
        plan: tuple[Constant, ...],
        weights: Weights,
        runner: Code,
        device: torch.device,
        precision: str,
    ) -> None:
        self._plan = plan
        self._judge = Judge(plan, weights, device, precision)
        self._weights = weights
        self._runner = runner
        self._device = device
        self._aliases: dict[str, Tensor] = {}
        self._watched: Watch | None = None
        self._epoch = -1
        self.unfit: str | None = "not bound yet"
        self.only_cast = False
        asked = sorted(c.name for c in runner.constants)
        planned = sorted(c.name for c in plan)
        if asked != planned:
            odd = ", ".join(sorted(set(asked) ^ set(planned))[:_SHOWN]) or "some twice"
            raise IntegrityError(f"The library's constants aren't the manifest's: {odd}.")

    def current(self) -> bool:
        """Whether eager's tensors are the very ones that `refit` judged, where they were."""
        return (
            self._epoch == self._weights.epoch
            and self._watched is not None
            and self._watched.matches()
        )

    def judge(self) -> str | None:
        """Why eager's tensors don't fit, or None; binds nothing and changes nothing."""
        self._look(self._slots())
        return self.unfit

    def refit(self) -> str | None:
        """Judge eager's tensors and bind them; None, or the reason why they don't fit."""
        self._epoch = self._weights.epoch
        slots = self._slots()
        verdict = self._look(slots)
        if not verdict.reasons:
            try:
                for move in verdict.moves:
                    move()
                self._assign(slots)
                self._runner.bind(self._aliases)
            except RuntimeError as e:
                self.unfit = f"its weights can't be laid out: {e}"
        found = {path: slot for path, slot in slots.items() if slot is not None}
        derived = {p for c in self._plan if c.rule in (INT8_ROWS, REAL) for p in c.sources}
        counted = [s.value for p, s in found.items() if p in derived]
        self._watched = watch(found.values(), counted, self._runner.compare)
        if self.unfit is None and not self._bound(slots):
            self._watched = None  # another thread changed something meanwhile: once more
        self._weights.derived.trim()
        return self.unfit

    def release(self) -> None:
        """Let go of the container, and of every tensor."""
        self._runner.close()
        self._aliases.clear()
        self._watched = None
        self.unfit = RELEASED

    def _slots(self) -> dict[str, Slot | None]:
        return self._weights.find_all(path for c in self._plan for path in c.sources)

    def _look(self, slots: dict[str, Slot | None]) -> Verdict:
        verdict = self._judge.judge(slots)
        self.unfit, self.only_cast = verdict.summary, verdict.only_cast
        return verdict

    def _assign(self, slots: dict[str, Slot | None]) -> None:
        for constant in self._plan:
            alias = self._aliases.get(constant.name)
            if constant.rule == STORED and alias is not None:
                continue
            made = self._make(constant, slots)
            if alias is None:
                self._aliases[constant.name] = made
            else:
                alias.data = made

    def _bound(self, slots: dict[str, Slot | None]) -> bool:
        """Whether what is bound is what eager's tensors hold now, laid out as the plan has it."""
        try:
            return all(
                made.data_ptr() == (alias := self._aliases[c.name]).data_ptr()
                and made.stride() == alias.stride()
                and same_strides(c.shape, alias.stride(), c.stride)
                and dtype_name(alias) == c.dtype
                for c in self._plan
                if c.rule != STORED
                for made in (self._source(c, slots),)
            )
        except RuntimeError:
            return False

    def _make(self, constant: Constant, slots: dict[str, Slot | None]) -> Tensor:
        """What is bound as `constant`: a tensor of its own, in eager's memory if that will do."""
        if constant.rule == STORED:
            return self._stored(constant)
        return self._source(constant, slots).detach()

    def _source(self, constant: Constant, slots: dict[str, Slot | None]) -> Tensor:
        """What `constant` is made of eager's tensors; for many constants one of them itself."""
        values = [s.value for p in constant.sources if (s := slots[p]) is not None]
        if constant.rule == CONCAT:
            return self._weights.fuse(constant.sources, values)
        derived, epoch = self._weights.derived, self._weights.epoch
        if constant.rule == INT8_ROWS:
            return pick(constant, derived.quantized(constant.sources, values, epoch))
        tensor: Tensor = values[0]
        if constant.rule == REAL:
            tensor = derived.real(constant.sources[0], tensor, self._device, epoch)
        same = tuple(tensor.shape) == constant.shape
        return tensor if same else tensor.detach().view(constant.shape)

    def _stored(self, constant: Constant) -> Tensor:
        dtype = getattr(torch, constant.dtype)
        made = torch.empty_strided(
            constant.shape, constant.stride, dtype=dtype, device=self._device
        )
        values = torch.tensor(constant.value, dtype=dtype, device=self._device)
        return made.copy_(values.reshape(constant.shape))
