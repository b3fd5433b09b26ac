"""safetensors files and pickles of arrays, made by hand or made to harm. Each entry makes one, under what it is."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import yaml
from torch import Tensor

from hexa.nn.backbones import NetworkConfig
from hexa.runtime import checkpoints
from hexa.weights.pretrained import random_backbone, save_backbone

SMALL = NetworkConfig(name="small-resnet", widths=(4, 8))


def text(content: bytes, name: str = "x.pth") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


HTML = b"<!DOCTYPE html><html><body>404 not found</body></html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 94567000\n"


def itself(key: str, value: Any) -> Any:
    found: dict[str, Any] = {"x": value}
    found[key] = found
    return found


def small_state() -> dict[str, Tensor]:
    return random_backbone(SMALL, 16).network.state_dict()


def method_state() -> dict[str, Tensor]:
    """As a method's: the network within an encoder."""
    return {f"query.backbone.{name}": value for name, value in small_state().items()}


def run_of(folder: Path, **changes: Any) -> Path:
    """The folder of a run of one checkpoint. changes: of the fields of its network."""
    (folder / "checkpoints").mkdir(parents=True)
    fields = {"recipe": "r", "network": SMALL.model_dump(mode="json") | changes, "views": {"size": 16}}
    (folder / "config.yaml").write_text(yaml.safe_dump(fields))
    checkpoints.save(folder / "checkpoints", 3, {"method": method_state(), "optimizer": {"state": torch.ones(64)}})
    return folder


# -- safetensors ------------------------------------------------------------------------------------------------------


def with_metadata(**changes: Any) -> Callable[[Path], Path]:
    """A file of ours whose metadata say something else; None leaves a field out. network: fields of it, or its text."""

    def make(folder: Path) -> Path:
        path = save_backbone(random_backbone(SMALL, 16), folder / "x.safetensors")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        fields = changes.get("network", {})
        network = fields if isinstance(fields, str) else json.dumps(json.loads(metadata["network"]) | fields)
        metadata |= changes | {"network": network}
        kept = {name: value for name, value in metadata.items() if value is not None}
        safetensors.torch.save_file(small_state(), path, kept)
        return path

    return make


def with_header(header: bytes, length: int | None = None, data: bytes = bytes(64)) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "x.safetensors"
        path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)
        return path

    return make


def header(*tensors: tuple[str, list[int], list[int]]) -> bytes:
    """JSON by hand, since a dictionary has no key twice. (name, shape, [begin, end]) of each tensor."""
    parts = (f'"{n}": {{"dtype": "F32", "shape": {s}, "data_offsets": {o}}}' for n, s, o in tensors)
    return ("{" + ", ".join(parts) + "}").encode()


DEEP = "[" * 100_000 + "]" * 100_000
SAFETENSORS: dict[str, Callable[[Path], Path]] = {
    "a width of 0": with_metadata(network={"widths": [0, 8]}),
    "a negative width": with_metadata(network={"widths": [-4, 8]}),
    "huge widths": with_metadata(network={"widths": [100_000, 100_000]}),
    "large widths": with_metadata(network={"widths": [4096, 4096, 4096]}),
    "a hundred stages": with_metadata(network={"widths": [4] * 100}),
    "no widths": with_metadata(network={"widths": []}),
    "widths of text": with_metadata(network={"widths": "wide"}),
    "a stride of 0": with_metadata(network={"stem_stride": 0}),
    "another network": with_metadata(network={"name": "resnet18"}),
    "a name of a million letters": with_metadata(network={"name": "r" * 1_000_000}),
    "a name of the hub": with_metadata(network={"name": "hf-hub:stranger/network"}),
    "a name of a folder": with_metadata(network={"name": "local-dir:/tmp"}),
    "unknown fields": with_metadata(network={"depths": 3}),
    "a million unknown letters": with_metadata(network={"d" * 1_000_000: 3}),
    "a network that is a list": with_metadata(network="[1, 2]"),
    "a network of another kind": with_metadata(network="7"),
    "no format": with_metadata(format=None, content=None, crop=None, interpolation=None, origins=None),
    "a checkpoint to load": with_metadata(network={"name": "resnet18", "options": {"checkpoint_path": "x.pth"}}),
    "a cache to use": with_metadata(network={"name": "resnet18", "options": {"cache_dir": "/tmp"}}),
    "weights to fetch": with_metadata(network={"name": "resnet18", "options": {"pretrained": True}}),
    "a configuration to fetch": with_metadata(network={"name": "resnet18", "options": {"pretrained_cfg": "a.b"}}),
    "features only": with_metadata(network={"name": "resnet18", "options": {"features_only": True}}),
    "a path as an option": with_metadata(network={"name": "resnet18", "options": {"stem_type": "/etc/passwd"}}),
    "a very deep network": with_metadata(network={"name": "vit_tiny_patch16_224", "options": {"depth": 1_000_000}}),
    "a very wide network": with_metadata(network={"name": "vit_tiny_patch16_224", "options": {"embed_dim": 10**12}}),
    "an option of no number": with_metadata(network={"name": "vit_tiny_patch16_224", "options": {"depth": "x"}}),
    **{
        f"an image size of {size}": with_metadata(image_size=size)
        for size in ("0", "-3", "60000", "1e3", "nan", "", "9" * 5000, "sixteen")
    },
    **{
        f"{name} of {value}": with_metadata(**{name: value})
        for name in ("mean", "std")
        for value in ("[NaN, 0, 0]", "[1e999, 1, 1]", '["0.5", "0.5", "0.5"]', "0.5", "[1, 1]", "{}", "null", "[", "x")
    },
    "a std of 0": with_metadata(std="[0, 1, 1]"),
    "a negative std": with_metadata(std="[1, -1, 1]"),
    "a std of next to nothing": with_metadata(std="[1e-320, 1, 1]"),
    "no std": with_metadata(std=None),
    "a crop of 0": with_metadata(crop="0"),
    "a crop of 7": with_metadata(crop="7"),
    "an unknown interpolation": with_metadata(interpolation="magic"),
    "origins that are a list": with_metadata(origins="[1, 2]"),
    "info that hides the hash": with_metadata(info='{"hash": "0000", "preparation": 1, "x": NaN, "y": [[1]]}'),
    "info that is no object": with_metadata(info="7"),
    "info without end": with_metadata(info=DEEP),
    "a network without end": with_metadata(network=DEEP),
    "a mean without end": with_metadata(mean=DEEP),
    "another sum": with_metadata(content="0000000000000000"),
    "a header of 2^60 bytes": with_header(b"{}", 2**60),
    "a header of 2^64 - 1 bytes": with_header(b"{}", 2**64 - 1),
    "a header longer than the file": with_header(b"{}", 500),
    "a header that is no JSON": with_header(b"not JSON at all"),
    "a header without end": with_header(DEEP.encode()),
    "no tensors": with_header(b"{}", data=b""),
    "overlapping tensors": with_header(header(("a", [16], [0, 64]), ("b", [16], [0, 64]))),
    "a tensor twice": with_header(header(("conv1.weight", [8], [0, 32]), ("conv1.weight", [8], [32, 64]))),
    "a tensor beyond the end": with_header(header(("a", [1024], [0, 4096]))),
    "a shape of 10^18": with_header(header(("a", [10**9, 10**9], [0, 64]))),
    "a shape that is not the bytes": with_header(header(("a", [3], [0, 64]))),
    "a negative shape": with_header(header(("a", [-16], [0, 64]))),
    "an unknown type": with_header(header(("a", [16], [0, 64])).replace(b"F32", b"F33")),
    "a type that torch lacks": with_header(b'{"a": {"dtype": "F4", "shape": [128], "data_offsets": [0, 64]}}'),
    "a name of half a letter": with_header(header(("\\ud800", [16], [0, 64]))),
    "a name of a million letters inside": with_header(header(("n" * 1_000_000, [16], [0, 64]))),
    "a name with a line's end": with_header(header(("a\\nb", [16], [0, 64]))),
    "a stem without channels": with_header(header(("conv1.weight", [], [0, 4])), data=bytes(4)),
}


# -- pickles of arrays ------------------------------------------------------------------------------------------------


def _pickled(content: bytes) -> Callable[[Path], Path]:
    return text(content, "x.pkl")


class _Calls:
    """Pickles to a call of anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


ARRAYS: dict[str, Callable[[Path], Path]] = {
    "an array of 10^13 numbers": _pickled(pickle.dumps({"model": {"a": _Calls(np.ndarray, (10**13,), "f4")}})),
    "a memo of 2^32 entries": _pickled(b"\x80\x02}r\xff\xff\xff\xff."),
    "text of 2^60 letters": _pickled(b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"x."),
    "bytes of 2^60": _pickled(b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b"x."),
    "a whole number of 2^31 bytes": _pickled(b"\x80\x02\x8b\xff\xff\xff\x7f" + b"."),
    "code": _pickled(pickle.dumps({"model": _Calls(eval, "1")})),
    "holds itself": _pickled(pickle.dumps(itself("model", np.ones(1)))),
    "objects": _pickled(pickle.dumps({"model": {"a": np.array([{}, []], object)}})),
    "another byte order": _pickled(pickle.dumps({"model": {"stem.conv1.weight": np.ones((4, 3, 3, 3), ">f4")}})),
    "texts": _pickled(pickle.dumps({"model": {"a": np.array(["a"])}})),
    "dates": _pickled(pickle.dumps({"model": {"a": np.array(["2020-01-01"], "M8[D]")}})),
    "a type of 10^9 bytes": _pickled(pickle.dumps({"model": {"a": _Calls(np.dtype, "V1000000000")}})),
    "long doubles": _pickled(pickle.dumps({"model": {"stem.conv1.weight": np.ones((4, 3, 3, 3), np.longdouble)}})),
}
