"""Devices and precision: fp32 or bf16 autocast, never fp16 (F18)."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from hexa.config import UserError, reason
from hexa.runtime.resources import keep_freed_memory

Precision = Literal["auto", "fp32", "bf16"]
Network = TypeVar("Network", bound=nn.Module)


def pick_device(name: str = "auto") -> torch.device:
    """Return the device: `auto` is this process's GPU if there is one, otherwise the CPU. Raises
    UserError if unavailable.

    Also configures the process's memory (`keep_freed_memory`), because all computations call this
    first.
    """
    keep_freed_memory()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device '{name}' is not known to torch; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device 'cuda' is not available; use auto or cpu; `hexa doctor` shows the "
            "devices of this machine"
        )
    if device.type == "cuda":
        if device.index is None:  # one process per GPU
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        count = torch.cuda.device_count()
        if device.index >= count:
            raise UserError(
                f"device '{device}' is not available: this machine has {count} GPUs; start "
                f"at most {count} processes on it"
            )
    elif device.type != "cpu":
        try:
            torch.zeros(1, device=device).item()
        except Exception as error:  # each kind of device raises other exceptions
            raise UserError(
                f"device '{name}' cannot be used here ({reason(error)}); use auto, cpu or cuda"
            ) from None
    return device


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Return the tensor in fp32, or unchanged if it is fp64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def place(network: Network, device: torch.device) -> Network:
    """Move the network to the device, with four-dimensional weights in channels_last; return it.

    `Module.to(memory_format=…)` would fail for five-dimensional weights, which have no such layout.
    """
    network.to(device)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return network


def to_device(
    values: Tensor,
    device: torch.device,
) -> Tensor:
    """Copy to the device without waiting for the copy."""
    pinned = values.pin_memory() if device.type == "cuda" and not values.is_cuda else values
    return pinned.to(device, non_blocking=True)


def has_native_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies bf16 in hardware; elsewhere bf16 is slower than fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        with suppress(OSError):
            flags = Path("/proc/cpuinfo").read_text()
            return "avx512_bf16" in flags or "amx_bf16" in flags or "bf16" in flags.split()
    return False


def resolve(
    precision: Precision, device: torch.device, learns: nn.Module | None = None
) -> Literal["fp32", "bf16"]:
    """Resolve `auto` to bf16 if the hardware supports it, except for training depthwise
    convolutions on a CPU.

    On a CPU their gradients take two to three times as long in bf16 as in fp32.
    learns: the network, if it is trained.
    """
    if precision != "auto":
        return precision
    if not has_native_bf16(device):
        return "fp32"
    if learns is not None and device.type == "cpu":
        for module in learns.modules():
            # depthwise convolutions, as in EfficientNets and MobileNets
            if isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1:
                return "fp32"
    return "bf16"


def autocast(
    precision: Literal["fp32", "bf16"], device: torch.device
) -> AbstractContextManager[object]:
    """Return the context for forward passes."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
