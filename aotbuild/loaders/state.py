"""Which module this is, and its state: what export freezes and no argument shows.

Judges nothing: `cache.match` does.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import torch
from torch import nn

from aotbuild.cache.manifest import ModuleIdentity
from aotbuild.canonical import digest
from aotbuild.loaders.attending import attention_state
from aotbuild.loaders.tree import walk

State: TypeAlias = dict[str, Any]
FREEU = ("s1", "s2", "b1", "b2")
_FREEU = frozenset(FREEU)
_EXACT = frozenset((bool, int, str))
_SCALARS = _EXACT | {float}
_HOOK_ATTRIBUTES = ("forward", "_hf_hook", "_diffusers_hook", "_old_forward")
_FUNCTIONS = frozenset((FunctionType, MethodType))
_ADAPTER_CHILDREN = frozenset(("base_layer", "lora_A", "lora_layer"))
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.RReLU)


def identify(module: nn.Module, sources: dict[frozenset[str], str] | None = None) -> ModuleIdentity:
    """Class, architecture and source of `module`; the same on the meta device as with weights.

    `sources` keeps the digests of the source of other modules that were made already.
    """
    config = _config(module)
    return ModuleIdentity(
        class_name=type(module).__name__,
        config=config,
        config_sha256=digest(config),
        source_sha256=_source_digest(module, {} if sources is None else sources),
    )


def module_state(module: nn.Module) -> State:
    """What of `module`'s state compiled code has frozen, as JSON that compares by equality.

    Returns:
        training: whether any part that behaves differently in training is in training mode.
        processors: the attention processors' class, where all are of one; else by path.
        switches: the root's plain attributes, `use_tiling` and the like.
        freeu: [s1, s2, b1, b2] by path of the block.
        fused: paths of attentions whose projections are fused.
        hooks: paths with forward hooks or a replaced `forward`.
        adapters: paths of layers with an adapter.
        modules: by class, a digest over where its instances stand and their plain attributes.
        attention: the backend of diffusers' dispatcher, where it isn't the stock one.
    """
    named = walk(module)
    processors = {p: q for p, m in named if (q := processor_of(m)) is not None}
    attention = attention_state(processors)
    return {
        "training": module.training or any(_in_training(m) for _, m in named),
        "processors": _processors(processors),
        "switches": _scalars(module, skip=()),
        "freeu": {p: v for p, m in named if (v := _freeu(m)) != [None] * 4},
        "fused": [p for p, m in named if vars(m).get("fused_projections") is True],
        "hooks": [p for p, m in named if is_hooked(m)],
        "adapters": [p for p, m in named if not _ADAPTER_CHILDREN.isdisjoint(m._modules)],
        "modules": _shape_of_tree(named),
        **({} if attention is None else {"attention": attention}),
    }


def backend_state(device: str, dtype: str) -> State:
    """The backend switches that code compiled for `dtype` ("fp32", "tf32", ...) takes as given.

    Recorded as the manifest's `state["backend"]`, and compared with `current_backend`. Empty on the
    CPU, and where no float32 product is computed: nothing there hangs on a switch.
    """
    if device != "cuda" or dtype not in ("fp32", "tf32"):
        return {}
    return {"matmul_tf32": dtype == "tf32", "cudnn_enabled": True}


def current_backend(expected: Mapping[str, Any]) -> State:
    """The present value of every switch in `expected`."""
    now = {
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_enabled": bool(torch.backends.cudnn.enabled),
    }
    return {name: now.get(name) for name in expected}


def is_hooked(module: nn.Module) -> bool:
    """Whether something else than the class's own code runs when `module` is called."""
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    table = vars(module)
    functional = not _FUNCTIONS.isdisjoint(map(type, table.values()))
    if not functional and table.keys().isdisjoint(_HOOK_ATTRIBUTES):
        return False
    names = (n for n in _HOOK_ATTRIBUTES if table.get(n) is not None)
    if any(not _is_own(table[n], module) and not _is_idle(n, table) for n in names):
        return True
    functions = (n for n, v in table.items() if type(v) in _FUNCTIONS)
    return any(hasattr(type(module), n) and not _is_own(table[n], module) for n in functions)


def _is_own(function: object, module: nn.Module) -> bool:
    """Whether it is our dispatcher, or the class's own method, as on a swapped module's copy."""
    if hasattr(function, "__aotbuild_swapped__"):
        return True
    own = getattr(type(module), getattr(function, "__name__", ""), None)
    return own is not None and getattr(function, "__func__", None) is own


def _is_idle(name: str, table: Mapping[str, Any]) -> bool:
    """Whether it is a registry of diffusers' that never held a hook.

    `cache_context`, in which pipelines call their transformers, sets one. Where there was a hook, a
    `forward` stays behind, and another hook could come unseen.
    """
    unhooked = "forward" not in table or hasattr(table["forward"], "__aotbuild_swapped__")
    return name == "_diffusers_hook" and unhooked and not getattr(table[name], "hooks", True)


def _freeu(module: nn.Module) -> list[Any]:
    table = vars(module)
    return [None] * 4 if _FREEU.isdisjoint(table) else [table.get(k) for k in FREEU]


def depends_on_training(module: nn.Module) -> bool:
    """Whether `module` computes something else in training mode."""
    if isinstance(module, _DROPOUTS):
        return bool(module.p > 0)
    return isinstance(module, _NORMS)


def _in_training(module: nn.Module) -> bool:
    return module.training and depends_on_training(module)


def processor_of(module: nn.Module) -> object | None:
    """The attention processor of `module`, be it a plain object or a module of its own."""
    found = vars(module).get("processor")
    return found if found is not None else module._modules.get("processor")


def _processors(processors: Mapping[str, object]) -> str | dict[str, str]:
    found = {path: _describe(processor) for path, processor in processors.items()}
    kinds = set(found.values())
    return kinds.pop() if len(kinds) == 1 else found


def _describe(processor: object) -> str:
    values = _scalars(processor, skip=("training",), private=True)
    inner = ", ".join(f"{k}={v}" for k, v in sorted(values.items()))
    return _class_name(processor) + (f"({inner})" if inner else "")


def _class_name(value: object) -> str:
    """The class's name; with its module where that isn't diffusers or torch: a patch's twin."""
    cls = type(value)
    own = cls.__module__.partition(".")[0] in ("diffusers", "torch")
    return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"


def _shape_of_tree(named: list[tuple[str, nn.Module]]) -> dict[str, str]:
    """By class: where its instances stand, and their plain attributes, as 12 hex digits."""
    skip = (*FREEU, "fused_projections")
    by_class: dict[str, list[object]] = {}
    for path, module in named:
        scalars = _scalars(module, skip=skip)
        by_class.setdefault(_class_name(module), []).append([path, scalars])
    return {name: digest(entries)[:12] for name, entries in sorted(by_class.items())}


def _scalars(owner: object, *, skip: tuple[str, ...], private: bool = False) -> dict[str, Any]:
    """The plain attributes set on `owner` itself that aren't None; tuples read as lists."""
    return {
        name: value if kind in _EXACT else _plain(value)
        for name, value in vars(owner).items()
        if (private or name[0] != "_")
        and value is not None
        and name != "training"
        and name not in skip
        and ((kind := type(value)) in _SCALARS or _is_plain(value))
    }


def _is_plain(value: object) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, torch.dtype)


def _plain(value: object) -> Any:
    if type(value) in (list, tuple):
        return [_plain(v) for v in value]  # type: ignore[attr-defined]
    if isinstance(value, torch.dtype) or (type(value) is float and value - value != 0):
        return str(value)
    return value


def _config(module: nn.Module) -> dict[str, Any]:
    config = getattr(module, "config", {})
    if not isinstance(config, Mapping):
        config = config.to_dict() if hasattr(config, "to_dict") else {}
    return {k: _json(v) for k, v in config.items() if not str(k).startswith("_")}


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(v) for v in value]
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def _source_digest(module: nn.Module, known: dict[frozenset[str], str]) -> str:
    """Digest over the files that define the module's classes and processors, torch's own aside."""
    names = frozenset(c.__module__ for c in _classes(module))
    if names not in known:
        own = sorted(n for n in names if n.partition(".")[0] != "torch")
        known[names] = digest([[name, _file_digest(name)] for name in own])
    return known[names]


def _classes(module: nn.Module) -> Iterator[type]:
    for _, child in walk(module):
        yield type(child)
        processor = processor_of(child)
        if processor is not None:
            yield type(processor)


def _file_digest(module_name: str) -> str | None:
    found = sys.modules.get(module_name)
    try:
        file = inspect.getsourcefile(found) if found is not None else None
    except TypeError:
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
