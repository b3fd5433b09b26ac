"""Checkpoints are complete, or recognised as damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from hexa.runtime import checkpoints
from hexa.runtime.checkpoints import BadCheckpoint
from tests.pickles import Calls


def refused(path: Path, said: str = "") -> None:
    with pytest.raises(BadCheckpoint, match=said):
        checkpoints.load(path)


def state() -> checkpoints.State:
    """Tensors of several types, and what an optimizer keeps."""
    weight = torch.rand(8, 3, 3, 3).to(memory_format=torch.channels_last)
    half = torch.rand(3).bfloat16()
    group = {"lr": 0.1, "nesterov": False, "foreach": None, "params": [0]}
    return {
        "method": {"weight": weight, "half": half, "count": torch.tensor(7)},
        "optimizer": {"state": {0: {"momentum_buffer": weight}}, "param_groups": [group]},
        "epoch": 1.5,
        "window": {"names": ["a"], "count": 2},
    }


def test_checkpoint_roundtrip(tmp_path: Path) -> None:
    """Everything comes back bit for bit."""
    original = state()
    path = checkpoints.save(tmp_path, 123, original)
    assert path.name == "step-00000123.pt"
    loaded = checkpoints.load(checkpoints.save(tmp_path, 123, checkpoints.load(path)))
    assert loaded["step"] == 123
    assert loaded["epoch"] == original["epoch"]
    assert loaded["window"] == original["window"]
    for part in ("method", "optimizer"):
        torch.testing.assert_close(loaded[part], original[part], rtol=0, atol=0)


def test_bad_newest_checkpoint(tmp_path: Path) -> None:
    """A newer damaged file does not displace good ones."""
    checkpoints.save(tmp_path, 10, state())
    checkpoints.path_of(tmp_path, 90).write_bytes(b"bad")
    checkpoints.save(tmp_path, 20, state())
    checkpoints.save(tmp_path, 30, state())
    assert [checkpoints.step_of(path) for path in checkpoints.checkpoints(tmp_path)] == [20, 30, 90]


def shards(count: int, seed: int = 0) -> list[checkpoints.State]:
    """States of several processes, each with its own rows."""
    rows = torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))
    parts: list[checkpoints.State] = [{"method": {"bank": row}} for row in rows]
    parts[0]["method"]["weight"] = torch.ones(2)
    parts[0]["parts"] = count
    return parts


def save_parts(folder: Path, step: int, order: tuple[int, ...] = (2, 0, 1), **kept: int) -> None:
    """Save three parts in this order."""
    checkpoints.begin(folder, step, 3)
    for part in order:
        checkpoints.save(folder, step, shards(3, step)[part], part, **kept)


def names(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("step-000000") for path in folder.iterdir())


def test_parts_roundtrip(tmp_path: Path) -> None:
    """A sharded entry comes back as its parts in rank order; other entries are of the first
    process."""
    save_parts(tmp_path, 10)
    assert names(tmp_path) == ["10.part1", "10.part2", "10.pt"]
    _, found = checkpoints.newest_good(tmp_path, pytest.fail)
    expected = [one["method"]["bank"] for one in shards(3, 10)]
    torch.testing.assert_close(found["method"]["bank"], expected, rtol=0, atol=0)
    assert torch.equal(found["method"]["weight"], torch.ones(2))


@pytest.mark.parametrize(
    "order",
    [
        (),
        (0,),
        (1, 2),
        (0, 2),
        (2, 0),
    ],
)
def test_unfinished_parts(tmp_path: Path, order: tuple[int, ...]) -> None:
    """A checkpoint counts once all parts are there; until then the one before stays."""
    save_parts(tmp_path, 10, keep=1)
    save_parts(tmp_path, 20, order, keep=1)
    assert checkpoints.newest_good(tmp_path, pytest.fail)[0].name == "step-00000010.pt"
    # what a killed process left is no part of a later save, of the same or another step
    checkpoints.begin(tmp_path, 20, 1)
    assert names(tmp_path) == ["10.part1", "10.part2", "10.pt"]
    checkpoints.save(tmp_path, 20, shards(1, 20)[0], keep=1)
    assert names(tmp_path) == ["20.pt"]
    assert checkpoints.newest_good(tmp_path, pytest.fail)[1]["parts"] == 1


@pytest.mark.parametrize("deleted", range(4))
def test_killed_before_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    """If a process is killed while it deletes what another left of a step, the step is not taken
    for a complete one."""
    save_parts(tmp_path, 10)
    save_parts(tmp_path, 20, (0, 2))
    left = iter([True] * deleted)
    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if not next(left, False):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    # marks first, as a file system may list them
    monkeypatch.setattr(Path, "iterdir", lambda folder: sorted(folder.glob("*"), reverse=True))
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        checkpoints.begin(tmp_path, 20, 3)
    assert checkpoints.newest_good(tmp_path, pytest.fail)[0].name == "step-00000010.pt"


def test_old_parts(tmp_path: Path) -> None:
    """All files of older steps are deleted, finished or not, when the last part is written."""
    save_parts(tmp_path, 10, (1,))
    for step in (20, 30):
        save_parts(tmp_path, step, keep=1, stays=30)
    save_parts(tmp_path, 40, (0, 2), keep=1, stays=30)
    assert "30.part1" in names(tmp_path)
    checkpoints.save(tmp_path, 40, shards(3)[1], 1, keep=1, stays=30)
    stay = [f"{step}.{end}" for step in (30, 40) for end in ("part1", "part2", "pt")]
    assert names(tmp_path) == stay


def test_link_of_a_stranger(tmp_path: Path) -> None:
    """A link in the place of a mark creates no file elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "step-00000010.unfinished1").symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        checkpoints.begin(tmp_path, 10, 2)
    assert not elsewhere.exists()


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-200] ^= 255
    path.write_bytes(content)


def trap(path: Path) -> None:
    torch.save({"format": checkpoints.FORMAT, "trap": Calls(os.mkdir, f"{path}-made")}, path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (Path.unlink, "part1: No such file"),
        (damage, "part1: "),
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "part1: truncated"),
        (trap, "part1: truncated, damaged or foreign"),
        (lambda path: path.write_bytes(b""), "part1: "),
        (lambda path: path.unlink() or os.mkfifo(path), "part1: is not a file"),
        (
            lambda path: path.write_bytes(path.with_name("step-00000010.part1").read_bytes()),
            "step-00000020.pt: damaged",
        ),
        (lambda path: save_strange(path, {"bank": 1, "other": 2}), "step-00000020.pt: damaged"),
        (lambda path: save_strange(path, torch.ones(3)), "step-00000020.pt: damaged"),
    ],
)
def test_bad_part(tmp_path: Path, spoil: Callable[[Path], object], said: str) -> None:
    """A part that is missing, damaged, hostile or of another checkpoint is one line, and the
    checkpoint before is used."""
    for step in (10, 20):
        save_parts(tmp_path, step)
    spoil(checkpoints.path_of(tmp_path, 20, 1))
    before = names(tmp_path)
    heard: list[str] = []
    assert checkpoints.newest_good(tmp_path, heard.append)[0].name == "step-00000010.pt"
    (line,) = heard
    assert said in line
    assert "\n" not in line
    assert names(tmp_path) == before


def save_strange(path: Path, method: object) -> None:
    checkpoints.save(path.parent, 20, {"method": method}, 2)


@pytest.mark.parametrize("parts", ["3", 2.5, torch.ones(2), 10**30])
def test_strange_number_of_parts(tmp_path: Path, parts: object) -> None:
    refused(checkpoints.save(tmp_path, 1, {"method": {}, "parts": parts}), "step-00000001.pa?r?t")


def test_altered_checkpoint_value(tmp_path: Path) -> None:
    """An altered value is detected although the archive is intact."""
    path = checkpoints.save(tmp_path, 1, state())
    content = torch.load(path, weights_only=True)
    content["method"]["weight"][0, 0, 0, 0] *= 1.000001
    torch.save(content, path)
    refused(path, "checksum")


def test_foreign_checkpoint_files(tmp_path: Path) -> None:
    """Foreign files are recognised."""
    path = checkpoints.path_of(tmp_path, 5)
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, path)
    refused(path, "not a checkpoint of hexa")
    checkpoints.save(tmp_path, 5, {"step": "five"})
    refused(path, "not a checkpoint of hexa")
    path.write_text("hello")
    refused(path, "foreign")


def test_link_out_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    path = checkpoints.save(folder, 3, state())
    path.rename(tmp_path / "outside.pt")
    path.symlink_to(tmp_path / "outside.pt")
    refused(path, "is a link out of its folder")
