"""What this machine has, what is wrong with it, and how to mend it."""

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

from hexa.runtime.cores import crowding, usable_cores
from hexa.runtime.packages import install, version

REQUIRED = (
    *("torch", "torchvision", "timm", "numpy", "pillow", "pydantic", "pyyaml", "rich", "safetensors"),
    *("pyarrow", "scikit-learn", "matplotlib", "jinja2", "tensorboard"),
)
_MODULES = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
_GIB = 1024**3


@dataclass(frozen=True)
class Finding:
    """One thing looked at. A failure means that hexa can't work here; a warning that something is slow or lacking."""

    name: str
    status: Literal["ok", "warning", "failure"]
    found: str
    remedy: str = ""


def diagnose(folder: Path) -> list[Finding]:
    """Look at everything; `folder` is where runs would be written. Never raises: what breaks is a finding."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        *(_python, _packages, _processor, _gpus, _precision, _decoders),
        lambda: _storage(folder),
    ]
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check())
        except Exception as error:  # a broken installation breaks in ways of its own
            name = getattr(check, "__name__", "storage").strip("_<>")
            findings.append(Finding(name, "failure", _line(error), "mend the failures above first, then install again"))
    return findings


def failed(findings: list[Finding]) -> bool:
    """Whether something essential doesn't work."""
    return any(finding.status == "failure" for finding in findings)


def _python() -> Iterator[Finding]:
    old = sys.version_info < (3, 11)
    remedy = "use Python 3.11 or newer" if old else ""
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.prefix}"
    yield Finding("python", "failure" if old else "ok", where, remedy)


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
    found = f"{_processor_name()}, {cores} usable cores{f' of {there}' * (cores < there)}, torch uses {threads} threads"
    crowded = crowding(threads)
    if threads > cores:
        remedy = f"more threads than cores slow each other down: set OMP_NUM_THREADS={cores}"
        yield Finding("processor", "warning", found, remedy)
    elif crowded is not None:
        yield Finding("processor", "warning", f"{found}; {crowded[0]}", crowded[1])
    elif (
        threads < cores
        and "OMP_NUM_THREADS" in os.environ
        and int(os.environ.get("WORLD_SIZE", "1")) == 1
        and crowding(cores) is None
    ):
        yield Finding("processor", "warning", found, "OMP_NUM_THREADS leaves cores idle; unset it")
    else:
        yield Finding("processor", "ok", found)
    yield _works(torch.device("cpu"))


def _gpus() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi"):
            built = torch.version.cuda
            reason = f"it is built for CUDA {built}, newer than the driver?" if built else "it is built without CUDA"
            remedy = "update the driver, or install the build of torch that fits it; `nvidia-smi` says what it serves"
            yield Finding("gpu", "warning", f"a driver is installed but torch sees no GPU: {reason}", remedy)
        else:
            yield Finding("gpu", "ok", "none; small recipes run on the processor")
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        yield Finding(f"gpu {number}", "ok", f"{properties.name}, {properties.total_memory / _GIB:.0f} GiB")
        yield _works(torch.device("cuda", number))


def _works(device: object) -> Finding:
    """A forward and backward pass of a convolution on the device, in a form hexa uses."""
    import torch

    try:
        images = torch.rand(4, 3, 16, 16, device=device, requires_grad=True)  # type: ignore[call-overload]
        weights = torch.rand(8, 3, 3, 3, device=device)  # type: ignore[call-overload]
        torch.nn.functional.conv2d(images.contiguous(memory_format=torch.channels_last), weights).sum().backward()  # type: ignore[no-untyped-call]
        fine = images.grad is not None and bool(torch.isfinite(images.grad).all())
    except RuntimeError as error:
        remedy = "this build of torch doesn't serve the device; install one that does"
        return Finding(f"convolution on {device}", "failure", _line(error), remedy)
    remedy = "" if fine else "gradients are not finite: test the device's memory, or another build of torch"
    return Finding(f"convolution on {device}", "ok" if fine else "failure", "works" if fine else "wrong", remedy)


def _precision() -> Iterator[Finding]:
    from hexa.runtime.precision import has_native_bf16, pick_device, resolve

    device = pick_device()
    native = has_native_bf16(device)
    found = f"{device} {'has' if native else 'has no'} native bf16; precision auto is {resolve('auto', device)} there"
    yield Finding("precision", "ok", found)


def _decoders() -> Iterator[Finding]:
    import torch
    from PIL import Image, features
    from torchvision.io import ImageReadMode, decode_image

    image = Image.new("RGB", (32, 32), (10, 200, 30))
    works, lacking = [], []
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"):
        try:
            buffer = io.BytesIO()
            image.save(buffer, kind)
            Image.open(io.BytesIO(buffer.getvalue())).convert("RGB").getpixel((5, 5))
            works.append(kind)
        except (OSError, KeyError):
            lacking.append(kind)
    essential = {"JPEG", "PNG"} & set(lacking)
    turbo = ", libjpeg-turbo" if features.check_feature("libjpeg_turbo") else ""
    remedy = "images in these formats count as corrupt; install pillow again" if lacking else ""
    without = f"; without {', '.join(lacking)}" if lacking else ""
    status: Literal["ok", "warning", "failure"] = "failure" if essential else "warning" if lacking else "ok"
    yield Finding("decoding with PIL", status, ", ".join(works) + turbo + without, remedy)

    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    try:
        decoded = decode_image(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8), ImageReadMode.RGB)
        assert decoded.shape == (3, 32, 32)
        yield Finding("decoding with torchvision", "ok", "JPEG")
    except Exception as error:
        remedy = "photographs are decoded by PIL instead, more slowly; a torchvision that fits torch mends it"
        yield Finding("decoding with torchvision", "warning", _line(error), remedy)


def _storage(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Finding("disk", "failure", f"{folder}: {_line(error)}", "go to a folder you may write to, or use --out")
        return
    short = free < 2 * _GIB
    remedy = "checkpoints of a ResNet-50 need about 1 GiB; make room, or use --out on another disk" if short else ""
    yield Finding("disk", "warning" if short else "ok", f"{free / _GIB:.1f} GiB free in {folder}", remedy)
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        remedy = "loader processes hand images over through it; in a container, start it with --shm-size=2g"
        small = size < _GIB // 4
        found = f"{size / _GIB:.2f} GiB"
        yield Finding("shared memory", "warning" if small else "ok", found, remedy if small else "")


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
