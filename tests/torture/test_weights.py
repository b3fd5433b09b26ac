"""Weight files that were damaged, made by hand, or made to harm: one clear line, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor

from hexa.config import UserError
from hexa.runtime import checkpoints
from hexa.weights.layouts import LAYOUTS, names
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.evaluation.given import SMALL
from tests.pickles import Calls, doubled, itself
from tests.torture.harness import DAMAGES, Forked, Tally, forked
from tests.weights.test_pretrained import run_folder

Make = Callable[[Path], Path]


def loaded(spec: str | Path) -> Forked:
    """In a child: the hash of the backbone that was loaded and used, or the line that refuses it."""

    def work() -> tuple[str, str]:
        try:
            backbone = load_backbone(spec)
            backbone(torch.rand(1, 3, backbone.image_size, backbone.image_size))
            return "loaded", backbone.content_hash()
        except UserError as error:
            return "refused", str(error)

    return forked(work, 60)


def survived(found: Forked) -> bool:
    """It was used or refused in one line that can be read, and took no more than a file of 2 MB may take."""
    if found.value is None or found.megabytes > 300:
        return False
    return "\n" not in found.value[1] and len(found.value[1]) < 1000


def small_state() -> dict[str, Tensor]:
    return random_backbone(SMALL, 16).network.state_dict()


def written(content: bytes, name: str = "x.pth") -> Make:
    return lambda folder: (folder / name, (folder / name).write_bytes(content))[0]


def metadata(network: Any = None, **changes: Any) -> Make:
    """A file of ours whose metadata say something else; None leaves a field out. network: fields of it, or its text."""

    def make(folder: Path) -> Path:
        path = save_backbone(random_backbone(SMALL, 16), folder / "x.safetensors")
        with safetensors.safe_open(path, framework="pt") as file:
            found = json.loads(file.metadata()["hexa"])
        fields = {name: json.dumps(value) for name, value in found.items()} | changes
        if network is not None:
            changed = found["network"] | network if isinstance(network, dict) else network
            fields["network"] = json.dumps(changed) if isinstance(changed, dict) else changed
        pairs = (f'"{name}": {text}' for name, text in fields.items() if text is not None)
        safetensors.torch.save_file(small_state(), path, {"hexa": "{" + ", ".join(pairs) + "}"})
        return path

    return make


def header(
    content: bytes | list[tuple[str, list[int], list[int]]], length: int | None = None
) -> Make:
    """A safetensors file of 64 bytes with this header, or one of these tensors: (name, shape, [begin, end])."""
    if not isinstance(content, bytes):  # JSON by hand, since a dictionary has no key twice
        parts = (
            f'"{n}": {{"dtype": "F32", "shape": {s}, "data_offsets": {o}}}' for n, s, o in content
        )
        content = ("{" + ", ".join(parts) + "}").encode()
    size = (len(content) if length is None else length).to_bytes(8, "little")
    return written(size + content + bytes(64), "x.safetensors")


def checkpoint(make: Callable[[], Any]) -> Make:
    return lambda folder: (folder / "x.pth", torch.save(make(), folder / "x.pth"))[0]


def run_of(folder: Path, change: Callable[[Tensor], Tensor] | None = None, **fields: Any) -> Path:
    """The folder of a run of one checkpoint. change: of one tensor of its network; fields: of its network."""
    run_folder(folder, SMALL.model_copy(update=fields))
    state = {f"query.backbone.{name}": value for name, value in small_state().items()}
    checkpoints.save(
        folder / "checkpoints", 3, {"method": state, "optimizer": {"state": torch.ones(64)}}
    )
    if change is not None:
        state["query.backbone.conv1.weight"] = change(state["query.backbone.conv1.weight"])
        torch.save({"method": state}, folder / "checkpoints" / "step-00000003.pt")
    return folder


def run(change: Callable[[Path], Any] = lambda folder: None, **fields: Any) -> Make:
    """A run in whose folder something is done."""
    return lambda folder: (run_of(folder / "run", **fields), change(folder / "run"))[0]


def zip_bomb(folder: Path) -> Path:
    """400 MB in 2 MB."""
    content = io.BytesIO()
    torch.save({"state_dict": {"conv1.weight": torch.zeros(64, 3, 7, 7)}}, content)
    with (
        zipfile.ZipFile(content) as old,
        zipfile.ZipFile(folder / "x.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(
                name,
                bytes(4 * 10**8) if name.endswith("data/0") else old.read(name),
                compresslevel=1,
            )
    return folder / "x.pth"


def pickled(tensor: Any) -> Make:
    return written(pickle.dumps({"model": {"stem.conv1.weight": tensor}}), "x.pkl")


DEEP = "[" * 100_000 + "]" * 100_000
RESNET = {"name": "resnet18"}
NETWORKS: list[Any] = [
    {"widths": [0, 8]},
    {"widths": [100_000, 100_000]},
    {"name": "hf-hub:stranger/network"},
    {**RESNET, "options": {"checkpoint_path": "x"}},
    {**RESNET, "options": {"depth": "x"}},
    {"stem_stride": 0},
    "[1, 2]",
    DEEP,
]
FIELDS: list[dict[str, Any]] = [
    {"size": "60000"},
    {"size": "9" * 5000},
    {"mean": "[NaN, 0, 0]"},
    {"mean": DEEP},
    {"std": "[0, 1, 1]"},
    {"std": None},
    {"interpolation": '"magic"'},
    {"content": '"0"'},
]
HEADERS: list[tuple[Any, int | None]] = [
    (b"{}", 2**60),
    (b"not JSON", None),
    (DEEP.encode(), None),
    ([("a", [10**9, 10**9], [0, 64])], None),
    ([("a", [16], [0, 64]), ("b", [16], [0, 64])], None),
    ([("a", [1024], [0, 4096])], None),
]
TENSORS: list[Callable[[Tensor], Tensor]] = [
    lambda v: v * float("nan"),
    Tensor.int,
    Tensor.to_sparse,
    lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.quint8),
    lambda v: v.to("meta"),
    lambda v: v[:0],
]
NAMES = (
    "\ud800.x",
    "n" * 1_000_000,
    "_feature_blocks.",
    f"backbone.{'9' * 5000}.0.conv1.weight",
)
CHECKPOINTS: list[Make] = [
    checkpoint(lambda: itself("state_dict", torch.ones(1))),
    *(
        checkpoint(lambda name=name: {name: torch.ones(1), "conv1.weight": torch.ones(3)})
        for name in NAMES
    ),
    checkpoint(lambda: {"conv1.weight": torch.ones(1).expand(10**6, 10**6, 3, 3)}),
    checkpoint(lambda: {"state_dict": {"a": 1}}),
    checkpoint(lambda: doubled(60)),
    zip_bomb,
    written(b"", "x.pth"),
    written(b"<!DOCTYPE html>", "x.safetensors"),
]
ARRAYS: list[Make] = [
    pickled(Calls(np.ndarray, (10**13,), "f4")),
    pickled(Calls(eval, "1")),
    pickled(np.array([{}], object)),
    written(b"\x80\x02}r\xff\xff\xff\xff.", "x.pkl"),
]
#: What a parser refuses: tests/runtime/test_parsing.py.
CONFIGS = ("[" * 100_000, "- 1", "network: !!python/object/apply:os.system [x]")
RUNS: list[Make] = [
    *(run(lambda folder, text=text: (folder / "config.yaml").write_text(text)) for text in CONFIGS),
    run(lambda folder: os.mkfifo(folder / "backbone.safetensors")),
    run(lambda folder: (folder / "backbone.safetensors").symlink_to("backbone.safetensors")),
    run(lambda folder: (folder / "checkpoints/step-00000009.pt").mkdir()),
    run(name="hf-hub:a/b"),
    run(widths=[4, 8, 16]),
]
ZOO: dict[str, list[Make]] = {
    "safetensors files made by hand": [
        *map(metadata, NETWORKS),
        *(metadata(**fields) for fields in FIELDS),
        *(header(*one) for one in HEADERS),
    ],
    "checkpoints made by hand": CHECKPOINTS,
    "pickles of arrays made by hand": ARRAYS,
    "folders of runs made by hand": RUNS
    + [lambda folder, change=change: run_of(folder / "run", change) for change in TENSORS],
}


@pytest.mark.parametrize("group", ZOO)
def test_hostile_weight_files(group: str, tmp_path: Path, tally: Tally) -> None:
    for number, make in enumerate(ZOO[group]):
        (tmp_path / str(number)).mkdir()
        found = loaded(make(tmp_path / str(number)))
        tally.input(group, survived(found), (number, found))


#: Good files of every kind, and what to load them as.
GOOD = {name: name for name in ("a.safetensors", "2.pkl", "run/checkpoints/step-00000003.pt")}
GOOD |= {name: f"{name}#test_vit" for name in ("zip.pth", "old.pth")}


def good_files(home: Path) -> dict[str, bytes]:
    save_backbone(random_backbone(SMALL, 16), home / "a.safetensors")
    network = timm.create_model("test_vit", num_classes=0).state_dict()
    torch.save({"state_dict": network}, home / "zip.pth")
    torch.save({"state_dict": network}, home / "old.pth", _use_new_zipfile_serialization=False)
    state = small_state()
    arrays = {name: state[own].numpy() for own, name in names(LAYOUTS["Detectron2"], state).items()}
    (home / "2.pkl").write_bytes(pickle.dumps({"model": arrays}, 2))
    run_of(home / "run")
    return {name: (home / name).read_bytes() for name in GOOD}


def damaged_weights(
    home: Path, damages: Callable[[dict[str, bytes]], Iterable[tuple[str, bytes]]]
) -> Iterator[tuple[str, Forked | None]]:
    """Return the damage, and the outcome if it is wrong: a file with checksums must be refused or
    give the original values."""
    good = good_files(home)
    meant = {name: loaded(f"{home}/{spec}").value for name, spec in GOOD.items()}
    for name, content in damages(good):
        (home / name).write_bytes(content)
        ended = loaded(f"{home}/{GOOD[name]}")
        fine = survived(ended) and (
            name == "old.pth" or ended.value[0] == "refused" or ended.value == meant[name]
        )
        yield name, None if fine else ended
        (home / name).write_bytes(good[name])


def test_damaged_weight_files(tmp_path: Path, tally: Tally) -> None:
    def damages(good: dict[str, bytes]) -> list[tuple[str, bytes]]:
        return [
            (name, damage(content)) for name, content in good.items() for damage in DAMAGES.values()
        ]

    for name, wrong in damaged_weights(tmp_path, damages):
        tally.input("damaged weight files", wrong is None, (name, wrong))
