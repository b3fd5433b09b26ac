"""Devices and precision: fp32 or bf16 autocast, never fp16 (F18)."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import nn

from hexa.config import UserError, reason
from hexa.runtime.allocator import keep_freed_memory

Precision = Literal["auto", "fp32", "bf16"]
Network = TypeVar("Network", bound=nn.Module)


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is this process's GPU if there is one, otherwise the CPU. Raises UserError for an unavailable device.

    Whatever computes asks here first, so the process's memory is set up here too (`keep_freed_memory`).
    """
    keep_freed_memory()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device '{name}' is not known to torch; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        remedy = "`hexa doctor` says what this machine has, auto or cpu runs anywhere"
        raise UserError(f"device 'cuda' is not available; {remedy}")
    if device.type == "cuda" and device.index is None:
        device = torch.device(
            "cuda", int(os.environ.get("LOCAL_RANK", "0"))
        )  # one process for each GPU
    if device.type == "cuda" and device.index >= (count := torch.cuda.device_count()):
        seen = f"{count} GPUs are seen; start at most {count} processes on a machine"
        raise UserError(f"device '{device}' is not available: {seen}")
    if device.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=device).item()
        except (
            Exception
        ) as error:  # each kind of device fails in its own way: not built in, without data
            raise UserError(
                f"device '{name}' cannot be used here ({reason(error)}); use auto, cpu or cuda"
            ) from None
    return device


def place(network: Network, device: torch.device) -> Network:
    """The network, moved to the device, its weights of four dimensions in channels_last.

    `Module.to(memory_format=…)` does the same, but fails at weights of five dimensions, which torch cannot lay out so.
    """
    network.to(device)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return network


def has_native_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 in hardware; elsewhere bf16 is slower than fp32."""
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
    """`auto` is bf16 if the hardware supports it, except for training depthwise convolutions on a CPU.

    Their gradients take two to three times as long in bf16 as in fp32 there. learns: the network, if it is trained.
    """
    if precision != "auto":
        return precision
    trained = learns.modules() if learns is not None and device.type == "cpu" else ()
    # with a group for each of their channels, as in EfficientNets and MobileNets
    slow = any(
        isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1
        for module in trained
    )
    return "bf16" if has_native_bf16(device) and not slow else "fp32"


def autocast(
    precision: Literal["fp32", "bf16"], device: torch.device
) -> AbstractContextManager[object]:
    """The context in which forward passes run."""
    return (
        nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=torch.bfloat16)
    )
