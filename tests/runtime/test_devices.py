"""Devices and precision; missing processes and devices give one line, no traceback."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import timm
import torch
from torch import nn

from hexa.config import UserError
from hexa.runtime import precision, processes
from hexa.runtime.precision import pick_device
from tests.modules import unchanged


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:3"])
def test_process_gpu_count(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """More processes than GPUs are refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(UserError, match=r"'cuda:3' .* 2 GPUs; start at most 2 processes"):
        pick_device(name)


@pytest.mark.parametrize("name", ["meta", "mps", "xpu"])
def test_unsupported_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without data or support is refused."""
    if name != "meta":  # which some machine has
        monkeypatch.setattr(
            torch, "zeros", Mock(side_effect=AssertionError("Torch not compiled with it enabled"))
        )
    with pytest.raises(
        UserError, match=f"^device '{name}' cannot be used here .*; use auto, cpu or cuda$"
    ):
        pick_device(name)


def test_world_size_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of processes without torchrun is refused."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="RANK"):
        processes.initialize(torch.device("cpu"))


def test_depthwise_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Depthwise networks learn in fp32 on a CPU and are used in bf16."""
    monkeypatch.setattr(precision, "has_native_bf16", lambda device: True)
    cpu = torch.device("cpu")
    gpu = torch.device("cuda")
    with torch.device("meta"):
        depthwise = timm.create_model("tf_efficientnet_lite0")
        grouped = timm.create_model("resnext50_32x4d")
        one_channel = nn.Conv2d(1, 8, 3)
    assert precision.resolve("auto", cpu, depthwise) == "fp32"
    assert precision.resolve("bf16", cpu, depthwise) == "bf16"  # as asked
    for device, network in ((gpu, depthwise), (cpu, None), (cpu, grouped), (cpu, one_channel)):
        assert precision.resolve("auto", device, network) == "bf16"
    assert precision.resolve("fp32", gpu) == "fp32"


def test_channels_last_placement() -> None:
    """Weights of four dimensions become channels-last; those of five stay."""
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv3d(1, 4, 3))
    with unchanged(network):
        assert precision.place(network, torch.device("cpu")) is network
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert network[2].weight.is_contiguous()
