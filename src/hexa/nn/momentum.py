"""The momentum twin: a moving average of a network."""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import torch
from timm.layers import DropPath
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def twin_of(network: Network) -> Network:
    """Return an exact copy of the network without gradients, dropout and drop-path."""
    twin = copy.deepcopy(network).requires_grad_(False)
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, DropPath):
            module.drop_prob = 0.0
    return twin


@torch.no_grad()
def follow(twin: nn.Module, network: nn.Module, momentum: float | Tensor) -> None:
    """θ′ ← m·θ′ + (1 − m)·θ for every parameter of the twin, matched by name; buffers are not
    changed.

    Parameters that only the network has (further batch-norm sets) are ignored (F4, F14). momentum: a number, or 0-d.
    """
    source = dict(network.named_parameters())
    slow = dict(twin.named_parameters())
    slow_values = list[Tensor](slow.values())
    fast_values = [source[name].detach() for name in slow]
    share: Any = 1 - momentum
    if isinstance(share, Tensor):
        share = [share.to(slow_values[0].dtype)] * len(slow_values)
    torch._foreach_lerp_(slow_values, fast_values, share)


def cosine_momentum(start: float, step: int, total_steps: int) -> float:
    """m = 1 − (1 − m₀) · (cos(π·k/K) + 1) / 2 at step k of K: from m₀ up to 1 (BYOL, DINO)."""
    share = min(1.0, step / max(1, total_steps))  # a loop of one's own may be longer
    return 1 - (1 - start) * (math.cos(math.pi * share) + 1) / 2
