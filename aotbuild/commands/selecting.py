"""Which artifacts of a store or collection a command is about, as its options say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from aotbuild import probe
from aotbuild.cache.backend import AOT
from aotbuild.cache.coverage import Machine, select
from aotbuild.cache.item import Item
from aotbuild.errors import TargetError, UsageError
from aotbuild.gpus import find_gpu
from aotbuild.recipe.call import parse_resolution
from aotbuild.target import CPU_LEVELS

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the command line named; None and () where it named nothing."""

    keys: tuple[str, ...]
    recipe: str | None
    component: str | None
    gpu: str | None
    resolution: str | None
    with_jit_cache: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing was named, so that everything is meant."""
        return not self.keys and not (self.recipe or self.component or self.gpu or self.resolution)

    def of(self, items: Iterable[Item], where: str) -> tuple[Item, ...]:
        """Those of `items` that are meant, sorted by folder.

        Raises:
            UsageError: none is, or nothing begins with one of the keys.
        """
        items = list(items)
        for key in self.keys:
            if not any(i.key.startswith(key.strip().lower()) for i in items):
                raise UsageError(f"No artifact of {where} has a key that begins with {key!r}.")
        found = select(
            items,
            keys=self.keys,
            recipe=self.recipe,
            component=self.component,
            machine=None if self.gpu is None else machine_of(self.gpu),
            size=None if self.resolution is None else size_of(self.resolution),
        )
        named = sorted(found, key=lambda i: i.folder)
        chosen = tuple(i for i in named if self.with_jit_cache or i.backend == AOT)
        if len(chosen) < len(named):
            left = f"{len(named) - len(chosen)} JIT-cache bundles, which hold pickles, are left out"
            if not chosen:
                raise UsageError(f"{left}, and there is nothing else: type --with-jit-cache too.")
            click.echo(f"{left}; --with-jit-cache takes them along.", err=True)
        if not chosen:
            raise UsageError(
                f"{where} has {len(items)} artifacts, and none that all of these options name. "
                "`aotbuild lookup RECIPE --gpu GPU --from REPO` says what there is, and "
                "`aotbuild build RECIPE --gpu GPU` makes some."
            )
        return chosen


_OPTIONS = (
    click.argument("keys", metavar="[KEY]...", nargs=-1),
    click.option("--recipe", metavar="NAME", help="Those of this recipe."),
    click.option("--component", metavar="NAME", help='Those of this component: "unet", "vae".'),
    click.option("--gpu", metavar="NAME|sm_XY|auto|cpu", help="Those that run on it."),
    click.option("--resolution", metavar="WxH", help="Those that serve this size in pixels."),
    click.option(
        "--with-jit-cache", is_flag=True, help="JIT-cache bundles too, which hold pickles."
    ),
)


def selecting(command: Command) -> Command:
    """The arguments that name artifacts, as a `Selection` in the parameter `selection`."""

    def called(**values: Any) -> Any:
        names = Selection.__dataclass_fields__
        selection = Selection(**{n: values.pop(n) for n in names})
        return command(selection=selection, **values)

    called.__doc__, called.__name__ = command.__doc__, command.__name__
    called.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        called = option(called)
    return called  # type: ignore[return-value]


def trust_option(command: Command) -> Command:
    """`--trusted-key`, which may be given again, as `trusted`."""
    return click.option(
        "--trusted-key",
        "trusted",
        multiple=True,
        metavar="HEX|FILE.pem",
        help="Refuse what none of these Ed25519 keys has signed; may be given again.",
    )(command)


def machine_of(gpu: str) -> Machine:
    """The machine that `--gpu` names.

    Raises:
        TargetError: it isn't known, or `auto` finds no GPU.
    """
    if gpu == "cpu" or gpu in CPU_LEVELS:
        return Machine(device="cpu", arch=probe.cpu_level() if gpu == "cpu" else gpu)
    if gpu == "auto":
        here = probe.this_machine()
        if here.device != "cuda":
            raise TargetError("--gpu auto: there is no NVIDIA GPU here. Name one, or type cpu.")
        size = here.shared_memory_bytes
        return Machine(device="cuda", arch=here.arch, shared_memory_bytes=size)
    found = find_gpu(gpu)
    size = found.shared_memory_bytes
    return Machine(device="cuda", arch=found.arch, shared_memory_bytes=size)


def size_of(resolution: str) -> tuple[int, int]:
    """(width, height) in pixels of "1024x768".

    Raises:
        UsageError: it isn't of that form.
    """
    try:
        return parse_resolution(resolution)
    except ValueError as e:
        raise UsageError(f"--resolution: {e}.") from e
