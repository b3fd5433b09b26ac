"""Peak memory of a piece of work: from a GPU's allocator, or on a CPU the bytes of live tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: How memory is measured, by device type.
MEASURE = {
    "cuda": "torch.cuda.max_memory_allocated",
    "cpu": "largest sum of live tensors' bytes, by dispatch",
}


def peak_bytes(work: Callable[[], object], device: torch.device, standing: Iterable[Tensor]) -> int:
    """Peak memory of tensors in bytes while `work` runs, including `standing` ones (weights, queue …).

    On CUDA this is the allocator's figure. On a CPU the outputs of all operations are tracked until they are freed, so
    that tensors kept by autograd count; scratch space inside an operation does not.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device))
    before = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in standing
    }
    with _LiveBytes() as live:
        work()
    return int(sum(before.values()) + live.peak)


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations create, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for tensor in _tensors((args, kwargs)):  # a storage first seen as an input existed before
            self._follow(tensor, 0)
        out = function(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._follow(tensor, tensor.untyped_storage().nbytes())
        return out

    def _follow(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = size
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
