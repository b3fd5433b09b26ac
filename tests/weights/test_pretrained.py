"""Backbones from hexa's own files, from runs and by name: the right tensors, or a one-line
error."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from torch import nn

from hexa.config import UserError
from hexa.core import Branch
from hexa.nn.backbones import NetworkConfig, SmallResNet, build
from hexa.nn.branch_norm import convert, use_branch
from hexa.runtime import checkpoints
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone, load_backbone, random_backbone, save_backbone
from tests.pickles import Calls
from tests.refusals import one_line
from tests.weights.test_layouts import assert_same, stirred

SMALL = NetworkConfig(
    name="small-resnet", widths=(4, 8), mean=(0.3, 0.4, 0.5), std=(0.2, 0.25, 0.3)
)


def test_image_range_refusal() -> None:
    """Images that are not pixels in [0, 1] are refused."""
    backbone = random_backbone(SMALL, 16)
    images = torch.rand(2, 3, 16, 16)
    images[0, :2, 0, 0] = torch.tensor([0.0, 1.0])  # one pixel is dark, one is bright
    before = backbone(images)
    for others, said in (
        ((images * 255).to(torch.uint8), "uint8; give floats in .0, 1."),
        (images * 255, "values from .* give pixels in .0, 1., such as images / 255"),
        ((images - 0.45) / 0.22, "which the backbone normalises"),
    ):
        with one_line(said):
            backbone(others)
    backbone(images + 0.1 * (images > 0.5))
    assert backbone(images[:0]).shape == (0, backbone.num_features)
    exported = torch.export.export(backbone, (images,)).module()
    assert torch.allclose(exported(images), before, atol=1e-5)
    assert torch.jit.trace(backbone, images, check_trace=False)(images).shape == before.shape


def run_folder(path: Path, network: NetworkConfig = SMALL, size: int = 16) -> Path:
    """The folder of a run without a checkpoint."""
    (path / "checkpoints").mkdir(parents=True)
    views = {"size": size // 2, "test_scale": 2.0}
    fields = {"recipe": "a-recipe", "network": network.model_dump(mode="json"), "views": views}
    (path / "config.yaml").write_text(yaml.safe_dump(fields))
    return path


def checkpoint(
    run: Path, step: int, network: nn.Module, query: str = "query", key: str = "key"
) -> Path:
    """Return the checkpoint of a momentum method: an encoder with a head, its twin with other
    values, a queue."""
    twin = stirred(SmallResNet(SMALL.widths), seed=9)
    state = {f"{key}.backbone.{name}": value for name, value in twin.state_dict().items()}
    state |= {f"{query}.backbone.{name}": value for name, value in network.state_dict().items()}
    state |= {f"{query}.head.weight": torch.ones(2, 8), "queue": torch.ones(3, 2)}
    path = run / "checkpoints" / f"step-{step:08d}.pt"
    torch.save({"format": checkpoints.FORMAT, "step": step, "method": state}, path)
    return path


def test_backbone_roundtrip(tmp_path: Path) -> None:
    """A saved backbone is loaded with all its fields."""
    info = {"recipe": "r", "step": 7, "branch": "main"}
    saved = Backbone(stirred(build(SMALL)), Preparation(SMALL.mean, SMALL.std, 16), SMALL, info)
    path = save_backbone(saved, tmp_path / "b.safetensors")
    loaded = load_backbone(path)
    images = torch.rand(3, 3, 16, 16)
    assert torch.equal(loaded(images), saved(images))
    assert loaded.preparation == saved.preparation
    assert loaded.info == info
    assert loaded.network_config == SMALL
    assert (loaded.num_features, loaded.training) == (8, False)
    assert [path.name for path in tmp_path.iterdir()] == ["b.safetensors"]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode  # as the umask says


@pytest.mark.parametrize("name", ["bad.pth", "bad.pkl"])
def test_weight_file_code_refusal(tmp_path: Path, name: str) -> None:
    """A file that runs code is refused and runs nothing."""
    content = {"model": {"conv1.weight": Calls(os.mkdir, str(tmp_path / "was-run"))}}
    if name == "bad.pkl":
        (tmp_path / name).write_bytes(pickle.dumps(content))
    else:
        torch.save(content, tmp_path / name)
    with pytest.raises(UserError, match=r"posix.mkdir"):
        load_backbone(tmp_path / name)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    "names", [("query", "key"), ("teacher", "student"), ("encoder", "momentum")]
)
def test_unfinished_run_backbone(tmp_path: Path, names: tuple[str, str]) -> None:
    """An unfinished run gives its newest good checkpoint."""
    run = run_folder(tmp_path / "run")
    older = stirred(build(SMALL), 1)
    newer = stirred(convert(build(SMALL), ("main", "aux")), 2)
    first = checkpoint(run, 5, older, *names)
    newest = checkpoint(run, 10, newer, *names)
    images = torch.rand(2, 3, 16, 16)
    found = load_backbone(run)
    assert_same(found(images), newer(found.normalize(images)))
    expected = {
        "recipe": "a-recipe",
        "encoder": names[0],
        "branch": "main",
        "checkpoint": newest.name,
        "step": 10,
    }
    assert found.info == expected
    named = load_backbone(first)
    assert_same(named(images), older(named.normalize(images)))

    newest.write_bytes(newest.read_bytes()[:2000])
    assert load_backbone(run).info["step"] == 5

    finished = random_backbone(SMALL, 16, seed=3)
    save_backbone(finished, run / "backbone.safetensors")
    assert torch.equal(load_backbone(run)(images), finished(images))


def test_auxiliary_branch_backbone(tmp_path: Path) -> None:
    """A run is loaded with its further batch norms."""
    run = run_folder(tmp_path / "run")
    network = stirred(convert(build(SMALL), ("main", "aux")), 2)
    path = checkpoint(run, 10, network)
    save_backbone(random_backbone(SMALL, 16), run / "backbone.safetensors")
    images = torch.rand(2, 3, 16, 16)
    for spec in (run, path):
        found = load_backbone(spec, branch="aux")
        with use_branch(network, Branch("aux", training=False)):
            assert_same(found(images), network(found.normalize(images)))
        assert found.info["branch"] == "aux"
        assert load_backbone(found, branch="aux") is found
    for spec, match in (
        (
            run / "backbone.safetensors",
            "'other' are kept only in the checkpoints of a run; give its folder",
        ),
        ("random:resnet18", "folder"),
        (found, "'other'"),
        (run, "no batch-norms 'other'"),
    ):
        with pytest.raises(UserError, match=match):
            load_backbone(spec, branch="other")


def test_run_without_usable_checkpoint(tmp_path: Path) -> None:
    """A run without checkpoint, or with a foreign one, says so."""
    run = run_folder(tmp_path / "run")
    with pytest.raises(UserError, match="hexa resume"):
        load_backbone(run)
    torch.save(
        {"method": {"conv1.weight": torch.ones(1)}}, run / "checkpoints" / "step-00000001.pt"
    )
    with pytest.raises(UserError, match=r"does not have the network in config\.yaml"):
        load_backbone(run)
    (run / "config.yaml").write_text("network: [")
    with pytest.raises(UserError, match=r"not the config\.yaml of a run"):
        load_backbone(run)


def test_random_weight_seed(tmp_path: Path) -> None:
    """Random weights follow the seed and leave the generator alone."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = load_backbone("random:small-resnet-4-8", 0)
    again = load_backbone("random:small-resnet-4-8", 0)
    other = load_backbone("random:small-resnet-4-8", 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.content_hash() == again.content_hash() != other.content_hash()
    of_run = load_backbone(f"random:{run_folder(tmp_path / 'run')}")
    assert of_run.network_config == SMALL
    assert of_run.image_size == 16


def test_note_in_a_file(tmp_path: Path) -> None:
    """Notes are hexa's own; a file that holds one cannot speak in its name."""
    path = save_backbone(random_backbone(SMALL, 16), tmp_path / "b.safetensors")
    with safetensors.safe_open(path, framework="pt") as file:
        fields = json.loads(file.metadata()["hexa"])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    fields["info"]["note"] = 5
    safetensors.torch.save_file(state, path, {"hexa": json.dumps(fields)})
    assert load_backbone(path).said() is None


@pytest.mark.parametrize("name", ["backbone.safetensors", "config.yaml", "checkpoints"])
def test_links_out_of_a_run(tmp_path: Path, name: str) -> None:
    """Files of a run are read from its own folder, or from the downloads of the hub's client."""
    outside = tmp_path / "blobs"
    run = run_folder(tmp_path / "run")
    backbone = random_backbone(SMALL, 16)
    if name == "backbone.safetensors":
        save_backbone(backbone, run / name)
    else:
        method = {f"query.{key}": value for key, value in backbone.state_dict().items()}
        checkpoints.save(run / "checkpoints", 3, {"method": method})
    before = load_backbone(run).content_hash()
    (run / name).rename(outside)
    (run / name).symlink_to(outside)
    with one_line("is a link out of its folder|has no intact checkpoint"):
        load_backbone(run)
    (tmp_path / "snapshots").mkdir()
    run.rename(tmp_path / "snapshots" / "abc")
    assert load_backbone(tmp_path / "snapshots" / "abc").content_hash() == before
