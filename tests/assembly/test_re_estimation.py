"""Re-estimated batch-norm statistics, beside a naive oracle; and a run that begins with them."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from hexa import experiment as experiments
from hexa import recipes
from hexa.assembly import build as assembly
from hexa.assembly.build import Machine, build_method, setting_of
from hexa.assembly.re_estimation import accumulate, re_estimate
from hexa.assembly.start import begin_from_weights
from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation.transforms import transform_of
from hexa.nn.backbones import NetworkConfig, build
from hexa.runtime import checkpoints
from hexa.session.run import pretrain, resume
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone, load_backbone, random_backbone, save_backbone
from tests.assembly.test_start import NETWORK, TINY
from tests.distributed.together import run_together

CPU = Machine(torch.device("cpu"), "fp32")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return save_backbone(random_backbone(NETWORK, 8, seed=5), tmp_path / "start.safetensors")


def begun(weights: Path, recipe: str = "digits-hexa-moco", **changes: Any) -> experiments.Experiment:
    given = TINY | {"start.weights": str(weights), "start.batch_norm": "re-estimate"}
    given |= {name.replace("__", "."): value for name, value in changes.items()}
    return begin_from_weights(experiments.override(recipes.get(recipe), given), given)


def oracle(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Mean and unbiased variance of what each batch-norm is given in one training pass over all images."""
    network = network.double().train()
    found: dict[str, Tensor] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):

            def look(_: nn.Module, inputs: tuple[Tensor], name: str = name) -> None:
                values = inputs[0].transpose(0, 1).flatten(1)
                found[f"{name}.running_mean"] = values.mean(1)
                found[f"{name}.running_var"] = values.var(1)

            module.register_forward_pre_hook(look)
    with torch.no_grad():
        network(images.double())
    return found


@pytest.mark.parametrize("name", ["small-resnet", "resnet18", "efficientnet_lite0"])
def test_one_batch_gives_mean_and_variance_of_each_layers_input(name: str) -> None:
    """timm's EfficientNets fuse batch-norm and activation in one module."""
    torch.manual_seed(1)
    network = build(NetworkConfig(name=name, widths=(4, 8) if name == "small-resnet" else ()))
    images = torch.randn(6, 3, 64, 64, dtype=torch.float64)
    expected = oracle(copy.deepcopy(network), images)
    accumulate(network.double(), [images])
    state = network.state_dict()
    for key, value in expected.items():
        torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-12)
    assert len(expected) == sum(key.endswith(("_mean", "_var")) for key in state)


def test_batches_are_pooled_by_their_sizes() -> None:
    """Of the first layer, whose input does not depend on how batches are cut, all is that of all values."""
    network = nn.Sequential(nn.BatchNorm2d(3)).double()
    images = torch.randn(10, 3, 4, 4, dtype=torch.float64) * 3 + 7
    accumulate(network, [images[:7], images[7:]])
    values = images.transpose(0, 1).flatten(1)
    torch.testing.assert_close(network[0].running_mean, values.mean(1))
    torch.testing.assert_close(network[0].running_var, values.var(1))


def test_a_backbone_is_re_estimated_alone(weights: Path) -> None:
    """Parameters stay, statistics are those of the images prepared as for evaluation; the seed chooses which."""
    source = open_source("digits", "train")
    start, made = load_backbone(weights), re_estimate(load_backbone(weights), source)
    pixels = transform_of(start)(torch.stack([source.decode(i) for i in range(len(source))])).double() / 255
    six = 224 * 6 + 3  # in six batches, whose own statistics differ a little
    assert len(source) == six
    expected = oracle(start.network, start.normalize.double()(pixels))
    for key, value in expected.items():
        torch.testing.assert_close(made.network.state_dict()[key].double(), value, rtol=0.05, atol=0.01)
    first = "bn1.running_mean"
    torch.testing.assert_close(made.network.state_dict()[first].double(), expected[first], rtol=1e-5, atol=1e-6)
    parameters = dict(load_backbone(weights).network.named_parameters())
    assert all(torch.equal(p, parameters[name]) for name, p in made.network.named_parameters())
    assert made.info["statistics"] == "re-estimated on 1347 images of digits#train"
    again = re_estimate(load_backbone(weights), source)
    assert again.content_hash() == made.content_hash()
    few = [re_estimate(load_backbone(weights), source, seed, most=100).content_hash() for seed in (0, 0, 1)]
    assert few[0] == few[1]
    assert len({made.content_hash(), *few}) == 3


@pytest.mark.parametrize(
    "recipe", ["digits-hexa-moco", "cifar10-dino-vit+small+adversarial", "cifar10-simclr+small+adversarial"]
)
def test_twin_and_further_batch_norms_begin_with_them(weights: Path, recipe: str) -> None:
    given = {"start.weights": str(weights), "start.batch_norm": "re-estimate", "training.device": "cpu"}
    experiment = begin_from_weights(experiments.override(recipes.get(recipe), given), given)
    source = open_source("digits", "train")
    expected = re_estimate(load_backbone(weights), source, experiment.seed).network.state_dict()
    method = build_method(experiment, setting_of(experiment, 50_000), CPU, source)
    checked = 0
    for path, value in method.state_dict().items():
        _, encoder, inner = path.partition("backbone.")
        if encoder:
            assert torch.equal(value, expected[inner.replace(".aux.", ".")]), path
            checked += 1
    assert checked > len(expected)


def test_two_processes_come_to_the_same(weights: Path, tmp_path: Path) -> None:
    source = open_source("digits", "train")
    run_together(2, _one_of_two, weights, re_estimate(load_backbone(weights), source, most=300).content_hash())


def _one_of_two(weights: Path, expected: str) -> None:
    source = open_source("digits", "train")
    assert re_estimate(load_backbone(weights), source, most=300).content_hash() == expected


def test_they_are_kept_in_training(weights: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    trained = load_backbone(pretrain(begun(weights), tmp_path / "run", console=Console(file=out, width=300)))
    expected = re_estimate(load_backbone(weights), open_source("digits", "train")).network
    assert all(torch.equal(value, dict(expected.named_buffers())[n]) for n, value in trained.network.named_buffers())
    parameters = dict(expected.named_parameters())
    assert not all(torch.equal(value, parameters[name]) for name, value in trained.network.named_parameters())
    assert "batch-norm statistics re-estimated on the data, then kept" in out.getvalue()


def test_a_resumed_run_does_not_re_estimate_and_ends_the_same(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Console(file=io.StringIO())
    experiment = begun(weights, training__checkpoint_every_steps=4)
    whole = load_backbone(pretrain(experiment, tmp_path / "whole", console=silent))
    cut = pretrain(experiments.override(experiment, {"training.keep": 20}), tmp_path / "cut", console=silent)
    for path in checkpoints.checkpoints(cut / "checkpoints"):
        if checkpoints.step_of(path) > 8:
            path.unlink()
    (cut / "backbone.safetensors").unlink()
    weights.unlink()
    monkeypatch.setattr(assembly, "re_estimate", lambda *_: pytest.fail("a resumed run re-estimates"))
    resume(cut, console=silent)
    assert load_backbone(cut).content_hash() == whole.content_hash()


def test_a_network_without_batch_norms_is_refused(tmp_path: Path) -> None:
    options = {"img_size": 16, "patch_size": 4, "depth": 2, "embed_dim": 24, "num_heads": 2}
    network = NetworkConfig(name="vit_tiny_patch16_224", options=options)
    experiment = begun(save_backbone(random_backbone(network, 16), tmp_path / "vit.safetensors"), "digits-moco-v2")
    with pytest.raises(UserError, match=r"start\.batch_norm: .* no batch-norms to re-estimate; leave it out"):
        pretrain(experiment, tmp_path / "run", console=Console(file=io.StringIO()))


def test_an_image_alone_has_a_variance() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 8), nn.BatchNorm2d(2), nn.Flatten())
    backbone = Backbone(network, Preparation((0.0,) * 3, (1.0,) * 3, 8), NETWORK)
    re_estimate(backbone, open_source("digits", "train"), most=1)
    assert all(value.isfinite().all() for value in backbone.state_dict().values())
