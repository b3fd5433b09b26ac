"""What holds a backbone to the weights it began with while it is trained further."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import UserError


class Origin:
    """A frozen copy of a backbone as it is now, and two pulls towards it.

        L2-SP:         g ← g + β·(θ − θ0), the gradient of β/2 · ‖θ − θ0‖², for its learning parameters θ
        distillation:  γ · mean over images and crops of 1 − cos(f(x), f0(x))

    θ0 and f0 are the copy, which normalises by its running statistics; f is the backbone in the clean pass, which costs
    no further pass of it (of a puzzle, each tile counts). L2-SP: Li et al. 2018, "Explicit inductive bias for transfer
    learning with convolutional networks". `network` is part of a checkpoint.
    """

    def __init__(self, backbone: nn.Module, l2_sp: float = 0.0, distillation: float = 0.0) -> None:
        self.l2_sp, self.distillation = l2_sp, distillation
        self.network = copy.deepcopy(backbone).requires_grad_(False).eval()
        self._pairs = list(zip(backbone.parameters(), self.network.parameters(), strict=True))
        self._distances: list[Tensor] | None = None
        if distillation:  # from now on, so that a compiled network has it, too
            backbone.register_forward_hook(self._compare)

    @contextmanager
    def compared(self) -> Iterator[list[Tensor]]:
        """The distances of what goes through the backbone inside, a tensor [rows] for each of its calls.

        Raises UserError if nothing did although it should be compared.
        """
        self._distances = []
        try:
            yield self._distances
            if self.distillation and not self._distances:
                raise UserError(
                    "start.distillation: this method does not call its backbone on clean views; leave it out"
                )
        finally:
            self._distances = None

    def _compare(self, backbone: nn.Module, inputs: tuple[Any, ...], features: Tensor) -> None:
        if self._distances is not None:
            with torch.no_grad():
                target = self.network(*inputs)
            # in fp32 at least
            kind = torch.promote_types(features.dtype, torch.float32)
            self._distances.append(1 - F.cosine_similarity(features.to(kind), target.to(kind), dim=-1))

    @torch.no_grad()
    def pull(self) -> None:
        """Add L2-SP's gradient to that of each parameter that has one."""
        pulled = [(p.grad, p, start) for p, start in self._pairs if p.grad is not None] if self.l2_sp else []
        if pulled:
            gradients, now, start = zip(*pulled, strict=True)
            torch._foreach_add_(gradients, torch._foreach_sub(now, start), alpha=self.l2_sp)
