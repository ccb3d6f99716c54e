"""The attention backends that a recipe may name, and what each needs, as data. Imports none.

Source: `AttentionBackendName` and `_check_attention_backend_requirements` in diffusers'
`models/attention_dispatch.py`, 0.42.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that a backend's operators come from.

    Attributes:
        package: as pip names it. module: what Python imports.
        at_least: the lowest version; None: any.
    """

    package: str
    module: str
    at_least: str | None = None

    @property
    def range(self) -> str:
        """ ">=2.6.3", or "" for any version."""
        return f">={self.at_least}" if self.at_least else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to compute attention.

    Attributes:
        devices: where it runs, of "cpu" and "cuda"; none where this project builds for neither.
        dispatched: whether diffusers' dispatcher alone knows it, which not every model asks.
        requires: where its operators come from; None: from torch.
    """

    devices: tuple[str, ...] = ("cuda",)
    dispatched: bool = True
    requires: Requirement | None = None


_FLASH = Backend(requires=Requirement(package="flash-attn", module="flash_attn", at_least="2.6.3"))
_FLASH_3 = Backend(requires=Requirement(package="flash-attn-3", module="flash_attn_interface"))
_SAGE = Backend(
    requires=Requirement(package="sageattention", module="sageattention", at_least="2.1.1")
)
_HUB = Backend(requires=Requirement(package="kernels", module="kernels", at_least="0.12"))
_HUB_4 = Backend(requires=Requirement(package="kernels", module="kernels", at_least="0.12.3"))
_XFORMERS = Backend(requires=Requirement(package="xformers", module="xformers", at_least="0.0.29"))
_TORCHS = Backend(dispatched=False)
_EVERYWHERE = Backend(devices=("cpu", "cuda"), dispatched=False)
_NOWHERE = Backend(devices=())

BACKENDS: dict[str, Backend] = {
    "sdpa": _EVERYWHERE,
    "math": _EVERYWHERE,
    "native": _EVERYWHERE,
    "_native_math": _EVERYWHERE,
    "_native_cudnn": _TORCHS,
    "_native_efficient": _TORCHS,
    "_native_flash": _TORCHS,
    "flex": Backend(devices=("cpu", "cuda")),
    "flash": _FLASH,
    "flash_varlen": _FLASH,
    "_flash_3": _FLASH_3,
    "_flash_varlen_3": _FLASH_3,
    "flash_hub": _HUB,
    "flash_varlen_hub": _HUB,
    "_flash_3_hub": _HUB,
    "_flash_3_varlen_hub": _HUB,
    "flash_4_hub": _HUB_4,
    "sage": _SAGE,
    "sage_varlen": _SAGE,
    "_sage_qk_int8_pv_fp8_cuda": _SAGE,
    "_sage_qk_int8_pv_fp8_cuda_sm90": _SAGE,
    "_sage_qk_int8_pv_fp16_cuda": _SAGE,
    "_sage_qk_int8_pv_fp16_triton": _SAGE,
    "sage_hub": _HUB,
    "sage_blackwell_hub": _HUB,
    "xformers": _XFORMERS,
    "aiter_fa2_hub": _NOWHERE,
    "_native_npu": _NOWHERE,
    "_native_xla": _NOWHERE,
}
"""By name: "sdpa" is torch's choice among its own kernels, "math" plain arithmetic, and the rest
are diffusers' names."""

PLAIN = ("math", "_native_math")
"""The backends that hold the whole score matrix, which a build refuses unless they are named."""


def requirements(attention: str) -> dict[str, str]:
    """Package -> version range, of what code for this backend calls: {"flash-attn": ">=2.6.3"}."""
    needed = BACKENDS[attention].requires
    return {} if needed is None else {needed.package: needed.range}
