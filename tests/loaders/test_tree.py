"""Walking a module's tree."""

from __future__ import annotations

from torch import nn

from aotbuild.loaders.tree import walk


def test_walk_is_named_modules_when_layers_are_shared_nested_and_absent() -> None:
    shared = nn.Linear(2, 2)
    inner = nn.Sequential(shared, nn.ReLU())
    root = nn.ModuleDict({"first": inner, "second": nn.ModuleList([shared, inner, nn.Identity()])})
    root.register_module("absent", None)
    inner.register_module("root", root)

    assert walk(root) == list(root.named_modules())
