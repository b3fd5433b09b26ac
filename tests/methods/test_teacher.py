"""The teacher's loss against its formula, configurations that are refused, and the teacher in a
checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hexa
from hexa import recipes
from hexa.config import ConfigError, UserError
from hexa.core import MAIN
from hexa.hard_examples.adversarial import Adversarial
from hexa.methods import TeacherConfig
from hexa.methods.teacher import FrozenNetwork
from hexa.nn.backbones import NetworkConfig
from hexa.objective import Objective
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import Machine, build_method, setting_of
from hexa.run.run import resume
from hexa.run.start import begin_from_weights
from hexa.runtime import checkpoints
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.end_to_end.endings import ALONE
from tests.laws.cases import backward
from tests.methods.setting import BATCH, batch, small


class Means(nn.Module):
    """A teacher of two features: the means of red and green."""

    image_size = 6

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        assert pixels.shape[-1] == 6
        return pixels.mean((2, 3))[:, :2]


def load(name: str) -> nn.Module:
    assert name == "means"
    return Means()


def built(**fields: Any) -> Any:
    return small(TeacherConfig(**fields), num_crops=1, keep_statistics=True, load=load)


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_teacher_distance(distance: str) -> None:
    """The loss is the distance of each image."""
    method = built(distance=distance, teacher="means", projector="linear")
    data = batch(12)
    pixels = nn.functional.interpolate(data.crops[0], 6, mode="bicubic", antialias=True).clamp(0, 1)
    embedding = method.embed(data.crops, MAIN)
    loss = method.loss(embedding, method.pseudo_labels(data, None))
    for number in range(BATCH):
        z = embedding[0, number]
        t = pixels[number].mean((1, 2))[:2]
        expected = ((z - t) ** 2).sum() / (t**2).sum()
        if distance == "cosine":
            expected = 1 - z @ t / (z.norm() * t.norm())
        torch.testing.assert_close(loss[0, number], expected)


def test_teacher_copy_of_start() -> None:
    """A copy of the initial weights is the teacher and stays what it was."""
    method = built()
    data = batch(12)
    before = {name: value.clone() for name, value in method.teacher.state_dict().items()}
    plain = method.loss(method.embed(data.crops, MAIN), method.pseudo_labels(data, None))
    assert plain.max() < 1e-24  # the same network, the same statistics, but for rounding
    method.train()
    objective = Objective(
        method, {"adversarial": Adversarial(random_start=1.0, epsilon=4.0, branch="main")}
    )
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    backward(objective, data)
    optimizer.step()
    assert all(
        torch.equal(value, before[name]) for name, value in method.teacher.state_dict().items()
    )
    assert method.loss(method.embed(data.crops, MAIN), method.pseudo_labels(data, None)).all()


def digits(**fields: Any) -> Experiment:
    sizes = {"data": "digits", "views.size": 8, "batch_size": 64, "epochs": 2, "max_steps": 6}
    network = {"network": NetworkConfig(name="small-resnet", widths=(4, 8)).model_dump(mode="json")}
    return override(recipes.get("teacher"), {**ALONE, **sizes, **network, **fields})


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"random_start": 0, "project": True}, True),
        ({"random_start": 1}, False),
        ({"random_start": 0, "project": True, "weight": 0}, False),
    ],
)
def test_teacher_attack_start(fields: dict[str, Any], refused: bool) -> None:
    """An attack that starts at the clean view is refused."""
    made = digits(**{f"hard_examples.adversarial.{name}": value for name, value in fields.items()})
    if refused:
        with pytest.raises(
            ConfigError,
            match=r"hard_examples.adversarial.random_start: .* gradient is zero; give 1",
        ):
            setting_of(made, 1000)
        setting_of(override(made, {"method.projector": "linear"}), 1000)
    else:
        setting_of(made, 1000)


def test_teacher_checkpoint(tmp_path: Path) -> None:
    """A resumed run takes the teacher from its checkpoint, even if the file of initial weights was
    deleted."""
    start = random_backbone(NetworkConfig(name="small-resnet", widths=(4, 8)), 8, seed=3)
    file = save_backbone(start, tmp_path / "start.safetensors")
    fields = {
        "start.weights": str(file),
        "max_steps": 40,
        "training.checkpoint_every": 1,
        "training.keep": 3,
    }
    whole = hexa.pretrain(begin_from_weights(digits(**fields), fields), out=tmp_path / "run")
    finished = load_backbone(whole).content_hash()
    first, last = checkpoints.checkpoints(whole / "checkpoints")[-2:]
    for stale in (last, whole / "backbone.safetensors", file):
        stale.unlink()
    state = torch.load(first, weights_only=True)["method"]
    taught = {
        name.removeprefix("teacher.network.1."): value
        for name, value in state.items()
        if "teacher." in name
    }
    expected = start.network.state_dict()
    assert set(taught) == set(expected)
    assert all(torch.equal(value, taught[name]) for name, value in expected.items())
    assert load_backbone(resume(whole)).content_hash() == finished != start.content_hash()


def test_teacher_code_refusal() -> None:
    """The name of a teacher cannot run code."""
    made = digits(**{"method.teacher": "python:x:y"})
    with pytest.raises(
        UserError,
        match=r"method.teacher: python:x:y",
    ):
        build_method(made, setting_of(made, 1000), Machine(torch.device("cpu"), "fp32"))


@pytest.mark.parametrize("copied", [False, True])
def test_folded_copy_follows(copied: bool) -> None:
    """After loaded weights or another dtype the teacher computes with these."""
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()) for _ in "ab"]
    first, second = (FrozenNetwork(network) for network in networks)
    images = torch.rand(2, 3, 5, 5)
    first(images)
    if copied:
        first = copy.deepcopy(first)
    first.load_state_dict(second.state_dict())
    assert torch.allclose(first(images), networks[1](images), atol=1e-5)
    assert first.double()(images.double()).dtype == torch.float64
