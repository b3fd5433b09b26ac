"""A run that begins from weights: what it takes over, what it keeps, and how gently it learns."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

from hexa import recipes
from hexa.config import ConfigError, UserError
from hexa.nn.backbones import NetworkConfig
from hexa.nn.trunk import Trunk
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment
from hexa.run.build import Machine, build_method, remembering, setting_of
from hexa.run.run import pretrain, resume
from hexa.run.start import begin_from_weights
from hexa.weights import start
from hexa.weights.pretrained import Backbone, load_backbone, random_backbone, save_backbone
from tests.end_to_end.endings import ALONE
from tests.run.test_every_method import stopped

NETWORK = NetworkConfig(
    name="small-resnet", widths=(4, 8), mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4)
)
TINY = ALONE | {"batch_size": 64, "epochs": 1, "method.queue_size": 256}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A backbone with statistics of its own, as one that was trained has."""
    backbone = random_backbone(NETWORK, 8, seed=5)
    for module in backbone.network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return save_backbone(backbone, tmp_path / "start.safetensors")


def begun(weights: Path | str, recipe: str = "digits-hexa-moco", **changes: Any) -> Experiment:
    given = TINY | {name.replace("__", "."): value for name, value in changes.items()}
    given["start.weights"] = str(weights)
    return begin_from_weights(experiments.override(recipes.get(recipe), given), given)


def trained(experiment: Experiment, folder: Path) -> Backbone:
    return load_backbone(pretrain(experiment, folder, console=Console(file=io.StringIO())))


def split(backbone: Backbone) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters, and statistics."""
    network = backbone.network
    return dict(network.named_parameters()), dict(network.named_buffers())


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    assert left.keys() == right.keys()
    return all(torch.equal(value, right[name]) for name, value in left.items())


# -- what is taken over -----------------------------------------------------------------------------------------------


def test_start_inherited_fields(weights: Path) -> None:
    """Network, normalisation and size come with the weights unless given."""
    experiment = begun(weights)
    assert experiment.network == NETWORK
    assert experiment.views.size == 8
    assert experiment.start.sha256 is not None
    assert begin_from_weights(experiment) == experiment
    experiment = begun(weights, views__size=16, network__mean=[0.5, 0.5, 0.5])
    assert experiment.views.size == 16
    assert experiment.network.mean == (0.5, 0.5, 0.5)
    assert experiment.network.std == NETWORK.std


@pytest.mark.parametrize(
    ("recipe", "encoders"),
    [
        ("digits-hexa-moco", 2),
        ("cifar10-dino-vit+small+adversarial", 2),
        ("cifar10-deepcluster-v2+small+adversarial", 1),
    ],
)
def test_start_weights_in_encoders(weights: Path, recipe: str, encoders: int) -> None:
    """Backbone, twin and further batch norms are filled."""
    given = {"start.weights": str(weights), "training.device": "cpu", "training.precision": "fp32"}
    experiment = begin_from_weights(experiments.override(recipes.get(recipe), given), given)
    method = build_method(experiment, setting_of(experiment, 50_000), Machine.of(experiment))
    source = load_backbone(weights).network.state_dict()
    checked = 0
    for path, value in method.state_dict().items():
        encoder, _, inner = path.partition("backbone.")
        plain = inner.replace(".aux.", ".")
        if encoder and plain in source:
            assert torch.equal(value, source[plain]), path
            checked += 1
    assert checked > encoders * len(source)  # the auxiliary batch-norms beside


def vit(folder: Path, side: int, patch: int, width: int = 24) -> Path:
    """A transformer of two blocks."""
    options = {"img_size": side, "patch_size": patch, "depth": 2, "embed_dim": width}
    options["num_heads"] = width // 12
    config = NetworkConfig(name="vit_tiny_patch16_224", options=options)
    return save_backbone(random_backbone(config, side, seed=5), folder / "vit.safetensors")


def test_start_position_interpolation(tmp_path: Path) -> None:
    """Positions of a transformer are interpolated."""
    path = vit(tmp_path, 16, 4)
    experiment = begun(path, "digits-moco-v2", views__size=32)
    assert experiment.network.options["img_size"] == 32
    given = load_backbone(path).network.state_dict()
    found = start.begun(experiment.network, experiment.start).state_dict()
    assert found["pos_embed"].shape == (1, 65, 24)
    assert torch.equal(found["pos_embed"][:, 0], given["pos_embed"][:, 0])
    # a corner of the larger grid is near the corner of the smaller one
    assert torch.cosine_similarity(found["pos_embed"][0, 1], given["pos_embed"][0, 1], dim=0) > 0.9
    assert torch.equal(found["blocks.0.attn.qkv.weight"], given["blocks.0.attn.qkv.weight"])


def test_start_transformer_small_crops(tmp_path: Path) -> None:
    """Recipes' crops are rounded to patches, and the network takes images of all their sizes."""
    crops = [{"count": 2, "size": 20}]
    recipe = experiments.override(
        recipes.get("digits-moco-v2"), {"views.size": 32, "views.extra_crops": crops}
    )
    given = {"start.weights": str(vit(tmp_path, 64, 8)), "views.size": 32}
    experiment = begin_from_weights(experiments.override(recipe, given), given)
    found = [group.size for group in experiment.views.groups]
    assert found == [32, 16]
    assert experiment.network.options["dynamic_img_size"]
    network = start.begun(experiment.network, experiment.start)
    assert [network(torch.zeros(2, 3, size, size)).shape[1] for size in (32, 16)] == [24, 24]
    assert network.pos_embed.shape == (1, 17, 24)


@pytest.mark.parametrize("with_weights", [True, False])
def test_views_between_patches(with_weights: bool, tmp_path: Path) -> None:
    """Views that patches do not divide are refused."""
    given: dict[str, Any] = {"views.size": 36}
    if with_weights:
        given["start.weights"] = str(vit(tmp_path, 64, 8))
    else:
        given["network.name"] = "vit_tiny_patch16_224"
    sides = "8 px; give 32 or 40" if with_weights else "16 px; give 32 or 48"
    with pytest.raises(ConfigError, match=f"views.size: .* has patches of {sides}"):
        begin_from_weights(experiments.override(recipes.get("digits-moco-v2"), given), given)


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_start_batch_norm_statistics(weights: Path, tmp_path: Path) -> None:
    """Statistics are kept, or follow."""
    parameters, statistics = split(load_backbone(weights))
    kept = split(trained(begun(weights), tmp_path / "keep"))
    assert equal(kept[1], statistics)
    assert not equal(kept[0], parameters)
    assert not equal(
        split(trained(begun(weights, start__batch_norm="follow"), tmp_path / "follow"))[1],
        statistics,
    )


def test_frozen_backbone_epochs(weights: Path, tmp_path: Path) -> None:
    """A frozen backbone stays until its epoch."""
    parameters, _ = split(load_backbone(weights))
    assert equal(
        split(trained(begun(weights, start__freeze_backbone=1), tmp_path / "one"))[0], parameters
    )
    thawed = trained(begun(weights, start__freeze_backbone=1, epochs=2), tmp_path / "two")
    assert not equal(split(thawed)[0], parameters)


def test_frozen_without_head(weights: Path, tmp_path: Path) -> None:
    """A frozen backbone without a head has nothing to learn."""
    given = {
        **TINY,
        "data": "digits",
        "start.weights": str(weights),
        "start.freeze_backbone": 1,
    }
    del given["method.queue_size"]
    teacher = recipes.get("teacher")
    experiment = begin_from_weights(experiments.override(teacher, given), given)
    with pytest.raises(ConfigError, match=r"start\.freeze_backbone"):
        trained(experiment, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_layer_decay_rates(weights: Path) -> None:
    """Rates fall by stage."""
    experiment = begun(weights, start__backbone_rate=0.5, start__layer_decay=0.1)
    method = build_method(experiment, setting_of(experiment, 1347), Machine.of(experiment))
    rates = start.rates(method, experiment.start)
    encoder = method.query  # type: ignore[attr-defined]
    named = {name: rates[p] for name, p in encoder.backbone.named_parameters()}
    assert named["layer2.0.conv1.weight"] == pytest.approx(0.5)
    assert named["layer1.0.bn1.aux.weight"] == pytest.approx(0.05)
    assert named["conv1.weight"] == pytest.approx(0.005)
    assert set(rates) == set(
        encoder.backbone.parameters()
    )  # neither the head nor the momentum twin


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_resume_without_start(weights: Path, tmp_path: Path) -> None:
    """A resumed run needs its start no more and ends the same."""
    fields = {"epochs": 2, "training__checkpoint_every_steps": 4, "training__keep": 20}
    whole = trained(
        begun(weights, start__freeze_backbone=1, start__layer_decay=0.5, **fields),
        tmp_path / "whole",
    )
    cut = stopped(tmp_path / "whole", tmp_path / "cut", 12)
    weights.unlink()
    resume(cut, console=Console(file=io.StringIO()))
    assert load_backbone(cut).content_hash() == whole.content_hash()


REPEATING = {
    "data": "digits",
    "epochs": 5,
    "batch_size": 256,
    "views.size": 8,
    "start.view_sets": 2,
}
REPEATING |= {
    "start.trainable_stages": 1,
    "start.freeze_backbone": 1,
    "training.checkpoint_every_steps": 1,
}


def repeating(weights: Path, **changes: Any) -> Experiment:
    given = ALONE | REPEATING | changes | {"start.weights": str(weights), "training.keep": 30}
    return begin_from_weights(experiments.override(recipes.get("adapt"), given), given)


@pytest.fixture
def trunk_calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The batches that go through the part that does not learn."""
    called = Mock(side_effect=Trunk.__call__, autospec=True)
    monkeypatch.setattr(Trunk, "__call__", lambda self, batch: called(self, batch))
    return called


@pytest.mark.parametrize("room", [None, 600_000], ids=["all", "a batch"])
def test_trunk_map_cache(
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trunk_calls: Mock,
    room: int | None,
) -> None:
    """Ten of 25 batches, or all but two where there is room for one; resumed, with none in memory, it ends the same."""
    limits = (
        {} if room is None else {"training.resident_limit_bytes": room, "training.num_workers": 0}
    )
    made = repeating(weights, **limits)
    whole = trained(made, tmp_path / "whole")
    steps = 1347 // 256
    expected = 2 * steps if room is None else 5 * steps - 2
    assert trunk_calls.call_count == expected
    cut = stopped(tmp_path / "whole", tmp_path / "cut", 3 * steps + 2)
    resume(cut, console=Console(file=io.StringIO()))
    assert load_backbone(cut).content_hash() == whole.content_hash()
    before = load_backbone(weights).network.state_dict()
    after = whole.network.state_dict()
    found = {name.split(".")[0] for name in after if not torch.equal(before[name], after[name])}
    assert found == {"layer2"}
    if room is None:  # on pixels it is the same, within rounding
        monkeypatch.setattr(Trunk, "of", lambda *_: None)
        plain = trained(made, tmp_path / "plain").network.state_dict()
        assert all(torch.allclose(plain[name], after[name], atol=1e-4) for name in after)
        fresh = trained(repeating(weights, **{"start.view_sets": None}), tmp_path / "fresh")
        assert fresh.content_hash() != whole.content_hash()


def test_trunk_token_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trunk_calls: Mock
) -> None:
    """A ViT whose last block learns ends as it does on pixels, within rounding; other blocks stay as they were."""
    start_file = vit(tmp_path, 8, 4, 48)
    made = repeating(start_file)
    found = trained(made, tmp_path / "run").network.state_dict()
    assert trunk_calls.call_count == 2 * (1347 // 256)
    before = load_backbone(start_file).network.state_dict()
    changed = {
        name.rpartition(".")[0] for name in found if not torch.equal(before[name], found[name])
    }
    assert changed
    assert all(name.startswith(("blocks.1.", "norm")) for name in changed)
    monkeypatch.setattr(Trunk, "of", lambda *_: None)
    plain = trained(made, tmp_path / "plain").network.state_dict()
    assert all(torch.allclose(plain[name], found[name], atol=1e-4) for name in found)


def test_trunk_cache_condition(weights: Path) -> None:
    """Maps are remembered only if they never change."""
    made = repeating(weights, **{"start.batch_norm": "follow"})
    machine = Machine.of(made)
    assert remembering(made, build_method(made, setting_of(made, 1347), machine), machine) is None


def test_changed_start_weights(weights: Path, tmp_path: Path) -> None:
    """Other weights under the same name are refused."""
    experiment = begun(weights)
    save_backbone(random_backbone(NETWORK, 8, seed=6), weights)
    with pytest.raises(UserError, match="has changed since this experiment began"):
        trained(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
