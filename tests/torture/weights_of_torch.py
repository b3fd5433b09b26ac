"""Checkpoints of torch and folders of runs: damaged, made by hand, or made to harm. Each entry makes one."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hexa.weights.pretrained import random_backbone, save_backbone
from tests.torture.weights import HTML, LFS, SMALL, itself, method_state, run_of, text

EFFICIENT = ("_conv_stem.weight", "_blocks.x", "_blocks.².a.b", "_blocks.1", f"_blocks.{'9' * 100}._bn0.x")
# -- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoint(make: Callable[[], Any]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.save(make(), folder / "x.pth")
        return folder / "x.pth"

    return write


def _with(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Path], Path]:
    """A run whose checkpoint has one odd tensor in the network."""

    def write(folder: Path) -> Path:
        state = method_state()
        state[f"query.backbone.{name}"] = change(state[f"query.backbone.{name}"])
        path = run_of(folder / "run") / "checkpoints" / "step-00000003.pt"
        torch.save({"method": state}, path)
        return path

    return write


def _two_turns() -> Any:
    first: dict[str, Any] = {}
    first["state_dict"] = {"model": first}
    return first


def _deep(levels: int) -> Any:
    found: Any = {"conv1.weight": torch.ones(1)}
    for _ in range(levels):
        found = {"model": found}
    return found


def _doubled(levels: int) -> Any:
    found: Any = [torch.ones(1)]
    for _ in range(levels):
        found = [found, found]
    return {"state_dict": {"conv1.weight": torch.ones(1)}, "x": found}


def _compressed(folder: Path, change: Callable[[str, bytes], bytes] = lambda name, content: content) -> Path:
    """torch's file packed again by deflate."""
    content = io.BytesIO()
    torch.save({"state_dict": {"conv1.weight": torch.zeros(64, 3, 7, 7)}}, content)
    with (
        zipfile.ZipFile(content) as old,
        zipfile.ZipFile(folder / "x.pth", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return folder / "x.pth"


def _bomb(folder: Path) -> Path:
    """400 MB in 2 MB."""
    return _compressed(folder, lambda name, content: bytes(4 * 10**8) if name.endswith("data/0") else content)


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "holds itself": checkpoint(lambda: itself("state_dict", torch.ones(1))),
    "holds itself after two turns": checkpoint(_two_turns),
    "a hundred thousand levels": text(b"\x80\x02" + b"}U\x05model" * 100_000 + b"}" + b"s" * 100_000 + b"."),
    "a hundred levels": checkpoint(lambda: _deep(100)),
    "a list of 2^60 entries": checkpoint(lambda: _doubled(60)),
    "a tensor of 10^18 numbers": checkpoint(lambda: {"conv1.weight": torch.ones(1).expand(10**9, 10**9)}),
    "a stem of 10^12 numbers": checkpoint(lambda: {"conv1.weight": torch.ones(1).expand(10**6, 10**6, 3, 3)}),
    "not a number": _with("conv1.weight", lambda value: value * float("nan")),
    "infinite": _with("layer1.0.bn1.running_var", lambda value: value / 0),
    "double precision": _with("conv1.weight", Tensor.double),
    "bfloat16": _with("conv1.weight", Tensor.bfloat16),
    "half precision": _with("conv1.weight", Tensor.half),
    "whole numbers": _with("conv1.weight", Tensor.int),
    "truth values": _with("conv1.weight", Tensor.bool),
    "complex": _with("conv1.weight", lambda value: value.to(torch.complex64)),
    "sparse": _with("conv1.weight", Tensor.to_sparse),
    "quantized": _with("conv1.weight", lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.quint8)),
    "of shapes alone": _with("conv1.weight", lambda value: value.to("meta")),
    "nested": _with("conv1.weight", lambda value: torch.nested.nested_tensor([value])),
    "of no elements": _with("conv1.weight", lambda value: value[:0]),
    "of no dimensions": _with("conv1.weight", lambda value: value.sum()),
    "of another shape": _with("conv1.weight", lambda value: value.flatten()),
    "expanded": _with("conv1.weight", lambda value: torch.ones(()).expand(value.shape)),
    "turned": _with("conv1.weight", lambda value: value.transpose(2, 3)),
    "names that are half letters": checkpoint(lambda: {"\ud800.conv1.weight": torch.ones(4, 3, 3, 3)}),
    "names that are no text": checkpoint(lambda: {3: torch.ones(1), (1, 2): torch.ones(1)}),
    "names of a million letters": checkpoint(lambda: {"n" * 1_000_000: torch.ones(1)}),
    "names with terminal codes": checkpoint(lambda: {"\x1b[2J.weight": torch.ones(1)}),
    "efficientnet's names, broken": checkpoint(
        lambda: {"_conv_stem.weight": torch.ones(1), "_blocks.x": torch.ones(1)}
    ),
    "efficientnet's names, no number": checkpoint(
        lambda: {"_conv_stem.weight": torch.ones(1), "_blocks.².a.b": torch.ones(1)}
    ),
    "vissl's names, broken": checkpoint(lambda: {"_feature_blocks.": torch.ones(1)}),
    "detectron2's names, broken": checkpoint(lambda: {"stem.conv1.weight": torch.ones(1), "res9": torch.ones(1)}),
    "lightly's names, broken": checkpoint(lambda: {f"backbone.{'9' * 5000}.0.conv1.weight": torch.ones(1)}),
    "a stem of one dimension": checkpoint(lambda: {"conv1.weight": torch.ones(3)}),
    "no tensors": checkpoint(lambda: {"state_dict": {"a": 1}}),
    "a list": checkpoint(lambda: [torch.ones(1)]),
    "a tensor alone": checkpoint(lambda: torch.ones(1)),
    "compressed": _compressed,
    "a zip bomb": _bomb,
    "an empty zip": text(b"PK\x05\x06" + bytes(18)),
    "a page of an error": text(HTML),
    "a pointer of git": text(LFS),
    "nothing": text(b""),
    "a page named safetensors": text(HTML, "x.safetensors"),
    "a pointer named safetensors": text(LFS, "x.safetensors"),
    "nothing named safetensors": text(b"", "x.safetensors"),
    "a page named pkl": text(HTML, "x.pkl"),
    "nothing named pkl": text(b"", "x.pkl"),
}


BACKBONE = "backbone.safetensors"

# -- folders of runs --------------------------------------------------------------------------------------------------


def run(change: Callable[[Path], Any], **fields: Any) -> Callable[[Path], Path]:
    """A run in whose folder something is done."""

    def make(folder: Path) -> Path:
        made = run_of(folder / "run", **fields)
        change(made)
        return made

    return make


def _config(content: str) -> Callable[[Path], Path]:
    return run(lambda folder: (folder / "config.yaml").write_text(content))


def _cut(folder: Path) -> None:
    path = folder / BACKBONE
    save_backbone(random_backbone(SMALL, 16), path)
    path.write_bytes(path.read_bytes()[:5000])


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{n}: &{n} [*{m}, *{m}]\n" for m, n in zip("abcdefghij", "bcdefghijk", strict=True)
)
RUNS: dict[str, Callable[[Path], Path]] = {
    "a backbone cut short": run(_cut),
    "a backbone that is a page": run(lambda folder: (folder / BACKBONE).write_bytes(HTML)),
    "a backbone that is a folder": run(lambda folder: (folder / BACKBONE).mkdir()),
    "a backbone that is a pipe": run(lambda folder: os.mkfifo(folder / BACKBONE)),
    "a backbone that is a link to itself": run(lambda folder: (folder / BACKBONE).symlink_to(BACKBONE)),
    "a checkpoint that is a folder": run(lambda folder: (folder / "checkpoints" / "step-00000009.pt").mkdir()),
    "a checkpoint that is a pipe": run(lambda folder: os.mkfifo(folder / "checkpoints" / "step-00000009.pt")),
    "a checkpoint of no step": run(lambda folder: (folder / "checkpoints" / "step-².pt").write_bytes(LFS)),
    "a configuration without end": _config("[" * 100_000),
    "a configuration that is a list": _config("- 1"),
    "a configuration that is not text": run(lambda folder: (folder / "config.yaml").write_bytes(bytes(range(256)))),
    "a configuration that doubles": _config(f"{LAUGHS}network: *k\nviews: {{size: 16}}\nrecipe: r"),
    "a configuration that makes objects": _config("network: !!python/object/apply:os.system [false]"),
    "views of 60000 pixels": _config("network: {name: small-resnet, widths: [4, 8]}\nviews: {size: 60000}\nrecipe: r"),
    "a checkpoint to load": run(lambda folder: None, name="resnet18", options={"checkpoint_path": "x"}),
    "a network of the hub": run(lambda folder: None, name="hf-hub:stranger/network"),
    "a mean that is not a number": run(lambda folder: None, mean=[float("nan")] * 3),
    "another network": run(lambda folder: None, widths=[4, 8, 16]),
}
