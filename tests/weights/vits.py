"""A vision transformer written for tests alone, with the names of tensors of DINO, MAE, MoCo-v3, DINOv2 and DINOv3."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, mask: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        if mask:  # DINOv3 keeps biases of keys at 0
            ones = torch.ones(width)
            self.qkv.register_buffer("bias_mask", torch.cat([ones, 0 * ones, ones]))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        bias = self.qkv.bias
        if hasattr(self.qkv, "bias_mask"):
            bias = bias * self.qkv.bias_mask
        out = nn.functional.linear(x, self.qkv.weight, bias)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in out.chunk(3, 2))
        if turn is not None:
            q, k = (turned(part, *turn) for part in (q, k))
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).softmax(3)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the tokens of patches, which are the last ones."""
    first = x.shape[2] - len(cosine)
    patches = x[:, :, first:]
    left, right = patches.chunk(2, 3)
    patches = patches * cosine + torch.cat([-right, left], 3) * sine
    return torch.cat([x[:, :, :first], patches], 2)


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Gated(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w12 = nn.Linear(width, 2 * hidden)
        self.w3 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.w12(x).chunk(2, 2)
        return self.w3(nn.functional.silu(gate) * value)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(
        self, width: int, heads: int, ratio: float, scale: bool, eps: float, mask: bool, gated: bool
    ) -> None:
        super().__init__()
        hidden = int(width * ratio)
        self.norm1 = nn.LayerNorm(width, eps)
        self.attn = Attention(width, heads, mask)
        self.ls1 = Scale(width) if scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps)
        self.mlp = Gated(width, hidden) if gated else Mlp(width, hidden)
        self.ls2 = Scale(width) if scale else nn.Identity()

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), turn))
        return x + self.ls2(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    """Normalised images -> class tokens [B, width]. All weights are drawn from torch's global generator."""

    def __init__(
        self,
        width: int = 64,
        depth: int = 6,
        heads: int = 2,
        patch: int = 16,
        side: int = 32,
        ratio: float = 3,
        *,
        mask_token: bool = False,
        registers: int = 0,
        scale: bool = False,
        gated: bool = False,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        grid = side // patch
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        if not rotary:
            self.pos_embed = nn.Parameter(torch.randn(1, 1 + grid**2, width))
        self.registers = "storage_tokens" if rotary else "register_tokens"
        if registers:
            self.register_parameter(self.registers, nn.Parameter(torch.randn(1, registers, width)))
        if mask_token:
            self.mask_token = nn.Parameter(torch.randn(1, width))
        eps = 1e-5 if rotary else 1e-6
        self.blocks = nn.ModuleList(
            Block(width, heads, ratio, scale, eps, rotary, gated) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps)
        if rotary:
            each = width // heads
            exponents = 2 * torch.arange(each // 4) / (each // 2)
            self.rope_embed = nn.Module()
            self.rope_embed.register_buffer("periods", 100.0**exponents)
        with torch.no_grad():
            for value in self.parameters():
                if value.ndim == 1:  # else biases and norms would hide mistakes
                    value.add_(0.2 * torch.randn_like(value))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed.proj(images)
        turn = self.rotation(*patches.shape[2:]) if hasattr(self, "rope_embed") else None
        x = torch.cat([self.cls_token.expand(len(images), -1, -1), patches.flatten(2).mT], 1)
        if hasattr(self, "pos_embed"):
            x = x + self.pos_embed
        if hasattr(self, self.registers):
            tokens = getattr(self, self.registers).expand(len(images), -1, -1)
            x = torch.cat([x[:, :1], tokens, x[:, 1:]], 1)
        for block in self.blocks:
            x = block(x, turn)
        return self.norm(x)[:, 0]

    def rotation(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        lines = [(torch.arange(n) + 0.5) / n * 2 - 1 for n in (height, width)]
        places = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).flatten(0, 1)
        angles = 2 * math.pi * places[:, :, None] / self.rope_embed.periods
        both = angles.flatten(1).tile(2)
        return both.cos(), both.sin()
