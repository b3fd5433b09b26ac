"""Examines this machine: what it has, what is wrong, and how to fix it."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from hexa.runtime.cores import usable_cores
from hexa.runtime.packages import install, processor_name, version

REQUIRED = (
    *(
        "torch",
        "torchvision",
        "timm",
        "numpy",
        "pillow",
        "pydantic",
        "pyyaml",
        "rich",
        "safetensors",
    ),
    *("pyarrow", "scikit-learn", "matplotlib", "jinja2", "tensorboard"),
)
_MODULES = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
_GIB = 1024**3
#: Image formats, and the feature of PIL that decodes each.
_FORMATS = {"JPEG": "jpg", "PNG": "zlib", "WEBP": "webp", "TIFF": "libtiff"}

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """One result. A failure means that hexa cannot work here, a warning that something is slow or missing."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def diagnose(folder: Path) -> list[Finding]:
    """Run all checks; `folder` is where runs would be written. Never raises: errors become findings."""
    plain = (_packages, _processor, _gpus, _convolutions, _precision, _decoders)
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        check.__name__.strip("_"): check for check in plain
    }
    checks["disk"] = partial(_disk, folder)
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.prefix}"
    findings = [Finding("python", "ok", where)]
    for name, check in checks.items():
        try:
            findings.extend(check())
        except Exception as error:  # broken installations raise all sorts of exceptions
            remedy = "fix the failures above first, then install again"
            elsewhere = "go to a folder you may write to, or use --out"
            findings.append(
                Finding(name, "failure", _line(error), elsewhere if name == "disk" else remedy)
            )
    return findings


def failed(findings: list[Finding]) -> bool:
    """Whether something essential does not work."""
    return any(finding.status == "failure" for finding in findings)


def _warned(name: str, found: str, remedy: str, wrong: bool = True) -> Finding:
    """A warning with its remedy if something is wrong, otherwise an ok finding."""
    return Finding(name, "warning", found, remedy) if wrong else Finding(name, "ok", found)


def _packages() -> Iterator[Finding]:
    versions = []
    for name in ("hexa", *REQUIRED):
        try:
            importlib.import_module(_MODULES.get(name, name))
            versions.append(f"{name} {version(name)}")
        except Exception as error:
            yield Finding(
                name,
                "failure",
                _line(error),
                f"install it again: {install('--force-reinstall', name)}",
            )
    yield Finding("packages", "ok", ", ".join(versions))


def _processor() -> Iterator[Finding]:
    import torch

    cores, threads, there = usable_cores(), torch.get_num_threads(), os.cpu_count() or 1
    found = f"{processor_name()}, usable cores: {cores}{f' of {there}' * (cores < there)}, threads of torch: {threads}"
    remedy = f"more threads than cores slow each other down: set OMP_NUM_THREADS={cores}"
    yield _warned("processor", found, remedy, threads > cores)


def _gpus() -> Iterator[Finding]:
    import torch

    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        yield Finding(
            f"gpu {number}", "ok", f"{properties.name}, {properties.total_memory / _GIB:.0f} GiB"
        )
    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = (
            f"it is built for CUDA {built}, newer than the driver?"
            if built
            else "it is built without CUDA"
        )
        blind = shutil.which("nvidia-smi") is not None
        found = (
            f"a driver is there but torch sees no GPU: {reason}"
            if blind
            else "none; small recipes run on a CPU"
        )
        remedy = "update the driver, or install a build of torch that fits it; `nvidia-smi` says which CUDA it supports"
        yield _warned("gpu", found, remedy, blind)


def _convolutions() -> Iterator[Finding]:
    """A forward and backward pass of a convolution on each device, in a form that hexa uses."""
    import torch

    for device in ("cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))):
        name, remedy = (
            f"convolution on {device}",
            "this build of torch does not support the device; install another",
        )
        try:
            images = torch.rand(4, 3, 16, 16, device=device, requires_grad=True)
            weights = torch.rand(8, 3, 3, 3, device=device)
            torch.nn.functional.conv2d(
                images.contiguous(memory_format=torch.channels_last), weights
            ).sum().backward()  # type: ignore[no-untyped-call]
            if images.grad is None or not images.grad.isfinite().all():
                raise RuntimeError("gradients are not finite")
            yield Finding(name, "ok", "works")
        except (RuntimeError, AssertionError) as error:
            yield Finding(name, "failure", _line(error), remedy)


def _precision() -> Iterator[Finding]:
    from hexa.runtime.precision import has_native_bf16, pick_device, resolve

    device = pick_device()
    native = "with" if has_native_bf16(device) else "without"
    yield Finding(
        "precision",
        "ok",
        f"{device} {native} native bf16; precision auto is {resolve('auto', device)}",
    )


def _decoders() -> Iterator[Finding]:
    import torch
    from PIL import features
    from torchvision.io import decode_image, encode_jpeg

    lacking = [name for name, feature in _FORMATS.items() if not features.check(feature)]
    works = ", ".join(name for name in _FORMATS if name not in lacking)
    status: Status = "failure" if {"JPEG", "PNG"} & set(lacking) else "warning" if lacking else "ok"
    remedy = "images in these formats count as corrupt; install pillow again" if lacking else ""
    yield Finding(
        "decoding with PIL",
        status,
        works + f"; without {', '.join(lacking)}" * bool(lacking),
        remedy,
    )
    try:
        decode_image(encode_jpeg(torch.zeros(3, 32, 32, dtype=torch.uint8)))
        yield Finding("decoding with torchvision", "ok", "JPEG")
    except Exception as error:
        remedy = "photographs are decoded by PIL instead, more slowly; install a torchvision that fits torch"
        yield _warned("decoding with torchvision", _line(error), remedy)


def _disk(folder: Path) -> Iterator[Finding]:
    with tempfile.TemporaryFile(dir=folder):
        free = shutil.disk_usage(folder).free
    remedy = "checkpoints of a ResNet-50 need about 1 GiB; make room, or use --out on another disk"
    yield _warned("disk", f"{free / _GIB:.1f} GiB free in {folder}", remedy, free < 2 * _GIB)
    if (shared := Path("/dev/shm")).is_dir():
        size = shutil.disk_usage(shared).total
        remedy = "loader processes hand images over through it; in a container, start it with --shm-size=2g"
        yield _warned("shared memory", f"{size / _GIB:.2f} GiB", remedy, size < _GIB // 4)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
