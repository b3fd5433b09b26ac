"""Backbones from files of every layout: the right tensors, or one clear line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import timm
import torch
import torchvision
import yaml
from torch import nn

from hexa.config import UserError
from hexa.nn import timm_weights
from hexa.nn.backbones import NetworkConfig, SmallResNet, build, use_small_stem
from hexa.nn.branch_norm import convert, use_branch
from hexa.nn.metadata import metadata_of
from hexa.nn.preparation import Preparation
from hexa.nn.pretrained import Backbone, load_backbone, random_backbone, save_backbone

SMALL = NetworkConfig(name="small-resnet", widths=(4, 8), mean=(0.3, 0.4, 0.5), std=(0.2, 0.25, 0.3))


def stirred(network: nn.Module, seed: int = 0) -> nn.Module:
    """Running statistics and affine parameters of their own, so that a lost one shows in the features."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in network.state_dict().items():
        if value.dtype.is_floating_point:
            noise = torch.rand(value.shape, generator=generator)
            value.mul_(0.5 + noise) if "running_var" in name else value.add_(0.1 * (noise - 0.5))
    return network.eval()


def torchvision_resnet(name: str = "resnet18", small: bool = False) -> nn.Module:
    network = torchvision.models.get_model(name, weights=None)
    return stirred(use_small_stem(network) if small else network)


def features_of(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What a torchvision network hands to its classifier, for ImageNet's statistics."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    head, network.fc = network.fc, nn.Identity()
    with torch.no_grad():
        found = network((images - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1))
    network.fc = head
    return found


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Alike but for the order of sums: a lost or mixed-up tensor moves features by far more."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def run_folder(path: Path, config: NetworkConfig = SMALL) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    fields = {"recipe": "a-recipe", "network": config.model_dump(mode="json"), "views": {"size": 16}}
    (path / "config.yaml").write_text(yaml.safe_dump(fields))
    (path / "checkpoints").mkdir(exist_ok=True)
    return path


def method_state(network: nn.Module, query: str = "query", key: str = "key") -> dict[str, torch.Tensor]:
    """As a momentum method's state: an encoder with a head, its slow twin with other values, a queue."""
    twin = stirred(SmallResNet(SMALL.widths), seed=9)
    state = {f"{key}.backbone.{name}": value for name, value in twin.state_dict().items()}
    state |= {f"{query}.backbone.{name}": value for name, value in network.state_dict().items()}
    return {**state, f"{query}.head.weight": torch.ones(2, 8), "queue": torch.ones(3, 2)}


def test_what_is_saved_comes_back_with_all_it_carries(tmp_path: Path) -> None:
    network = stirred(build(SMALL))
    saved = Backbone(
        network, Preparation(SMALL.mean, SMALL.std, 16), SMALL, {"recipe": "r", "step": 7, "branch": "main"}
    )
    save_backbone(saved, tmp_path / "b.safetensors")
    loaded = load_backbone(tmp_path / "b.safetensors")
    images = torch.rand(3, 3, 16, 16)
    assert torch.equal(loaded(images), saved(images))
    assert (loaded.mean, loaded.std, loaded.image_size) == (SMALL.mean, SMALL.std, 16)
    assert loaded.info == {"recipe": "r", "step": 7, "branch": "main"}
    assert loaded.network_config == SMALL
    assert loaded.num_features == 8
    assert not loaded.training
    assert [path.name for path in tmp_path.iterdir()] == ["b.safetensors"]
    (tmp_path / "other").touch()
    assert (tmp_path / "b.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode  # as the umask says


def test_pixels_are_normalised_inside() -> None:
    backbone = random_backbone(SMALL, 16)
    images = torch.rand(2, 3, 16, 16)
    by_hand = torch.stack([(images[:, c] - SMALL.mean[c]) / SMALL.std[c] for c in range(3)], 1)
    assert_same(backbone(images), backbone.network(by_hand))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("prefix", ["module.encoder_q.", "", "module.", "backbone."])
def test_checkpoints_of_others_give_their_own_features(tmp_path: Path, prefix: str, small: bool) -> None:
    network = torchvision_resnet(small=small)
    other = torchvision_resnet(small=small)
    state: dict[str, Any] = {prefix + name: value for name, value in network.state_dict().items()}
    if "encoder_q" in prefix:  # MoCo v2: an MLP in the place of fc, the key encoder, the queue (REFERENCE §2.5)
        state = {name: value for name, value in state.items() if ".fc." not in name}
        state |= {f"{prefix}fc.{n}.{kind}": torch.ones(3) for n in (0, 2) for kind in ("weight", "bias")}
        stirred(other, seed=5)
        state |= {f"module.encoder_k.{name}": value for name, value in other.state_dict().items()}
        state |= {"module.queue": torch.ones(4, 8), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    file = tmp_path / "checkpoint_0199.pth.tar"
    torch.save({"epoch": 200, "arch": "resnet18", "state_dict": state, "optimizer": {"state": {}}}, file)
    backbone = load_backbone(file)
    images = torch.rand(2, 3, 40, 40)
    assert backbone.image_size == (32 if small else 224)
    assert_same(backbone(images), features_of(network, images))
    assert backbone.network_config.small_stem == small


@pytest.mark.parametrize("name", ["resnet34", "resnext50_32x4d", "wide_resnet50_2", "resnet50"])
def test_resnets_of_the_same_depth_are_told_apart(tmp_path: Path, name: str) -> None:
    torch.save(torchvision.models.get_model(name, weights=None).state_dict(), tmp_path / "plain.pth")
    assert load_backbone(tmp_path / "plain.pth").network_config.name == name


def test_any_timm_network_can_be_named(tmp_path: Path) -> None:
    network = timm.create_model("vit_tiny_patch16_224").eval()
    torch.save(network.state_dict(), tmp_path / "vit.pth")
    with pytest.raises(UserError, match=r"vit\.pth#NETWORK"):
        load_backbone(tmp_path / "vit.pth")
    with pytest.raises(UserError, match="vit_tiny"):
        load_backbone(f"{tmp_path / 'vit.pth'}#vit_tiny_patch16_22")
    backbone = load_backbone(f"{tmp_path / 'vit.pth'}#vit_tiny_patch16_224")
    images = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        expected = network.forward_head(network.forward_features(backbone.normalize(images)), pre_logits=True)
        assert_same(backbone(images), expected)


def test_equal_backbones_are_equal_files(tmp_path: Path) -> None:
    """safetensors draws the order of metadata anew for each file."""
    backbone = random_backbone(NetworkConfig(name="small-resnet", widths=(4, 8)), 16)
    made = {save_backbone(backbone, tmp_path / f"{n}.safetensors").read_bytes() for n in range(8)}
    assert len(made) == 1
    with safetensors.safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        assert file.metadata() == metadata_of(backbone)
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(load_backbone(tmp_path / "0.safetensors")(images), backbone(images))


def test_a_safetensors_file_of_others_needs_no_metadata(tmp_path: Path) -> None:
    network = torchvision_resnet()
    safetensors.torch.save_file(network.state_dict(), tmp_path / "plain.safetensors")
    images = torch.rand(2, 3, 40, 40)
    assert_same(load_backbone(tmp_path / "plain.safetensors")(images), features_of(network, images))


def test_a_file_that_runs_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "was-run"),)

    torch.save({"state_dict": {"conv1.weight": Malicious()}}, tmp_path / "bad.pth")
    with pytest.raises(UserError, match="refused"):
        load_backbone(tmp_path / "bad.pth")
    assert not (tmp_path / "was-run").exists()
    torch.load(tmp_path / "bad.pth", weights_only=False)
    assert (tmp_path / "was-run").exists(), "the file would have run code"


@pytest.mark.parametrize("change", ["lacks", "unknown", "shape"])
def test_a_key_that_does_not_match_is_named(tmp_path: Path, change: str) -> None:
    state = torchvision_resnet().state_dict()
    if change == "lacks":
        del state["layer2.0.bn1.bias"]
        expected = "layer2.0.bn1.bias"
    elif change == "unknown":
        state["layer2.0.gate.weight"] = torch.ones(1)
        expected = "layer2.0.gate.weight"
    else:
        state["layer3.1.bn2.weight"] = torch.ones(5)
        expected = "layer3.1.bn2.weight"
    torch.save(state, tmp_path / "plain.pth")
    with pytest.raises(UserError, match=expected.replace(".", r"\.")):
        load_backbone(tmp_path / "plain.pth")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("layer3.0.conv1.weight"), "it lacks layer3.0.conv1.weight"),
        (
            lambda state: state.update({"layer3.0.convX.weight": state.pop("layer3.0.conv1.weight")}),
            "it lacks layer3.0.conv1.weight; unknown keys are layer3.0.convX.weight",
        ),
        (
            lambda state: state.update({"conv1.weight": state["conv1.weight"][:, :1]}),
            "of another shape are conv1.weight",
        ),
    ],
)
def test_a_convolution_that_does_not_match_is_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    state = {
        key: value for key, value in torchvision.models.resnet18().state_dict().items() if not key.startswith("fc.")
    }
    change(state)
    torch.save(
        {"state_dict": {f"module.encoder_q.{key}": value for key, value in state.items()}}, tmp_path / "m.pth.tar"
    )
    with pytest.raises(UserError, match=re.escape(f"almost a resnet18, but {said}")):
        load_backbone(tmp_path / "m.pth.tar")


def test_what_would_run_code_is_named_and_text_is_no_checkpoint(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("false",)

    torch.save({"state_dict": {}, "x": Harm()}, tmp_path / "harm.pth")
    with pytest.raises(UserError, match=r"would run code \(it names posix\.system\); if you trust it, save only its"):
        load_backbone(tmp_path / "harm.pth")
    (tmp_path / "text.pth").write_text("hello world\n" * 20)
    with pytest.raises(UserError, match="not a checkpoint: it begins with b'hello world"):
        load_backbone(tmp_path / "text.pth")


def test_a_further_batch_norm_set_is_dropped_and_nothing_else(tmp_path: Path) -> None:
    network = torchvision_resnet()
    images = torch.rand(2, 3, 40, 40)
    expected = features_of(network, images)
    doubled = convert(network, ("main", "aux"))
    torch.save(doubled.state_dict(), tmp_path / "doubled.pth")
    assert any(".aux." in name for name in doubled.state_dict())
    assert_same(load_backbone(tmp_path / "doubled.pth")(images), expected)
    torch.save({**doubled.state_dict(), "layer1.0.extra.weight": torch.ones(1)}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"layer1\.0\.extra\.weight"):
        load_backbone(tmp_path / "other.pth")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04" + bytes(60)])
@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
def test_a_broken_file_is_one_line(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="x") as caught:
        load_backbone(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_half_a_checkpoint_is_one_line(tmp_path: Path) -> None:
    torch.save(torchvision_resnet().state_dict(), tmp_path / "whole.pth")
    data = (tmp_path / "whole.pth").read_bytes()
    (tmp_path / "half.pth").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"half\.pth: not a complete checkpoint"):
        load_backbone(tmp_path / "half.pth")


@pytest.mark.parametrize("names", [("query", "key"), ("teacher", "student"), ("encoder", "momentum")])
def test_an_unfinished_run_gives_its_newest_good_checkpoint(tmp_path: Path, names: tuple[str, str]) -> None:
    run = run_folder(tmp_path / "run")
    older, newer = stirred(build(SMALL), 1), stirred(convert(build(SMALL), ("main", "aux")), 2)
    for step, network in ((5, older), (10, newer)):
        state = {"format": "hexa-checkpoint-1", "step": step, "method": method_state(network, *names)}
        torch.save(state, run / "checkpoints" / f"step-{step:08d}.pt")
    images = torch.rand(2, 3, 16, 16)
    found = load_backbone(run)
    assert_same(found(images), newer(found.normalize(images)))
    assert found.info["step"] == 10
    assert found.info["recipe"] == "a-recipe"
    named = load_backbone(run / "checkpoints" / "step-00000005.pt")
    assert_same(named(images), older(named.normalize(images)))

    newest = run / "checkpoints" / "step-00000010.pt"
    newest.write_bytes(newest.read_bytes()[:2000])
    assert load_backbone(run).info["step"] == 5

    finished = random_backbone(SMALL, 16, seed=3)
    save_backbone(finished, run / "backbone.safetensors")
    assert torch.equal(load_backbone(run)(images), finished(images))


def test_a_run_is_loaded_with_its_further_batch_norms(tmp_path: Path) -> None:
    run, network = run_folder(tmp_path / "run"), stirred(convert(build(SMALL), ("main", "aux")), 2)
    state = {"format": "hexa-checkpoint-1", "step": 10, "method": method_state(network, "query", "key")}
    torch.save(state, run / "checkpoints" / "step-00000010.pt")
    save_backbone(random_backbone(SMALL, 16), run / "backbone.safetensors")
    images = torch.rand(2, 3, 16, 16)
    for spec in (run, run / "checkpoints" / "step-00000010.pt"):
        found = load_backbone(spec, branch="aux")
        with use_branch(network, "aux", training=False):
            assert_same(found(images), network(found.normalize(images)))
        assert found.info["branch"] == "aux"
        assert load_backbone(found, branch="aux") is found
    for spec, match in ((run / "backbone.safetensors", "folder"), ("random:resnet18", "folder"), (found, "'other'")):
        with pytest.raises(UserError, match=match):
            load_backbone(spec, branch="other")
    with pytest.raises(UserError, match="no batch-norms 'other'"):
        load_backbone(run, branch="other")


def test_a_run_without_checkpoint_or_with_a_foreign_one_says_so(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    with pytest.raises(UserError, match="hexa resume"):
        load_backbone(run)
    torch.save({"method": {"conv1.weight": torch.ones(1)}}, run / "checkpoints" / "step-00000001.pt")
    with pytest.raises(UserError, match=r"config\.yaml"):
        load_backbone(run)
    (run / "config.yaml").write_text("network: [")
    with pytest.raises(UserError, match=r"config\.yaml"):
        load_backbone(run)


def test_random_weights_follow_the_seed_and_leave_the_generator_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again, other = (load_backbone("random:small-resnet-4-8", seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.content_hash() == again.content_hash() != other.content_hash()
    assert load_backbone("random:resnet18").num_features == 512


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "ghostnet_050", "test_vit", "test_resnet"])
def test_the_width_of_features_is_that_of_what_comes_out(name: str) -> None:
    """Some networks of timm have a layer after the pooling."""
    backbone = load_backbone(f"random:{name}")
    size = backbone.image_size
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, size, size)).shape == (1, backbone.num_features)


def test_random_takes_the_network_of_a_run(tmp_path: Path) -> None:
    found = load_backbone(f"random:{run_folder(tmp_path / 'run')}")
    assert (found.network_config, found.image_size) == (SMALL, 16)


def test_pixels_as_features() -> None:
    images = torch.rand(2, 3, 8, 8)
    backbone = load_backbone("pixels:8")
    assert torch.equal(backbone(images), images.reshape(2, -1))
    assert backbone.num_features == 192


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere", "nowhere: no such"),
        ("random:resnet81", "resnet18"),
        ("timm:resnet81", "resnet18"),
        ("pixels:x", "pixels:16"),
    ],
)
def test_a_wrong_name_says_what_is_known(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_backbone(spec)


def test_the_state_has_the_plain_names_alone_and_inside_another_module() -> None:
    config = NetworkConfig(name="resnet18")
    backbone = random_backbone(config, 32)
    plain = timm.create_model("resnet18", num_classes=0)
    plain.load_state_dict(backbone.state_dict(), strict=True)
    assert torch.equal(plain.conv1.weight, backbone.network.conv1.weight)
    other = random_backbone(config, 32, seed=1)
    nested, target = nn.Sequential(backbone, nn.Linear(512, 3)), nn.Sequential(other, nn.Linear(512, 3))
    assert "0.conv1.weight" in nested.state_dict()
    target.load_state_dict(nested.state_dict(), strict=True)
    assert other.content_hash() == backbone.content_hash()
    other.load_state_dict(plain.state_dict())


def test_timm_weights_that_cannot_be_fetched_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*given: Any, **options: Any) -> nn.Module:
        assert options["pretrained"]
        raise OSError("no route\nto host")

    monkeypatch.setattr(timm, "create_model", unreachable)
    monkeypatch.setattr(timm_weights, "_answers", lambda address: True)
    with pytest.raises(
        UserError, match=r"timm:resnet18: its weights .*\(no route to host\).*random:resnet18"
    ) as caught:
        load_backbone("timm:resnet18")
    assert "\n" not in str(caught.value)
