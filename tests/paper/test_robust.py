"""`hexa reproduce robust`: every published row, and a tiny run of all arms, the teacher before its student."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hexa_paper import reproduce, running
from tests.evaluation.given import noise_images
from tests.paper.test_published_rows import WITHOUT

TINY = {
    "network.widths": [8, 16],
    "training.device": "cpu",
    "training.precision": "fp32",
    "batch_size": 8,
}
CHEAP = {"autoattack": {"steps": 1, "targets": 1, "queries": 1}, "pgd": {"steps": 1, "restarts": 1}}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    counts = {"train/a": 8, "train/b": 8, "test/a": 2, "test/b": 2}
    files = [f"{kind}/{number}.png" for kind, count in counts.items() for number in range(count)]
    return noise_images(tmp_path_factory.mktemp("images"), dict.fromkeys(files, (32, 32)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every evaluation, whose attacks are made as short as possible."""
    evaluate = running.evaluate
    made = list[dict[str, Any]]()

    def short(protocol: str, backbone: str, data: str, **options: Any) -> Any:
        made.append({"backbone": backbone, **options})
        return evaluate(protocol, backbone, data, **options | CHEAP.get(options["preset"], {}))

    monkeypatch.setattr(running, "evaluate", short)
    return made


def carry_out(out: Path, images: str, **changes: Any) -> Path:
    return reproduce("robust", images, out=out, **(TINY | {"seeds": (0,), "epochs": 1} | changes))


def test_robust_study_table(tmp_path: Path, images: str, calls: list[dict[str, Any]]) -> None:
    """A tiny run writes the table, and nothing is made twice."""
    out = carry_out(tmp_path / "out", images)
    page = (out / "table.md").read_text()
    assert all(f"| {name} | 1 |" in page for name in ("SimCLR", "ACL", "DeACL"))
    rows = WITHOUT - {"BigBiGAN"} | {"ACL", "DeACL", "DeACL (its authors)"}
    assert all(f"\n| {row} |" in page.partition("## Published")[2] for row in rows)
    found = json.loads((out / "result.json").read_text())
    columns = [
        "linear head top1",
        "linear head corrupted",
        "AutoAttack",
        "PGD robust@4",
        "PGD robust@8",
    ]
    assert [list(row["scores"]) for row in found["summary"]] == [columns] * 3
    dual = {Path(one["backbone"]).name.split("+")[0] for one in calls if one.get("branch") == "aux"}
    assert dual == {"cifar10-acl"}
    (student,) = (out / "runs").glob("cifar10-deacl+small-*-seed0")
    (teacher,) = (out / "runs").glob("cifar10-simclr+small-*-seed0")
    assert f"teacher: {teacher}" in (student / "config.yaml").read_text()
    for column in columns:
        assert (
            out / f"figures/robust-{'-'.join(column.lower().replace('@', ' ').split())}.png"
        ).is_file()
    carry_out(tmp_path / "out", images)
    assert len(calls) == 9
