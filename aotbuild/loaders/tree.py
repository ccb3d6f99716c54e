"""A module's tree in one flat list. What its modules are is `state`'s and `snapshot`'s to say."""

from __future__ import annotations

from torch import nn


def walk(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """(path, module) of `root`, "", and all below, each once, in the order of `named_modules`.

    That one passes each module through a generator per level, a third of what loading a UNet takes.
    """
    found: list[tuple[str, nn.Module]] = []
    seen: set[nn.Module] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        found.append((path, module))
        prefix = f"{path}." if path else ""
        children = [(prefix + n, c) for n, c in module._modules.items() if c is not None]
        waiting += reversed(children)
    return found
