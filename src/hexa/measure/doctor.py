"""Diagnostics of this machine: versions, extras, cores and threads, devices, shared memory."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from hexa.runtime.packages import processor_name, versions
from hexa.runtime.resources import usable_cores

#: Extras, with a module of each.
_EXTRAS = {
    "onnx": "onnx",
    "hf": "datasets",
    "wandb": "wandb",
    "tiff": "tifffile",
    "heic": "pillow_heif",
    "jxl": "pillow_jxl",
    "detection": "faster_coco_eval",
}
_GIB = 1024**3


def facts() -> dict[str, str]:
    """Return the facts about this machine by name, in the order to print them."""
    installed = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module)]
    return {
        "python": f"{platform.python_version()} on {platform.platform()}, {sys.prefix}",
        "packages": ", ".join(f"{name} {found}" for name, found in versions().items()),
        "extras": ", ".join(installed) or "none",
        "processor": f"{processor_name()}, usable cores: {usable_cores()} of {os.cpu_count() or 1}",
        **_of_torch(),
        "shared memory": _shared_memory(),
    }


def _of_torch() -> dict[str, str]:
    """Return threads, devices and precision, or the error if torch cannot be imported."""
    try:
        import torch

        from hexa.runtime.precision import pick_device, resolve
    except Exception as error:  # a broken installation raises all sorts of exceptions
        return {"torch": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    devices = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    gpus = [f"{device.name}, {device.total_memory / _GIB:.0f} GiB" for device in devices]
    build = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return {
        "threads": f"torch uses {torch.get_num_threads()}; OMP_NUM_THREADS sets another number",
        "devices": f"{'; '.join(gpus) or 'no GPU'} ({build})",
        "precision": f"auto is {resolve('auto', pick_device())}",
    }


def _shared_memory() -> str:
    if not (folder := Path("/dev/shm")).is_dir():
        return "none"
    return f"{shutil.disk_usage(folder).total / _GIB:.2f} GiB"
