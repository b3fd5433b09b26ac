"""The calls of torch in a step; a CUDA graph repeats exactly these calls on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

#: Tags of calls whose result, or the shape of the result, is read by the host.
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
#: Reading and writing at indices or by a mask.
_INDEXING = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_}
#: Types of masks; the second one is deprecated.
_MASKS = {torch.bool, torch.uint8}
#: Creates a tensor from numbers of the host.
_FROM_HOST = torch.ops.aten.lift_fresh.default


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, record each call with its arguments: the layout of a tensor, the value of
    anything else. `replay` repeats the calls on the same tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, ...]] = []
        self._repeated: list[tuple[Callable[[], Any], Any]] = []
        #: Calls for which the host would wait.
        self.reads: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if function.namespace != "profiler":
            with _disable_current_modes():
                written = [_written(leaf) for leaf in tree_leaves((args, given))]
            self.calls.append((str(function), *written))
            if _reads(function, args):
                self.reads.append(str(function))
        result = function(*args, **given)
        self._repeated.append((partial(function, *args, **given), result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Repeat the calls of torch, without the Python code around them, as a CUDA graph does."""
        for call, before in self._repeated:
            for old, new in zip(tree_leaves(before), tree_leaves(call()), strict=True):
                # a result that is a part of another tensor has the new values already
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _reads(function: Any, args: Any) -> bool:
    """Return whether the host waits for a result, or for a copy of its own numbers. Indexing makes
    it wait only for a mask."""
    if function.overloadpacket in _INDEXING:
        return any(index is not None and index.dtype in _MASKS for index in args[1])
    return function is _FROM_HOST or bool(_READS & set(function.tags))


def _written(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return f"{leaf.dtype} {tuple(leaf.shape)} {leaf.stride()}"
