"""What stands in the place of a component that no module was built for.

Which artifacts answer its calls is decided elsewhere (`standalone`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from aotbuild.cache.manifest import Manifest
from aotbuild.loaders.outline import outlined, weight_shapes
from aotbuild.loaders.rules import INT8_ROWS

if TYPE_CHECKING:
    from aotbuild.loaders.loaded import Loaded


class Config(dict[str, Any]):
    """A component's config, by item and by attribute, and as fixed as diffusers' own is."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config has no {name!r}") from None

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(
            "The config is what the artifacts were built for; changing it would change nothing."
        )

    __setattr__ = __setitem__ = __delitem__ = __delattr__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse

    def __reduce__(self) -> Any:
        return Config, (dict(self),)


class StandIn(nn.Module):
    """Answers the calls of a component as its artifacts do; holds no parameter.

    A module, so that a diffusers pipeline takes it: `.to` and `.eval` change nothing about it. Of
    its layers there are the widths alone, where pipelines look: `unet.add_embedding.linear_1`.

    Attributes:
        config: the component's. dtype: of its weights. device: where it runs.
        loaded: what `aotbuild.load` would hand back, with `metrics` and `restore`.
    """

    loaded: Loaded

    def __init__(self, manifest: Manifest, device: torch.device) -> None:
        super().__init__()
        self.config = Config(manifest.module.config)
        self.dtype = _dtype(manifest)
        self.device = device
        self.training = False
        self._shapes = weight_shapes(manifest.constants)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return outlined("", name, self.__dict__.get("_shapes", {}))

    def __setattr__(self, name: str, value: Any) -> None:
        if "loaded" in self.__dict__ and not (name == "training" or name.startswith("_")):
            raise AttributeError(
                f"{type(self).__name__} stands in for a component that has compiled code alone: "
                f"setting {name!r} would change nothing. Build for what you need, or load the "
                "component itself with aotbuild.load."
            )
        super().__setattr__(name, value)

    def forward(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuses: a stand-in that is called has a `forward` of its own."""
        raise TypeError(
            f"{type(self).__name__} isn't called itself, but by its methods, such as decode."
        )

    def report(self) -> str:
        """Which artifacts serve, and every rejected one with its reason."""
        return self.loaded.report()


def _dtype(manifest: Manifest) -> torch.dtype:
    """The floating dtype of most constants that aren't quantized; the pipeline's for none."""
    found = Counter(
        c.dtype for c in manifest.constants if c.rule != INT8_ROWS and "float" in c.dtype
    )
    name = found.most_common(1)[0][0] if found else manifest.precision
    return getattr(torch, name)  # type: ignore[no-any-return]
