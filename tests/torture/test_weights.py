"""Weight files that were damaged, made by hand, or made to harm: one clear line, in bounded time and memory."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch

from hexa.config import UserError
from hexa.weights.layouts import LAYOUTS, names
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.torture import weights, weights_of_torch
from tests.torture.harness import Forked, Tally, damaged, forked, hexa

#: No file here is larger than 2 MB.
MEGABYTES, SECONDS = 300, 60


def loaded(spec: str | Path) -> Forked:
    """In a child: the hash of the backbone that was loaded and used, or the line that refuses it."""

    def work() -> tuple[str, str]:
        try:
            backbone = load_backbone(spec)
            backbone(torch.rand(1, 3, backbone.image_size, backbone.image_size))
            return "loaded", backbone.content_hash()
        except UserError as error:
            return "refused", str(error)

    return forked(work, SECONDS)


def survived(found: Forked) -> bool:
    """It was used or refused in one line that can be read, and took no more than such a file may take."""
    if found.value is None or found.megabytes > MEGABYTES:
        return False
    return "\n" not in found.value[1] and len(found.value[1]) < 1000


@pytest.mark.parametrize(
    ("group", "zoo"),
    [
        ("safetensors files made by hand", weights.SAFETENSORS),
        ("checkpoints made by hand", weights_of_torch.CHECKPOINTS),
        ("pickles of arrays made by hand", weights.ARRAYS),
        ("folders of runs made by hand", weights_of_torch.RUNS),
    ],
)
def test_a_zoo_of_files(group: str, zoo: dict[str, Callable[[Path], Path]], tmp_path: Path, tally: Tally) -> None:
    wrong = {}
    for number, (name, make) in enumerate(zoo.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = loaded(make(folder))
        tally.input(group, survived(found))
        if not survived(found):
            wrong[name] = found
    assert not wrong


def seeds(home: Path) -> dict[str, str]:
    """Good files of every kind, and what to load them as."""
    save_backbone(random_backbone(weights.SMALL, 16), home / "a.safetensors")
    network = timm.create_model("test_vit", num_classes=0).state_dict()
    torch.save({"state_dict": network}, home / "zip.pth")
    torch.save({"state_dict": network}, home / "old.pth", _use_new_zipfile_serialization=False)
    state = weights.small_state()
    arrays = {name: state[own].numpy() for own, name in names(LAYOUTS["Detectron2"], state).items()}
    for protocol in (2, 4):
        (home / f"{protocol}.pkl").write_bytes(pickle.dumps({"model": arrays}, protocol))
    weights.run_of(home / "run")
    return {
        **{name: name for name in ("a.safetensors", "2.pkl", "4.pkl", "run/checkpoints/step-00000003.pt")},
        **{name: f"{name}#test_vit" for name in ("zip.pth", "old.pth")},
    }


def damage(tmp_path: Path, tally: Tally, count: int, seed: int) -> None:
    """Damaged files are used or refused; where a file keeps a sum, what is used is what was written."""
    specs, generator = seeds(tmp_path), random.Random(seed)
    good = {name: (tmp_path / name).read_bytes() for name in specs}
    meant = {name: loaded(f"{tmp_path}/{spec}").value for name, spec in specs.items()}
    wrong = []
    for _ in range(count):
        name = generator.choice(list(specs))
        (tmp_path / name).write_bytes(broken(good[name], generator, [*good.values()]))
        found = loaded(f"{tmp_path}/{specs[name]}")
        fine = survived(found) and (name == "old.pth" or found.value[0] == "refused" or found.value == meant[name])
        tally.input("damaged weight files", fine)
        if not fine:
            wrong.append((name, found))
        (tmp_path / name).write_bytes(good[name])
    assert not wrong


def broken(content: bytes, generator: random.Random, others: list[bytes]) -> bytes:
    """Damaged anywhere, or where the structure stands: in the beginning or the end."""
    edge = generator.choice((None, 300, 2000))
    if edge is None or edge >= len(content):
        return damaged(content, generator, others)
    if generator.random() < 0.5:
        return damaged(content[:edge], generator) + content[edge:]
    return content[:-edge] + damaged(content[-edge:], generator)


def test_damaged_files(tmp_path: Path, tally: Tally) -> None:
    damage(tmp_path, tally, 15, seed=0)


@pytest.mark.slow
def test_many_damaged_files(tmp_path: Path, tally: Tally) -> None:
    damage(tmp_path, tally, 3000, seed=1)


def test_the_command_line_says_one_line(tmp_path: Path, tally: Tally) -> None:
    path = weights_of_torch.CHECKPOINTS["holds itself"](tmp_path)
    ended = hexa("evaluate", "knn", path, "--data", "digits")
    tally.input("checkpoints made by hand", ended.complaint is None)
    assert ended.complaint is None
