"""A stand-in for a GPU: CPU tensors that claim to be on another device, on a machine that needs to have none.

Values are computed on the CPU, so a step runs as it does anywhere. What a GPU would refuse is an error here: tensors of
two devices in one operation, a generator of the wrong device. What would make the host wait for a GPU is counted.

The device is called `meta`, because torch can differentiate there without a driver.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hexa.runtime.random import Stream

DEVICE = torch.device("meta")
CPU = torch.device("cpu")

aten = torch.ops.aten
_COPIES = {aten._to_copy.default, aten.copy_.default}
#: Besides pointwise operations, these accept a tensor of no dimensions on the CPU as a number.
_TAKE_NUMBERS = {
    aten.index_put,
    aten.index_put_,
    aten.masked_fill,
    aten.masked_fill_,
    aten.fill,
    aten.fill_,
}
_INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
#: How torch marks operations whose result the host must read, or whose shape it must learn.
_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class WrongDeviceError(AssertionError):
    """An operation that a GPU would refuse."""


class OnDevice(Tensor):
    """A tensor on DEVICE; its values are those of `elem`, which is on the CPU."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor) -> OnDevice:
        layout = elem.shape, elem.stride(), elem.storage_offset()
        made = Tensor._make_wrapper_subclass(cls, *layout, dtype=elem.dtype, device=DEVICE)
        made.elem = elem
        return made

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.elem!r})"

    def tolist(self) -> Any:  # torch's own accepts no sub-class
        return self.cpu().tolist()

    def new_tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=DEVICE)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert StandIn.active is not None, f"{function} of the stand-in's tensors outside of it"
        return StandIn.active.compute(function, args, kwargs or {})


class StandIn(TorchDispatchMode):
    """waits: operations for which the host would have waited, by operation and line of hexa; if `captured`, also
    operations with numbers of the host, which a CUDA graph would repeat for ever."""

    active: StandIn | None = None
    #: In the place of FakeTensorMode, inside which torch looks for no driver.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.seeds: set[int] = set()
        self.captured = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.compute(function, args, kwargs or {})

    def compute(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in _leaves((*args, *kwargs.values())) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        escaped = [
            tensor
            for tensor in tensors
            if tensor.device == DEVICE and not isinstance(tensor, OnDevice)
        ]
        assert not escaped, (
            f"{function} of a tensor without values: some function of torch evades the stand-in"
        )
        if self.captured and len(ours) < len(tensors):
            self._wait(f"{function} of numbers of the host")
        asked = kwargs.get("device")
        target = (DEVICE if ours else CPU) if asked is None else torch.device(asked)
        if function in _COPIES:
            target = args[0].device if function is aten.copy_.default else target
            self._copy(function, args, kwargs, target)
        else:
            self._check(function, args, kwargs, tensors, target)
        plain = {name: _mapped(_elem, value) for name, value in kwargs.items()}
        if asked is not None:
            plain["device"] = CPU
        out = function(*_mapped(_elem, args), **plain)
        if target != DEVICE:
            return out
        known = {
            id(tensor.elem): tensor for tensor in ours
        }  # an operation in place returns what it was given
        return _mapped(lambda leaf: known[id(leaf)] if id(leaf) in known else _on_device(leaf), out)

    def _copy(self, function: Any, args: Any, kwargs: dict[str, Any], target: torch.device) -> None:
        """Check a copy: a copy to the device waits unless it is non-blocking; a copy to the host
        always waits."""
        source = args[1 if function is aten.copy_.default else 0]
        patient = kwargs.get("non_blocking", False) or args[2:3] == (True,)
        if source.device != target and not (patient and target == DEVICE):
            self._wait(f"copy from {source.device} to {target}")

    def _check(
        self, function: Any, args: Any, kwargs: Any, tensors: list[Tensor], target: torch.device
    ) -> None:
        generator = kwargs.get("generator")
        if generator is not None and (generator.initial_seed() in self.seeds) != (target == DEVICE):
            raise WrongDeviceError(f"{function} on {target} with a generator of another device")
        if not any(isinstance(tensor, OnDevice) for tensor in tensors):
            return
        packet = function.overloadpacket
        indices = [index for index in args[1] if index is not None] if packet in _INDEX else []
        takes_numbers = packet in _TAKE_NUMBERS or torch.Tag.pointwise in function.tags
        for tensor in tensors:
            if any(tensor is index for index in indices):
                if not isinstance(tensor, OnDevice):
                    self._wait(f"{function} with an index on the CPU")
            elif not isinstance(tensor, OnDevice) and not (takes_numbers and tensor.ndim == 0):
                listed = ", ".join(f"{tensor.device} {list(tensor.shape)}" for tensor in tensors)
                raise WrongDeviceError(f"{function} of tensors on two devices: {listed}")
        if indices:
            # of a mask the host must learn how many it selects, unless all of them get one number
            fills = packet in _TAKE_NUMBERS and args[2].numel() == 1
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices) and not fills:
                self._wait(f"{function} with a mask")
        elif _WAITS & set(function.tags):
            self._wait(str(function))

    def _wait(self, what: str) -> None:
        frame: Any = sys._getframe()
        while frame is not None and "/hexa/" not in frame.f_code.co_filename:
            frame = frame.f_back
        where = (
            ""
            if frame is None
            else f", {frame.f_code.co_filename.rpartition('/hexa/')[2]}:{frame.f_lineno}"
        )
        self.waits[what + where] += 1


class Autocast(torch.autocast):
    """On the stand-in everything is in fp32: torch has no autocast for its device."""

    def __init__(self, device_type: str, *given: Any, **options: Any) -> None:
        super().__init__(CPU.type if device_type == DEVICE.type else device_type, *given, **options)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values in the arguments of an operation; torch's own function takes ten times as
    long."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(change, part) for part in value)
    return change(value)


def _elem(leaf: Any) -> Any:
    return leaf.elem if isinstance(leaf, OnDevice) else leaf


def _on_device(leaf: Any) -> Any:
    return OnDevice(leaf) if isinstance(leaf, Tensor) else leaf


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Inside the context DEVICE is the stand-in, for new tensors, `to`, and generators of streams."""
    mode = StandIn()
    generator = Stream.generator
    enabled = torch.is_autocast_enabled
    tensor = torch.tensor

    def generator_of(stream: Stream, device: torch.device | str = CPU) -> torch.Generator:
        if torch.device(device) != DEVICE:
            return generator(stream)
        seed = stream.child(DEVICE.type).integer()
        mode.seeds.add(seed)
        return torch.Generator().manual_seed(seed)

    def tensor_of(values: Any, *, device: Any = CPU, **options: Any) -> Tensor:
        return tensor(values, **options).to(
            device or CPU
        )  # a tensor of numbers is made on the host

    overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(
        True
    )  # a parameter can't become another class
    try:
        with pytest.MonkeyPatch.context() as patch, mode:
            patch.setattr(Stream, "generator", generator_of)
            patch.setattr(StandIn, "active", mode)
            patch.setattr(torch, "tensor", tensor_of)
            patch.setattr(torch, "autocast", Autocast)
            patch.setattr(
                torch, "is_autocast_enabled", lambda kind: kind != DEVICE.type and enabled(kind)
            )
            yield mode
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwritten)
