"""Activation checkpointing: blocks keep only their input, and compute the rest again for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hexa.core import Branch
from hexa.nn.branch_norm import BranchBatchNorm, Switch

Context = AbstractContextManager[None]


class _Checkpointed:
    """Placed before the own class of a block, so that copies of the block work by themselves."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        compute = super().forward  # type: ignore[misc]
        if not torch.is_grad_enabled():
            return compute(*inputs, **options)
        contexts = partial(_contexts, self)  # type: ignore[arg-type]
        return checkpoint(compute, *inputs, use_reentrant=False, context_fn=contexts, **options)


def _contexts(block: nn.Module) -> tuple[Context, Context]:
    """For the first pass, and for the second."""
    switches = [m.switch for m in block.modules() if isinstance(m, BranchBatchNorm)]
    if not switches:
        return nullcontext(), nullcontext()
    switch = switches[0]
    return nullcontext(), _again(block, switch, switch.branch, switch.images)


@contextmanager
def _again(block: nn.Module, switch: Switch, branch: Branch, images: int) -> Iterator[None]:
    """Use the batch-norms of the first pass; running statistics, which have moved already, are put back."""
    before = switch.branch, switch.images
    moving = [buffer.data for buffer in block.buffers()]
    kept = [buffer.clone() for buffer in moving]
    switch.branch = branch
    switch.images = images
    try:
        yield
    finally:
        switch.branch, switch.images = before
        torch._foreach_copy_(moving, kept)


def checkpoint_blocks(network: nn.Module) -> int:
    """Checkpoint every block of a network, in place; returns their number.

    Blocks are the members of `Sequential` and `ModuleList` that consist of layers and contain no further blocks.
    Gradients and running statistics stay the same, bit for bit if the kernels are deterministic. timm's own
    checkpointing moves running statistics twice and forgets the branch.
    """
    found = blocks(network)
    for block in found:
        own = type(block)
        block.__class__ = type(own.__name__, (_Checkpointed, own), {})
    return len(found)


def blocks(network: nn.Module) -> list[nn.Module]:
    """The innermost repeated parts of a network, such as residual blocks and transformer layers.

    Parts in a `Sequential` or a `ModuleList` count. RegNet's are in neither, so none are found.
    """
    found = []
    repeats = isinstance(network, nn.Sequential | nn.ModuleList)
    for child in network.children():
        inner = blocks(child)
        layers = any(list(layer.parameters()) for layer in child.children())
        if inner:
            found += inner
        elif (
            repeats
            and layers
            and not isinstance(child, nn.Sequential | nn.ModuleList | BranchBatchNorm)
        ):
            found.append(child)
    return found
