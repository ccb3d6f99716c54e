"""What can't be exported, in a paragraph: the line that broke the graph, and the way out."""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from aotbuild.build.calls import RecordedCall
from aotbuild.cache.backend import INDUCTOR_CACHE

_SHOWN = 3
_ADVERTISED = re.compile(r" (?=For more information, run|The error above occurred when calling)")
"""Where torch goes on to its own switches and documents, which a person here has no use for."""


def explain_break(
    module: nn.Module, recorded: RecordedCall, blocks: tuple[str, ...], error: Exception
) -> str:
    """What torch said of `module`, where it said it, and what to type next.

    Args:
        blocks: classes that the recipe names as the component's repeated blocks.
    """
    frames = [f for tb in _tracebacks(error) for f in traceback.extract_tb(tb)]
    ours = [f for f in frames if _is_model_code(f.filename)]
    where = "no line of the model is in the traceback"
    if ours:
        last = ours[-1]
        where = f"{_below_packages(last.filename)}:{last.lineno}, `{last.line}`"
    said = _ADVERTISED.split(" ".join(str(error).split()))[0][:600].rstrip(".")
    return (
        f"{recorded.unit} ({recorded.identity.class_name}) can't be exported: {where}: "
        f"{type(error).__name__}: {said}. {_way_out(module, recorded, blocks, error)} A bundle of "
        f"torch.compile's caches, `--backend {INDUCTOR_CACHE}`, takes it as it is."
    )


def _way_out(
    module: nn.Module, recorded: RecordedCall, blocks: tuple[str, ...], error: Exception
) -> str:
    field = f"components.{recorded.component}.blocks"
    counts = Counter(type(m).__name__ for m in module.modules() if m is not module)
    named = blocks or tuple(getattr(type(module), "_repeated_blocks", None) or ())
    there = [name for name in named if name in counts]
    if recorded.block is not None:
        return f"Name smaller blocks as `{field}` of the recipe, or leave the component out."
    if not there:
        kinds = [n for n, times in counts.most_common() if times > 1 and _is_own(module, n)]
        found = f" (it has several {', '.join(kinds[:_SHOWN])})" if kinds else ""
        return (
            f"Where the recipe names repeated blocks as `{field}`{found}, `--scope regional` "
            "compiles these alone and leaves such code to Python."
        )
    inside = next((c for c in _callers(error) if c in there), None)
    if inside is not None:
        return (
            f"That line is run by a {inside}, which `--scope regional` would compile too: name "
            f"smaller blocks as `{field}` of the recipe."
        )
    many = " and ".join(f"{counts[name]} {name}" for name in there)
    return (
        f"`--scope regional` compiles the repeated blocks alone ({many}), and leaves it to Python."
    )


def _is_own(module: nn.Module, name: str) -> bool:
    """Whether the class isn't one of torch's own layers."""
    own = (type(m) for m in module.modules() if type(m).__name__ == name)
    return not next(own).__module__.startswith("torch.")


def _callers(error: Exception) -> Iterator[str]:
    """The classes of the modules whose methods were running."""
    for tb in _tracebacks(error):
        for frame, _ in traceback.walk_tb(tb):
            running = frame.f_locals.get("self")
            if isinstance(running, nn.Module):
                yield type(running).__name__


def _tracebacks(error: BaseException | None) -> Iterator[TracebackType | None]:
    """Of `error` and its causes, the deepest last."""
    while error is not None:
        yield error.__traceback__
        error = error.__cause__ or error.__context__


def _is_model_code(filename: str) -> bool:
    libraries = (Path(torch.__file__).parent, Path(__file__).parent.parent, Path(sys.base_prefix))
    path = Path(filename)
    return path.is_file() and not any(path.is_relative_to(p) for p in libraries)


def _below_packages(filename: str) -> str:
    return filename.rpartition("site-packages/")[2]
