from __future__ import annotations

import pytest
import torch
from torch import nn

from aotbuild.loaders.rules import int8_rows, make

from . import making

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def torchaos(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.weight.data = weight.clone()
    quantize_(layer, Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
    quantized: torch.Tensor = layer.weight
    return quantized.qdata, quantized.scale  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("magnitude", [1e-6, 1e-2, 1.0, 300.0])
def test_int8_rows_are_torchaos_bit_for_bit(dtype: torch.dtype, magnitude: float) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(96, 257) * magnitude).to(dtype)
    weight[3] = 0
    data, scale = int8_rows([weight])
    expected_data, expected_scale = torchaos(weight)
    assert torch.equal(data, expected_data)
    assert scale.dtype == expected_scale.dtype
    assert torch.equal(scale.flatten(), expected_scale.flatten())


def test_joined_sources_are_quantized_as_their_concatenation() -> None:
    torch.manual_seed(1)
    parts = [torch.randn(rows, 32) for rows in (8, 24, 40)]
    data, scale = int8_rows(parts)
    whole_data, whole_scale = int8_rows([torch.cat(parts)])
    assert torch.equal(data, whole_data)
    assert torch.equal(scale, whole_scale)


def test_a_pointwise_kernel_is_quantized_as_the_matrix_that_it_is() -> None:
    torch.manual_seed(2)
    kernel = torch.randn(8, 16, 1, 1).to(memory_format=torch.channels_last)
    data, scale = int8_rows([kernel])
    assert data.shape == (8, 16)
    assert torch.equal(data, int8_rows([kernel.reshape(8, 16)])[0])
    assert scale.shape == (8, 1)


def test_make_gives_each_rules_constant() -> None:
    torch.manual_seed(3)
    left, right, kernel = torch.randn(2, 4), torch.randn(3, 4), torch.randn(2, 4, 1, 1)
    data, scale = int8_rows([left, right])
    table = torch.polar(torch.ones(2, 3), left[:, :3])
    numbers = torch.stack([table.real, table.imag], -1).flatten(1)
    both = torch.cat([left, right])
    for rule, values, expected in (
        ("tensor/1", [left], left),
        ("view/1", [kernel], kernel.flatten(1)),
        ("real/1", [table], numbers),
        ("real/1", [table.t().contiguous().t()], numbers),
        ("real/1", [table.conj()], numbers * torch.tensor([1.0, -1.0]).repeat(3)),
        ("concat/1", [left, right], both),
        ("int8_rows/1", [left, right], data),
        ("int8_rows/1", [left, right], scale),
    ):
        sources = tuple(map(str, range(len(values))))
        made = make(making.constant("x", expected, rule, sources), values)
        assert torch.equal(made, expected)
        assert made.dtype == expected.dtype
    with pytest.raises(ValueError, match="'stored/1' makes nothing"):
        make(making.constant("x", left, "stored/1"), [])
