import pytest
import torch

from aotbuild.build.attention import lower_attention, spell_out_attention
from aotbuild.build.attention_choice import Attention, refusals
from aotbuild.errors import BuildError
from aotbuild.gpus import find_gpu

CUDNN = 91900
HALF = torch.bfloat16


def attention(width=64, dtype=HALF, length=1024, keys=1024, heads=10, **others):
    query, key = (2, heads, length, width), (2, heads, keys, width)
    return Attention(**{"dtype": dtype, "query": query, "key": key, "value": key, **others})


def choice(call, arch, cudnn=CUDNN):
    answers = refusals(call, find_gpu(arch), cudnn)
    return next((kind for kind, reason in answers.items() if reason is None), None)


@pytest.mark.parametrize(
    ("arch", "dtype", "kind"),
    [
        ("sm_70", torch.float16, "efficient"),
        ("sm_75", torch.float16, "efficient"),
        ("sm_80", torch.float16, "flash"),
        ("sm_80", torch.bfloat16, "flash"),
        ("sm_86", torch.bfloat16, "flash"),
        ("sm_89", torch.bfloat16, "flash"),
        ("sm_90", torch.bfloat16, "cudnn"),
        ("sm_100", torch.bfloat16, "cudnn"),
        ("sm_120", torch.bfloat16, "flash"),
        ("sm_75", torch.float32, "efficient"),
        ("sm_80", torch.float32, "efficient"),
        ("sm_90", torch.float32, "efficient"),
        ("sm_75", torch.bfloat16, None),
        ("sm_80", torch.float64, None),
    ],
)
def test_choice_is_torchs_first_when_plain(arch, dtype, kind):
    assert choice(attention(dtype=dtype), arch) == kind


@pytest.mark.parametrize(
    ("call", "arch", "kind"),
    [
        (attention(width=512, heads=1), "sm_80", "efficient"),
        (attention(width=512, heads=1), "sm_90", "efficient"),
        (attention(width=60), "sm_80", "flash"),
        (attention(width=60), "sm_90", "flash"),
        (attention(width=60, dtype=torch.float32), "sm_80", "efficient"),
        (attention(width=62, dtype=torch.float32), "sm_80", None),
        (attention(width=62, dtype=torch.float32), "sm_75", "efficient"),
        (attention(width=160), "sm_90", "cudnn"),
        (attention(width=160), "sm_100", "flash"),
        (attention(keys=1), "sm_90", "flash"),
        (attention(keys=77), "sm_90", "cudnn"),
        (attention(causal=True), "sm_80", "flash"),
        (attention(causal=True, keys=77), "sm_80", "efficient"),
        (attention(mask=(2, 1, 1, 1024)), "sm_80", "efficient"),
        (attention(mask=(2, 1, 1, 1024)), "sm_90", "cudnn"),
        (attention(mask=(1024, 1024)), "sm_90", "cudnn"),
        (attention(mask=(20, 1, 1024)), "sm_90", "efficient"),
        (attention(mask=(2, 1, 1, 1024), causal=True), "sm_80", None),
        (attention(dropout=0.1), "sm_80", None),
        (attention(dense=False), "sm_80", None),
        (attention(query=(2, 20, 1024, 64)), "sm_80", None),
        (attention(query=(2, 20, 1024, 64), grouped=True), "sm_80", "flash"),
        (attention(query=(10, 1024, 64)), "sm_80", None),
    ],
)
def test_choice_falls_to_the_next_kernel_when_the_first_does_not_take_the_call(call, arch, kind):
    assert choice(call, arch) == kind


@pytest.mark.parametrize(("cudnn", "kind"), [(None, "flash"), (91000, "flash"), (91501, "cudnn")])
def test_choice_prefers_cudnn_when_it_is_new_enough(cudnn, kind):
    assert choice(attention(), "sm_90", cudnn) == kind


class Attend(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value, mask=None):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, attn_mask=mask, **self.options)


def export(*shapes, dtype=HALF, mask=None, dynamic=None, **options):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
        inputs = [torch.empty(s, dtype=dtype, device="cuda:0") for s in shapes]
        if mask is not None:
            inputs.append(torch.empty(mask[0], dtype=mask[1], device="cuda:0"))
        return torch.export.export(
            Attend(**options), tuple(inputs), strict=False, dynamic_shapes=dynamic
        )


def targets(program):
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


QKV = ((2, 10, 64, 64),) * 3


@pytest.mark.cuda_build
@pytest.mark.parametrize(
    ("arch", "dtype", "kind"),
    [
        ("sm_75", torch.float16, "efficient"),
        ("sm_80", HALF, "flash"),
        ("sm_90", HALF, "cudnn"),
        ("sm_120", HALF, "flash"),
        ("sm_80", torch.float32, "efficient"),
    ],
)
def test_lowering_puts_the_kernel_into_the_graph_when_exported(arch, dtype, kind):
    program = export(*QKV, dtype=dtype)
    before = program.graph.output_node().args[0][0].meta["val"]
    assert lower_attention(program, find_gpu(arch), CUDNN) == {kind: 1}
    assert f"aten._scaled_dot_product_{kind}_attention.default" in targets(program)
    assert "aten.scaled_dot_product_attention.default" not in targets(program)
    after = program.graph.output_node().args[0][0]
    assert (after.meta["val"].shape, after.meta["val"].dtype) == (before.shape, before.dtype)
    assert program.graph_signature.output_specs[0].arg.name == after.name


@pytest.mark.cuda_build
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.bool, HALF, torch.float32])
@pytest.mark.parametrize("shape", [(2, 1, 1, 77), (64, 77), (2, 10, 64, 77)])
def test_lowering_brings_a_mask_to_the_form_of_the_kernel(arch, dtype, shape):
    keys = ((2, 10, 77, 64),) * 2
    if dtype is torch.float32:  # SDPA itself takes masks of its own dtype, or bool
        program = export((2, 10, 64, 64), *keys, dtype=torch.float32, mask=(shape, dtype))
    else:
        program = export((2, 10, 64, 64), *keys, mask=(shape, dtype))
    lower_attention(program, find_gpu(arch), CUDNN)
    node = next(n for n in program.graph.nodes if "_scaled_dot_product" in str(n.target))
    mask = node.args[3].meta["val"]
    assert mask.dtype == node.args[0].meta["val"].dtype
    if "efficient" in str(node.target):
        assert mask.shape == (2, 10, 64, 77)


@pytest.mark.cuda_build
@pytest.mark.parametrize("masked", [False, True])
def test_lowering_keeps_shapes_symbolic_when_exported_for_a_range(masked):
    length = torch.export.Dim("length", min=2, max=64)
    shapes = ({2: length},) * 3
    mask = ((2, 1, 32, 32), torch.bool) if masked else None
    dynamic = (*shapes, {2: length, 3: length}) if masked else (*shapes, None)
    program = export(*((2, 10, 32, 64),) * 3, mask=mask, dynamic=dynamic[: 4 if masked else 3])
    kind = "efficient" if masked else "flash"
    assert lower_attention(program, find_gpu("a100"), CUDNN) == {kind: 1}
    answer = program.graph.output_node().args[0][0].meta["val"]
    assert isinstance(answer.shape[2], torch.SymInt)
    assert ("aten.sym_size.int" in targets(program)) >= masked


@pytest.mark.cuda_build
def test_lowering_pads_a_head_that_flash_does_not_take_as_it_is():
    program = export(*((2, 10, 64, 60),) * 3)
    assert lower_attention(program, find_gpu("a100"), CUDNN) == {"flash": 1}
    node = next(n for n in program.graph.nodes if "flash_attention" in str(n.target))
    assert node.args[0].meta["val"].shape[-1] == 64
    assert node.kwargs["scale"] == pytest.approx(60**-0.5)
    assert program.graph.output_node().args[0][0].meta["val"].shape == (2, 10, 64, 60)


@pytest.mark.cuda_build
def test_lowering_keeps_a_scale_when_the_call_has_one():
    program = export(*QKV, scale=0.5)
    lower_attention(program, find_gpu("a100"), CUDNN)
    node = next(n for n in program.graph.nodes if "flash_attention" in str(n.target))
    assert node.kwargs["scale"] == 0.5


@pytest.mark.cuda_build
def test_lowering_refuses_math_and_says_why_when_no_kernel_takes_the_call():
    program = export(*QKV, dtype=torch.float64)
    with pytest.raises(BuildError, match=r"Only the MATH kernel.*flash: torch\.float64.*attention"):
        lower_attention(program, find_gpu("a100"), CUDNN)


@pytest.mark.cuda_build
@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("_native_cudnn", "cudnn"),
        ("_native_flash", "flash"),
        ("_native_efficient", "efficient"),
    ],
)
def test_lowering_takes_the_kernel_that_is_asked_for_when_it_takes_the_call(asked, kind):
    program = export(*QKV)
    assert lower_attention(program, find_gpu("h100"), CUDNN, asked) == {kind: 1}


@pytest.mark.cuda_build
def test_lowering_refuses_the_kernel_that_is_asked_for_when_it_does_not_take_the_call():
    masked = export(*QKV, mask=((64, 64), torch.bool))
    with pytest.raises(BuildError, match=r"asked for doesn't take.*flash: a mask\..*sdpa"):
        lower_attention(masked, find_gpu("a100"), CUDNN, "_native_flash")
    with pytest.raises(BuildError, match=r"cudnn: cuDNN \d+ isn't asked for attention on sm_80"):
        lower_attention(export(*QKV), find_gpu("a100"), CUDNN, "_native_cudnn")


@pytest.mark.cuda_build
def test_lowering_spells_out_what_no_kernel_takes_when_plain_arithmetic_is_asked_for():
    program = export(*QKV, dtype=torch.float64)
    assert lower_attention(program, find_gpu("a100"), CUDNN, "math") == {"math": 1}


@pytest.mark.parametrize("options", [{}, {"scale": 0.5}, {"is_causal": True}, {"masked": True}])
def test_plain_arithmetic_computes_what_attention_does_when_spelled_out(options):
    masked = options.get("masked", False)
    module = Attend(**{k: v for k, v in options.items() if k != "masked"})
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 3, 16, 8, generator=generator) for _ in range(3)]
    if masked:
        inputs.append(torch.arange(16).repeat(16, 1) % 3 > 0)
    program = torch.export.export(module, tuple(inputs), strict=False)
    expected = module(*inputs)
    assert spell_out_attention(program) == {"math": 1}
    assert "aten.scaled_dot_product_attention.default" not in targets(program)
    torch.testing.assert_close(program.module()(*inputs), expected)
