"""Export of recorded calls on fake tensors: signatures in the package's order, clear failures."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.fx.experimental.proxy_tensor as proxy_tensor
from torch._subclasses.fake_tensor import FakeTensor

from aotbuild.build.calls import Block, RecordedCall
from aotbuild.build.export import Exported, export_unit
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.moving import range_over, settings_of
from aotbuild.build.prepare import prepare
from aotbuild.build.rehearse import Rehearsal, rehearse
from aotbuild.errors import ExportError
from aotbuild.recipe import load_configs, load_recipe

TINY = load_recipe("tiny")
CONFIGS = load_configs("tiny")


@cache
def rehearsal(size: tuple[int, int] = (64, 64), dtype: str = "fp32") -> Rehearsal:
    recipe = replace(TINY, dtype=dtype)
    return rehearse(recipe, CONFIGS, resolution=size, batch=1, variant="guided")


def exported(unit: str, device: str = "cpu", dtype: str = "fp32") -> tuple[Exported, RecordedCall]:
    (recorded,) = rehearsal(dtype=dtype).units[unit]
    module = recorded.module()
    prepare(module, TINY.components[recorded.component])
    return export_unit(module, recorded, device=device), recorded


def test_export_unit_orders_inputs_as_the_method_takes_them() -> None:
    found, _ = exported("unet")
    assert [s.path for s in found.signature.inputs] == [
        "sample",
        "timestep",
        "encoder_hidden_states",
        "added_cond_kwargs.text_embeds",
        "added_cond_kwargs.time_ids",
    ]
    assert [s.rule for s in found.signature.inputs] == [None, "timestep/1", None, None, None]
    assert ("return_dict", False) in found.signature.static
    assert found.signature.returns == (("", {"tuple": 1}),)


def test_export_unit_computes_what_eager_computes_when_weights_are_put_in() -> None:
    found, recorded = exported("unet")
    module = recorded.module()
    fill_random(module, 5)
    weights = recorded.module()
    fill_random(weights, 5)
    prepare(weights, TINY.components["unet"])
    inputs = {s.path: torch.randn(tuple(map(int, s.shape))) for s in found.signature.inputs}
    call: dict[str, Any] = {n: v for n, v in inputs.items() if "." not in n}
    call["added_cond_kwargs"] = {
        n.partition(".")[2]: v for n, v in inputs.items() if n.startswith("added_cond_kwargs.")
    }
    state = {**dict(weights.named_parameters()), **dict(weights.named_buffers())}
    graph = found.program.graph_signature
    names = {**graph.inputs_to_parameters, **graph.inputs_to_buffers}
    values = iter(inputs.values())
    arguments = []
    for node in (n for n in found.program.graph.nodes if n.op == "placeholder"):
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if node.name in names:
            arguments.append(state[names[node.name]])
        else:
            arguments.append(next(values) if is_tensor else None)
    with torch.no_grad():
        (graph_answer,) = torch.fx.Interpreter(found.program.graph_module).run(*arguments)
        (answer,) = module(**call, return_dict=False)
    torch.testing.assert_close(graph_answer, answer, rtol=1e-4, atol=1e-4)


def test_export_unit_holds_every_tensor_in_one_fake_mode() -> None:
    found, _ = exported("vae.decode")
    values = [n.meta.get("val") for n in found.program.graph.nodes]
    tensors = [*values, *found.program.state_dict.values(), *found.program.constants.values()]
    assert len({id(t.fake_mode) for t in tensors if isinstance(t, FakeTensor)}) == 1


def test_export_unit_takes_the_dtype_at_the_call_when_the_pipeline_upcasts() -> None:
    found, _ = exported("vae.decode", dtype="fp16")
    assert {s.dtype for s in (*found.signature.inputs, *found.signature.outputs)} == {"float32"}


def test_export_unit_counts_attentions() -> None:
    found, _ = exported("vae.decode")
    assert found.operators == {"aten.scaled_dot_product_attention.default": 1}


def test_export_unit_gives_symbolic_extents_when_dynamic() -> None:
    dynamic = ("64x64", "128x192")
    settings = settings_of(TINY.call, dynamic)
    first, second = (rehearsal(s.resolution).units["vae.decode"][0] for s in settings)
    found = range_over(TINY.call, dynamic, (first, second))
    module = first.module()
    prepare(module, TINY.components["vae"])
    signature = export_unit(module, first, device="cpu", dynamic=found).signature
    assert signature.symbols == (("h", 8, 24), ("w", 8, 16))
    assert signature.inputs[0].shape == (1, 4, "2*h", "2*w")
    assert signature.inputs[0].stride is None
    assert signature.outputs[0].shape == (1, 3, "8*h", "8*w")


def test_export_unit_keeps_the_strides_of_what_does_not_move_when_dynamic() -> None:
    dynamic = ("64x64", "128x192")
    settings = settings_of(TINY.call, dynamic)
    first, second = (rehearsal(s.resolution).units["unet"][0] for s in settings)
    turned = first.call["encoder_hidden_states"].mT.contiguous().mT
    first, second = (
        replace(r, call={**r.call, "encoder_hidden_states": turned}) for r in (first, second)
    )
    found = range_over(TINY.call, dynamic, (first, second))
    module = first.module()
    prepare(module, TINY.components["unet"])
    signature = export_unit(module, first, device="cpu", dynamic=found).signature
    strides = {s.path: s.stride for s in signature.inputs}
    assert strides["encoder_hidden_states"] == turned.stride()
    assert strides["sample"] is None


@pytest.mark.cuda_build
def test_export_unit_needs_no_gpu_when_the_target_has_one() -> None:
    found, _ = exported("unet", device="cuda:0")
    assert {s.device for s in found.signature.inputs} == {"cuda"}
    assert {t.device.type for t in found.program.state_dict.values()} == {"cuda"}
    assert proxy_tensor.CONSTANT_NUMEL_LIMIT == 1


def test_export_unit_names_the_line_when_the_model_breaks_the_graph(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "branching_model.py").write_text(
        "import torch\n"
        "class Branching(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        if x.sum() > 0:\n"
        "            return x\n"
        "        return -x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import branching_model  # type: ignore[import-not-found]

    x = torch.empty(2, device="meta")
    (real,) = rehearsal().units["unet"]
    recorded = replace(real, call={"x": x}, answer=x, rules={})
    with pytest.raises(ExportError, match=r"branching_model.py:4, `if x.sum\(\) > 0:`.*regional"):
        export_unit(branching_model.Branching(), recorded, device="cpu")


class Breaking(torch.nn.Module):
    """Two blocks, of which each, or what is around them, can't be traced."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.rows = torch.nn.ModuleList([Row(inside), Row(inside)])
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in self.rows:
            x = row(x)
        return x if self.inside or x.sum() > 0 else -x


class Row(torch.nn.Module):
    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x if self.breaks and x.sum() > 0 else x


@pytest.mark.parametrize(
    ("inside", "blocks", "way_out"),
    [
        (False, ("Row",), r"`--scope regional` compiles the repeated blocks alone \(2 Row\)"),
        (False, (), r"names repeated blocks as `components\.unet\.blocks` \(it has several Row\)"),
        (True, ("Row",), "run by a Row, which `--scope regional` would compile too"),
    ],
)
def test_export_unit_says_whether_blocks_would_help_when_the_whole_breaks(
    inside: bool, blocks: tuple[str, ...], way_out: str
) -> None:
    x = torch.empty(2, device="meta")
    (real,) = rehearsal().units["unet"]
    recorded = replace(real, call={"x": x}, answer=x, rules={})
    with pytest.raises(ExportError, match=way_out):
        export_unit(Breaking(inside=inside), recorded, device="cpu", blocks=blocks)


def test_export_unit_asks_for_smaller_blocks_when_a_block_breaks() -> None:
    x = torch.empty(2, device="meta")
    (real,) = rehearsal().units["unet"]
    block = Block(paths=("rows.0", "rows.1"), dtypes={})
    recorded = replace(real, call={"x": x}, answer=x, rules={}, block=block)
    with pytest.raises(ExportError, match=r"Name smaller blocks as `components\.unet\.blocks`"):
        export_unit(Row(True), recorded, device="cpu")


def test_export_unit_keeps_names_when_tensors_are_plain_attributes() -> None:
    config = {
        "_class_name": "QwenImageTransformer2DModel",
        "num_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 16,
        "in_channels": 16,
        "out_channels": 4,
        "axes_dims_rope": [4, 6, 6],
    }
    module = build_module(config, "float32")
    (real,) = rehearsal().units["unet"]

    def meta(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    call = {
        "hidden_states": meta(1, 16, 16),
        "encoder_hidden_states": meta(1, 5, 16),
        "timestep": meta(1),
        "img_shapes": [[(1, 4, 4)]],
        "return_dict": False,
    }
    recorded = replace(real, call=call, answer=(meta(1, 16, 16),), rules={})
    found = export_unit(module, recorded, device="cpu")
    assert "pos_embed.pos_freqs" in found.adopted
    assert "pos_embed.pos_freqs" in found.program.graph_signature.inputs_to_buffers.values()
    assert ("img_shapes.0.0.1", 4) in found.signature.static
