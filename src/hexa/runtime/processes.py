"""Processes and collectives: a thin layer over torch.distributed, also for a single process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hexa.config import UserError

Value = TypeVar("Value")

#: Time limit of collectives that wait for an evaluation by the main process, which may take days.
_NO_LIMIT = timedelta(days=365)
#: Words in the error of a collective after the connection to another process broke.
_OF_CONNECTION = ("gloo", "nccl", "connection", "socket")


class ProcessEnded(RuntimeError):
    """Another process of the run failed, so this one cannot continue. Exit code 1.

    speaks: False if another process reports the failure.
    """

    exit_code = 1

    def __init__(self, what: str, speaks: bool = True) -> None:
        super().__init__(what)
        self.speaks = speaks


@dataclass
class _World:
    """State that belongs to torch's process group.

    patient: group of all processes through their hosts, without a time limit.
    gradients: group of all processes for gradients on their hosts.
    parts: groups of consecutive processes by size.
    alone: True inside `alone()`.
    """

    patient: dist.ProcessGroup | None = None
    gradients: dist.ProcessGroup | None = None
    parts: dict[int, dist.ProcessGroup] = field(default_factory=dict)
    alone: bool = False


_world = _World()


def initialize(device: torch.device | None = None) -> None:
    """Join the process group that torchrun announces in the environment; do nothing for a single
    process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        on_gpu = device is not None and device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        try:
            shared, number, size = next(rendezvous("env://"))
        except ValueError as error:
            reason = str(error).rpartition(": ")[2]
            raise UserError(
                f"WORLD_SIZE announces several processes, but {reason}; start with torchrun"
            ) from None
        from hexa.runtime.rendezvous import agree_on_start

        store = PrefixStore(agree_on_start(shared, number, size), shared)
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=size)


def shutdown(failed: bool = False) -> None:
    """Leave the process group, if there is one. failed: do not wait for other processes, which may
    have ended."""
    if not dist.is_initialized():
        return
    if failed and dist.get_backend() == "nccl":
        # an orderly exit waits for pending operations, possibly forever
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()
    global _world
    _world = _World()


# -- evaluation: the main process works, the others help -------------------------------------------


@contextmanager
def alone() -> Iterator[None]:
    """Work in the main process inside the context as if it were the only process."""
    before = _world.alone
    _world.alone = True
    try:
        yield
    finally:
        _world.alone = before


def helpers() -> int:
    """Return the number of other processes, also inside `alone`."""
    return dist.get_world_size() - 1 if dist.is_initialized() else 0


def exchange(what: Any) -> list[Any]:
    """Return the values of all processes in rank order, on all of them; also inside `alone`. Waits
    without a time limit."""
    values = [what] * (1 + helpers())
    if helpers():
        _together(dist.all_gather_object, values, what, _patient())
    return values


def host_max(numbers: list[int]) -> list[int]:
    """The maximum of each of these small numbers over all processes, without asking a device."""
    values = torch.tensor(numbers, dtype=torch.uint8)
    if world_size() > 1:
        _together(dist.all_reduce, values, dist.ReduceOp.MAX, _patient())
    return values.tolist()


def _patient() -> dist.ProcessGroup:
    if _world.patient is None:
        _world.patient = _together(dist.new_group, backend="gloo", timeout=_NO_LIMIT)
    return cast(dist.ProcessGroup, _world.patient)


def gather_rows(rows: Tensor) -> list[Tensor]:
    """Return the rows of all processes on the main one, in rank order; an empty list elsewhere.
    Also inside `alone`.

    The tensors are on the CPU, and their first dimensions may differ.
    """
    shapes = exchange(tuple(rows.shape))
    if not is_main():
        if len(rows):
            _together(dist.send, rows.contiguous(), 0, _world.patient)
        return []
    parts = [rows]
    for other, shape in enumerate(shapes[1:], 1):
        parts.append(torch.empty(shape, dtype=rows.dtype))
        if shape[0]:
            _together(dist.recv, parts[-1], other, _world.patient)
    return parts


def in_step(work: Callable[[], Value]) -> Value:
    """Run `work` and return its result. Raises UserError in all processes if `work` raises it in one."""
    problem: UserError | None = None
    value: list[Value] = []
    try:
        value.append(work())
    except UserError as error:
        problem = error
    everyones = exchange(None if problem is None else str(problem))
    if problems := [said for said in everyones if said is not None]:
        raise problem or UserError(problems[0])
    return value[0]


def from_main(work: Callable[[], Value]) -> Value:
    """Run `work` in the main process, and return its result in all processes; the others wait.

    Raises UserError in all processes if `work` does, and ProcessEnded in the others if the main process ends otherwise.
    """
    made: list[Value] = []
    error: BaseException | None = None
    if is_main():
        try:
            made.append(work())
        except BaseException as caught:
            error = caught
    problem = str(error) if isinstance(error, UserError) else None
    made, problem, crashed = exchange((made, problem, error is not None and problem is None))[0]
    if error is not None:
        raise error
    if problem is not None:
        raise UserError(problem)
    if crashed:
        raise ProcessEnded("the main process failed", speaks=False)
    return made[0]


def main_first(work: Callable[[], Value]) -> Value:
    """Run `work` in each process and return its result. The main process goes first and downloads what is missing."""
    made: list[Value] = []
    from_main(lambda: made.append(work()))
    return in_step(lambda: made[0] if made else work())


def _together(collective: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Call a collective. Raises ProcessEnded if the connection to another process breaks."""
    try:
        return collective(*given, **options)
    except RuntimeError as error:
        cause = " ".join(str(error).split())
        broken = any(word in cause.lower() for word in _OF_CONNECTION)
        if not (broken or isinstance(error, dist.DistError)):
            raise
        raise ProcessEnded(
            f"another process failed; see torchrun's report ({cause[:200]})"
        ) from error


def make_parts(size: int) -> None:
    """Create groups of `size` consecutive processes, for collectives among them. Every process
    calls this.

    `size` must divide the number of processes. Groups are created once.
    """
    if size in (1, world_size()) or size in _world.parts:
        return
    _world.parts[size], _ = _together(dist.new_subgroups, size)


def world_size() -> int:
    """Return the number of processes that work together; 1 inside `alone`."""
    return dist.get_world_size() if dist.is_initialized() and not _world.alone else 1


def rank() -> int:
    """Return the index of this process, 0 … world_size − 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Return whether this process writes files and prints."""
    return rank() == 0


def barrier() -> None:
    """Wait for all processes, without a time limit."""
    if world_size() > 1:
        exchange(None)


def all_gather(tensor: Tensor, part: int | None = None) -> Tensor:
    """Concatenate the tensors of all processes along the first dimension in rank order, without
    gradient; equal shapes.

    part: only in this process's group of that size, see `make_parts`.
    """
    size = part or world_size()
    if size == 1:
        return tensor
    out = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(size)]
    _together(dist.all_gather, out, tensor.detach().contiguous(), _group(size))
    return torch.cat(out)


def all_gather_with_gradient(tensor: Tensor) -> Tensor:
    """`all_gather` with the gradient of the sum of all processes' losses.

    After averaging over processes, as for all gradients, this is the gradient of the mean loss.
    Every process must back-propagate.
    """
    return tensor if world_size() == 1 else cast(Tensor, _Gather.apply(tensor))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.rows = len(tensor)
        return all_gather(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        # a copy, because the sum is in place and autograd may still need the gradient
        total = all_reduce_sum(gradients[0].clone(memory_format=torch.contiguous_format))
        return total[rank() * ctx.rows : (rank() + 1) * ctx.rows]


def all_reduce_max(value: Tensor) -> Tensor:
    """Replace `value` by the maximum over all processes, in place."""
    if world_size() > 1:
        _together(dist.all_reduce, value, dist.ReduceOp.MAX)
    return value


def all_reduce_sum(value: Tensor, part: int | None = None) -> Tensor:
    """Replace `value`, which must be contiguous, by the sum over all processes, in place. part: as
    for `all_gather`."""
    size = part or world_size()
    if size > 1:
        _together(dist.all_reduce, value, group=_group(size))
    return value


def any_of(flag: bool, device: torch.device) -> bool:
    """Return whether any process passed True; communicates through `device`."""
    return bool(all_reduce_max(torch.tensor(float(flag), device=device)).item())


def of_main(number: int, device: torch.device) -> int:
    """Return the main process's number, on all processes."""
    if world_size() == 1:
        return number
    value = torch.tensor([number], device=device)
    _together(dist.broadcast, value, 0)
    return int(value)


def _group(size: int) -> dist.ProcessGroup | None:
    return None if size == world_size() else _world.parts[size]


def _of_gradients(tensor: Tensor) -> dist.ProcessGroup | None:
    """Return a group whose collectives do not wait for those of a backward pass (SyncBN).

    None on a GPU, because NCCL does not support groups that work at the same time.
    """
    if tensor.is_cuda:
        return None
    if _world.gradients is None:
        _world.gradients = _together(dist.new_group)
    return _world.gradients


class Pending:
    """A reduction of tensors of one dtype to their means over all processes, under way since it was made."""

    @torch.no_grad()
    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self.work = _together(
            dist.all_reduce, self.flat, group=_of_gradients(self.flat), async_op=True
        )

    @torch.no_grad()
    def wait(self) -> None:
        """Write the means into the tensors; on a GPU the host does not wait."""
        _together(self.work.wait)
        pieces = torch.split(self.flat.div_(world_size()), [t.numel() for t in self.tensors])
        shaped = [piece.view_as(t) for piece, t in zip(pieces, self.tensors, strict=True)]
        torch._foreach_copy_(self.tensors, shaped)


def average(tensors: list[Tensor]) -> None:
    """Average tensors of one dtype over all processes, in place and in one reduction."""
    if world_size() > 1 and tensors:
        Pending(tensors).wait()


@torch.no_grad()
def broadcast_state(module: nn.Module) -> None:
    """Copy rank 0's parameters and buffers to every process."""
    if world_size() > 1:
        for tensor in module.state_dict().values():
            value = tensor.contiguous()
            _together(dist.broadcast, value, 0)
            tensor.copy_(value)
