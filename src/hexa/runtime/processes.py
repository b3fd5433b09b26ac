"""Processes and collectives, a thin layer over torch.distributed in which one process is no special case."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def initialize(device: torch.device | None = None) -> None:
    """Join the group that torchrun announces in the environment; nothing to do for a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        on_gpu = device is not None and device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if on_gpu else "gloo")


def shutdown() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, 0 … world_size − 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def local_rank() -> int:
    """The number of this process on its machine: the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this process writes files and speaks."""
    return rank() == 0


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()


def all_gather(tensor: Tensor) -> Tensor:
    """The tensors of all processes joined along the first dimension in rank order, without gradient; equal shapes."""
    if world_size() == 1:
        return tensor
    out = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world_size())]
    dist.all_gather(out, tensor.detach().contiguous())
    return torch.cat(out)


def all_reduce_max(value: Tensor) -> Tensor:
    """The largest of the processes' values, in place."""
    if world_size() > 1:
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return value


def all_reduce_sum(value: Tensor) -> Tensor:
    """The sum of the processes' values, in place; `value` must be contiguous."""
    if world_size() > 1:
        dist.all_reduce(value)
    return value


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients over all processes in one reduction, once a step, after the last backward (REFERENCE §6.5).

    A parameter without gradient here counts as zero where another process has one, and keeps none where nobody has one;
    every process walks the same list, so that all agree.
    """
    if world_size() == 1:
        return
    parameters = [p for p in parameters if p.requires_grad]
    device = parameters[0].device
    present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8).to(device)
    dist.all_reduce(present, dist.ReduceOp.MAX)
    used = [p for p, here in zip(parameters, present.tolist(), strict=True) if here]
    for p in used:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    gradients = [p.grad for p in used if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    flat /= world_size()
    pieces = torch.split(flat, [g.numel() for g in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view(gradient.shape))


@torch.no_grad()
def broadcast_state(module: nn.Module) -> None:
    """Give every process rank 0's parameters and buffers."""
    if world_size() > 1:
        for tensor in module.state_dict().values():
            value = tensor.contiguous()
            dist.broadcast(value, 0)
            tensor.copy_(value)
