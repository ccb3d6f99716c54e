"""Real modules for the loader's tests: one with every kind of constant, and diffusers' own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, UNet2DConditionModel
from torch import Tensor, nn


class Table:
    """A plain object that holds a tensor, as rotary embeddings of some transformers do."""

    def __init__(self) -> None:
        self.angles = torch.linspace(-1, 1, 16).reshape(1, 16, 1, 1).clone()


class Net(nn.Module):
    """Convolutions, separate q, k and v, buffers of both kinds, an attribute, a constant."""

    config: ClassVar[dict[str, Any]] = {"width": 16, "_class_name": "Net", "sizes": (1, 2)}

    def __init__(self) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(4, 16, 3, padding=1)
        self.embed = nn.Linear(1, 16)
        self.to_q = nn.Linear(16, 16)
        self.to_k = nn.Linear(16, 16)
        self.to_v = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.5)
        self.conv_out = nn.Conv2d(16, 4, 3, padding=1)
        self.register_buffer("kept", torch.rand(16))
        self.register_buffer("lost", torch.rand(16), persistent=False)
        self.rope = Table()
        self.use_tiling = False

    def qkv(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.to_q(tokens), self.to_k(tokens), self.to_v(tokens)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor | float,
        gain: float = 1.0,
        extras: dict[str, Any] | None = None,
        return_dict: bool = True,
    ) -> Any:
        batch = sample.shape[0]
        if not torch.is_tensor(timestep):
            timestep = torch.tensor([timestep], device=sample.device)
        steps = timestep.reshape(-1).expand(batch).float().reshape(batch, 1)
        hidden = self.conv_in(sample) + self.embed(steps)[:, :, None, None] + self.rope.angles
        tokens = self.drop(hidden.flatten(2).transpose(1, 2) * self.kept + self.lost)
        q, k, v = self.qkv(tokens)
        mixed = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        hidden = hidden + mixed.transpose(1, 2).reshape(hidden.shape)
        out = self.conv_out(hidden * gain)
        return {"sample": out} if return_dict else (out,)


class FusedNet(Net):
    """`Net` as a build prepares it: q, k and v as one product."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(16, 48)

    def qkv(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.to_qkv(tokens).chunk(3, dim=-1)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().eval()


def call(seed: int = 1, size: int = 16, batch: int = 2, **others: Any) -> dict[str, Any]:
    torch.manual_seed(seed)
    sample = torch.randn(batch, 4, size, size)
    return {"sample": sample, "timestep": torch.full((batch,), 7.0), **others}


def flux() -> FluxTransformer2DModel:
    """Two blocks whose attention diffusers' dispatcher is asked for."""
    return FluxTransformer2DModel(
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8,
        pooled_projection_dim=8,
        in_channels=4,
        axes_dims_rope=(4, 4, 8),
    ).eval()


def unet(seed: int = 0) -> UNet2DConditionModel:
    torch.manual_seed(seed)
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()


def unet_call(seed: int = 1, size: int = 8, batch: int = 2, tokens: int = 7) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {
        "sample": torch.randn(batch, 4, size, size),
        "timestep": torch.full((batch,), 7.0),
        "encoder_hidden_states": torch.randn(batch, tokens, 32),
        "return_dict": False,
    }


def vae(seed: int = 0) -> AutoencoderKL:
    torch.manual_seed(seed)
    return AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        sample_size=32,
        force_upcast=True,
    ).eval()
