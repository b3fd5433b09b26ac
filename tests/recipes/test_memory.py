"""The estimate of a recipe's memory, next to what a real pass keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.memory import peak_bytes
from hexa import recipes
from hexa.core import MAIN, Batch
from hexa.measure.activations import memory_of
from hexa.recipes.experiment import override
from hexa.run.build import Machine, build_method, setting_of
from hexa.runtime.random import Stream
from tests.conftest import Says

CPU = {"training.device": "cpu", "training.channels_last": False}


def test_real_pass() -> None:
    """Activations of 64 images differ from the peak of a real pass by less than a fifth."""
    experiment = override(recipes.get("digits-moco-v2"), CPU)
    method = build_method(experiment, setting_of(experiment, 1347), Machine.of(experiment))
    side = experiment.views.size
    crops = tuple(torch.rand(64, 3, side, side) for _ in range(2))
    batch = Batch(crops, torch.arange(64), Stream(0))
    found = []

    def work() -> None:
        found.append(method.embed(method.anchors(batch), MAIN))

    real = peak_bytes(work, torch.device("cpu"), [])
    kept = memory_of(experiment, 64, torch.float32) - memory_of(experiment, 0, torch.float32)
    assert 0.8 * real < kept < 1.2 * real


def test_published_batch() -> None:
    """Six crops more cost what they should, and bf16 half of fp32."""
    experiment = recipes.get("imagenet-hexa-dcluster-plus-8crop-800")
    bf16, fp32 = (memory_of(experiment, 512, d) / 1e9 for d in (torch.bfloat16, torch.float32))
    assert 65 < bf16 < 75
    assert 1.9 < fp32 / bf16 < 2


def test_printed_changes(says: Says) -> None:
    """Modifiers in any order and fields count; expectations for the plain recipe are left out."""
    name = "digits-moco-v2+cutmix+adversarial"
    said = says(f"recipes {name} --batch-size 64 --training.accumulate=4").out.splitlines()
    gigabytes = memory_of(recipes.get(name), 16, torch.float32) / 1e9
    assert said[0] == "digits-moco-v2+adversarial+cutmix"
    assert said[1].split(" on ")[0].split(" + ")[1:] == ["adversarial", "cutmix"]
    assert f"{gigabytes:.3g} GB in fp32 (64 images)" in said[2]
    assert not any("expected" in line for line in said)


def test_command_of_changes(says: Says) -> None:
    """The command is that of the changed recipe."""
    (row,) = json.loads(says("recipes digits-moco-v2+small --batch-size 64 --json").out)
    assert row["command"] == "hexa pretrain digits-moco-v2+small --batch_size 64"


@pytest.mark.parametrize("fields", ["", "--batch-size 64"])
def test_recipe_of_a_file(tmp_path: Path, says: Says, fields: str) -> None:
    """A recipe in a file of the user is described like a listed one."""
    file = tmp_path / "own.py"
    file.write_text(
        "from hexa.recipes import get\n\ndef mine():\n    return get('digits-moco-v2')\n"
    )
    images = 64 if fields else recipes.get("digits-moco-v2").batch_size
    assert f"({images} images)" in says(f"recipes {file}:mine {fields}").out
