"""Examines this machine: what it has, what is wrong, and how to fix it."""

from __future__ import annotations

import importlib
import io
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hexa.runtime.cores import usable_cores
from hexa.runtime.packages import install, processor_name, version

REQUIRED = (
    *("torch", "torchvision", "timm", "numpy", "pillow", "pydantic", "pyyaml", "rich", "safetensors"),
    *("pyarrow", "scikit-learn", "matplotlib", "jinja2", "tensorboard"),
)
_MODULES = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
_GIB = 1024**3


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
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "python": _python,
        "packages": _packages,
        "processor": _processor,
        "gpus": _gpus,
        "precision": _precision,
        "decoders": _decoders,
        "storage": lambda: _storage(folder),
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings.extend(check())
        except Exception as error:  # broken installations raise all sorts of exceptions
            findings.append(Finding(name, "failure", _line(error), "fix the failures above first, then install again"))
    return findings


def failed(findings: list[Finding]) -> bool:
    """Whether something essential does not work."""
    return any(finding.status == "failure" for finding in findings)


def _warned(name: str, found: str, remedy: str, wrong: bool = True) -> Finding:
    """A warning with its remedy if something is wrong, otherwise an ok finding."""
    return Finding(name, "warning", found, remedy) if wrong else Finding(name, "ok", found)


def _python() -> Iterator[Finding]:
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.prefix}"
    old = sys.version_info < (3, 11)
    yield Finding("python", "failure" if old else "ok", where, "use Python 3.11 or newer" if old else "")


def _packages() -> Iterator[Finding]:
    versions, broken = [], []
    for name in ("hexa", *REQUIRED):
        try:
            importlib.import_module(_MODULES.get(name, name))
            versions.append(f"{name} {version(name)}")
        except Exception as error:
            remedy = f"install it again: {install('--force-reinstall', name)}"
            broken.append(Finding(name, "failure", _line(error), remedy))
    yield Finding("packages", "ok" if versions else "failure", ", ".join(versions))
    yield from broken


def _processor() -> Iterator[Finding]:
    import torch

    cores, threads, there = usable_cores(), torch.get_num_threads(), os.cpu_count() or 1
    limited = f" of {there}" * (cores < there)
    found = f"{processor_name()}, {cores} usable cores{limited}, torch uses {threads} threads"
    remedy = f"more threads than cores slow each other down: set OMP_NUM_THREADS={cores}"
    yield _warned("processor", found, remedy, threads > cores)
    yield _works(torch.device("cpu"))


def _gpus() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            yield Finding(f"gpu {number}", "ok", f"{properties.name}, {properties.total_memory / _GIB:.0f} GiB")
            yield _works(torch.device("cuda", number))
    elif shutil.which("nvidia-smi"):
        built = torch.version.cuda
        reason = f"it is built for CUDA {built}, newer than the driver?" if built else "it is built without CUDA"
        remedy = "update the driver, or install a build of torch that fits it; `nvidia-smi` says which CUDA it supports"
        yield _warned("gpu", f"a driver is installed but torch sees no GPU: {reason}", remedy)
    else:
        yield Finding("gpu", "ok", "none; small recipes run on the processor")


def _works(device: object) -> Finding:
    """A forward and backward pass of a convolution on the device, in a form hexa uses."""
    import torch

    name = f"convolution on {device}"
    try:
        images = torch.rand(4, 3, 16, 16, device=device, requires_grad=True)  # type: ignore[call-overload]
        weights = torch.rand(8, 3, 3, 3, device=device)  # type: ignore[call-overload]
        torch.nn.functional.conv2d(images.contiguous(memory_format=torch.channels_last), weights).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return Finding(
            name, "failure", _line(error), "this build of torch does not support the device; install another"
        )
    if images.grad is None or not torch.isfinite(images.grad).all():
        remedy = "gradients are not finite: test the device's memory, or another build of torch"
        return Finding(name, "failure", "wrong", remedy)
    return Finding(name, "ok", "works")


def _precision() -> Iterator[Finding]:
    from hexa.runtime.precision import has_native_bf16, pick_device, resolve

    device = pick_device()
    native = "with" if has_native_bf16(device) else "without"
    yield Finding("precision", "ok", f"{device} {native} native bf16; precision auto is {resolve('auto', device)}")


def _decoders() -> Iterator[Finding]:
    import torch
    from PIL import Image, features
    from torchvision.io import ImageReadMode, decode_image

    def encoded(kind: str) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32), (10, 200, 30)).save(buffer, kind)
        return buffer.getvalue()

    works, lacking = [], []
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"):
        try:
            Image.open(io.BytesIO(encoded(kind))).convert("RGB").getpixel((5, 5))
            works.append(kind)
        except (OSError, KeyError):
            lacking.append(kind)
    turbo = ", libjpeg-turbo" if features.check_feature("libjpeg_turbo") else ""
    without = f"; without {', '.join(lacking)}" if lacking else ""
    status: Status = "failure" if {"JPEG", "PNG"} & set(lacking) else "warning" if lacking else "ok"
    remedy = "images in these formats count as corrupt; install pillow again" if lacking else ""
    yield Finding("decoding with PIL", status, ", ".join(works) + turbo + without, remedy)
    try:
        decoded = decode_image(torch.frombuffer(bytearray(encoded("JPEG")), dtype=torch.uint8), ImageReadMode.RGB)
        assert decoded.shape == (3, 32, 32)
        yield Finding("decoding with torchvision", "ok", "JPEG")
    except Exception as error:
        remedy = "photographs are decoded by PIL instead, more slowly; install a torchvision that fits torch"
        yield _warned("decoding with torchvision", _line(error), remedy)


def _storage(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Finding("disk", "failure", f"{folder}: {_line(error)}", "go to a folder you may write to, or use --out")
        return
    remedy = "checkpoints of a ResNet-50 need about 1 GiB; make room, or use --out on another disk"
    yield _warned("disk", f"{free / _GIB:.1f} GiB free in {folder}", remedy, free < 2 * _GIB)
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        remedy = "loader processes hand images over through it; in a container, start it with --shm-size=2g"
        yield _warned("shared memory", f"{size / _GIB:.2f} GiB", remedy, size < _GIB // 4)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
