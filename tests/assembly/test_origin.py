"""A run that is held to the weights it begins with: L2-SP and distillation."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from hexa import experiment as experiments
from hexa.assembly.build import Machine, build_method, build_objective, paces, setting_of
from hexa.config import UserError
from hexa.core import Origin
from hexa.nn.start import learning
from hexa.runtime import checkpoints
from hexa.session.run import pretrain, resume
from hexa.training import optimizers
from hexa.training.optimizers import OptimizerConfig
from hexa.weights.pretrained import load_backbone
from tests.assembly.test_start import begun, split, trained, weights

__all__ = ["weights"]
CPU = Machine(torch.device("cpu"), "fp32")


def test_the_pull_is_the_gradient_of_its_penalty() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    origin = Origin(network, l2_sp=0.7)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn_like(p))
    network[1].bias.requires_grad_(False)
    images = torch.randn(5, 3, dtype=torch.float64)
    network(images).square().mean().backward()
    origin.pull()
    found = {name: p.grad for name, p in network.named_parameters()}
    network.zero_grad()
    starts = dict(origin.network.named_parameters())
    penalty = sum((p - starts[name]).square().sum() for name, p in network.named_parameters() if p.requires_grad)
    (network(images).square().mean() + 0.7 / 2 * penalty).backward()
    assert found["1.bias"] is None
    for name, p in network.named_parameters():
        if p.requires_grad:
            torch.testing.assert_close(found[name], p.grad)


def test_the_distance_is_of_features_to_those_of_the_start_and_the_copy_stays() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double().train()
    origin = Origin(network, distillation=1.0)
    images = torch.randn(6, 3, dtype=torch.float64)
    with origin.compared() as distances:
        first, second = network(images), network(images[:2])
    frozen = {name: value.clone() for name, value in origin.network.state_dict().items()}
    network(images)
    assert [len(d) for d in distances] == [6, 2]
    for found, features, given in zip(distances, (first, second), (images, images[:2]), strict=True):
        start = origin.network(given)
        by_hand = 1 - (features * start).sum(1) / features.norm(dim=1) / start.norm(dim=1)
        torch.testing.assert_close(found, by_hand)
    assert all(torch.equal(value, frozen[name]) for name, value in origin.network.state_dict().items())
    refused = pytest.raises(UserError, match=r"start\.distillation: this method does not call its backbone")
    with refused, origin.compared():
        pass


def test_the_backbone_is_pulled_instead_of_decayed(weights: Path) -> None:
    """As published: θ0 takes the place of 0 for the backbone, and the head is decayed as ever."""
    experiment = begun(weights, start__l2_sp=0.1)
    method = build_method(experiment, setting_of(experiment, 1347), CPU)
    for name in ("sgd", "larc", "lars", "adamw"):
        config = OptimizerConfig(name=name, weight_decay=0.1)
        made = optimizers.build(method.parameters(), config, 64, paces=paces(method, experiment.start))
        backbone = set(learning(method).parameters())
        for group in made.param_groups:
            inside = backbone.issuperset(group["params"])
            vectors = all(p.ndim <= 1 for p in group["params"])
            assert group["decayed"] == (not inside and not (vectors and name in ("lars", "adamw")))
            if name in ("larc", "lars"):
                assert group["always_adapt"] == (name == "larc" or not vectors)


def test_a_strong_pull_holds_the_weights(weights: Path, tmp_path: Path) -> None:
    start, _ = split(load_backbone(weights))

    def moved(name: str, **fields: object) -> float:
        after, _ = split(trained(begun(weights, **fields), tmp_path / name))
        return float(sum((after[n] - value).detach().square().sum() for n, value in start.items()))

    assert moved("held", start__l2_sp=3.0) < 0.3 * moved("free")


def test_distillation_is_logged_and_holds_the_features(weights: Path, tmp_path: Path) -> None:
    distances = []
    for strength in (0.001, 0.5):
        experiment = begun(weights, start__distillation=strength, training__log_every=1)
        run = pretrain(experiment, tmp_path / str(strength), console=Console(file=io.StringIO()))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if line["event"] == "train"]
        assert abs(lines[0]["loss/distillation"]) < 1e-6
        distances.append(lines[-1]["loss/distillation"])
        parts = [lines[-1][f"loss/{name}"] for name in ("std", "adversarial")]  # their mean in this recipe
        assert lines[-1]["loss"] == pytest.approx(sum(parts) / 2 + strength * distances[-1], rel=1e-5)
    assert distances[0] > 2 * distances[1] > 0, distances


@pytest.mark.parametrize("batch_norm", ["keep", "follow", "re-estimate"])
def test_a_resumed_run_needs_its_start_no_more(weights: Path, tmp_path: Path, batch_norm: str) -> None:
    silent = Console(file=io.StringIO())
    fields = {"start__l2_sp": 0.1, "start__distillation": 0.5, "training__checkpoint_every_steps": 4}
    experiment = begun(weights, start__batch_norm=batch_norm, **fields)
    whole = trained(experiment, tmp_path / "whole")
    cut = pretrain(experiments.override(experiment, {"training.keep": 20}), tmp_path / "cut", console=silent)
    for path in checkpoints.checkpoints(cut / "checkpoints"):
        if checkpoints.step_of(path) > 12:
            path.unlink()
    (cut / "backbone.safetensors").unlink()
    weights.unlink()
    resume(cut, console=silent)
    assert load_backbone(cut).content_hash() == whole.content_hash()


def test_without_either_nothing_is_kept(weights: Path) -> None:
    experiment = begun(weights)
    objective = build_objective(experiment, build_method(experiment, setting_of(experiment, 1347), CPU), CPU)
    assert objective.origin is None


def test_of_a_student_and_its_teacher_the_student_is_held(weights: Path) -> None:
    from hexa import recipes
    from hexa.assembly.start import begin_from_weights

    given = {"start.weights": str(weights), "start.distillation": 1.0, "training.device": "cpu"}
    experiment = begin_from_weights(
        experiments.override(recipes.get("cifar10-dino-vit+small+adversarial"), given), given
    )
    method = build_method(experiment, setting_of(experiment, 50_000), CPU)
    assert learning(method) is method.student.backbone  # type: ignore[attr-defined]
    assert learning(method) is not method.backbone


def test_split_terms_are_refused(weights: Path, tmp_path: Path) -> None:
    fields = {"objective.split": True, "objective.clean_fraction": 0.5}
    fields |= {f"hard_examples.{name}.fraction": 0.25 for name in ("adversarial", "cutmix")}
    experiment = experiments.override(begun(weights, start__distillation=1.0), fields)
    with pytest.raises(UserError, match=r"objective\.split: start\.distillation compares"):
        trained(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
