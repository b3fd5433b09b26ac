"""`hexa reproduce robust`: every published row, and a tiny run of all arms, the teacher before its student."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hexa import cli, recipes
from hexa.config import UserError
from hexa.training.losses import NonFiniteError
from hexa_paper import published, reproduce, request, running, storage, studies, work, writing
from hexa_paper.plan import Plan
from hexa_paper.request import Request, Target
from hexa_paper.rows import metrics_of, rows_of
from hexa_paper.work import Work
from tests.evaluation.given import noise_images
from tests.paper.conftest import costs_for

#: Clean, on CIFAR-10-C, under AutoAttack, under PGD of 4 and 8, minutes.
ROWS: dict[str, tuple[float | None, ...]] = {
    "DynACL++": (79.8, 72.0, 46.5, None, None, None),
    "DynACL": (75.4, 68.7, 45.1, None, None, None),
    "DeACL": (79.9, 73.1, 43.3, None, None, None),
    "DeACL (its authors)": (80.8, None, 46.1, None, None, None),
    "AdvCL": (82.4, 73.1, 43.2, None, None, None),
    "ACL": (78.2, 70.7, 39.2, None, None, None),
    "RoCL": (77.9, None, 26.1, None, None, None),
    "CF-AMC": (75.9, None, None, 56.0, 33.3, 97),
    "SimCLR + PGD-5": (72.9, None, None, 48.0, 16.8, 934),
}
WITHOUT = {*ROWS} - {"ACL", "DeACL"}
TINY = {
    "network.widths": [8, 16],
    "training.device": "cpu",
    "training.precision": "fp32",
    "batch_size": 8,
}
CHEAP = {"autoattack": {"steps": 1, "targets": 1, "queries": 1}, "pgd": {"steps": 1, "restarts": 1}}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    parts = [
        (split, label, count) for split, count in (("train", 8), ("test", 2)) for label in "ab"
    ]
    files = [
        f"{split}/{label}/{number}.png" for split, label, count in parts for number in range(count)
    ]
    return noise_images(tmp_path_factory.mktemp("images"), dict.fromkeys(files, (32, 32)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every evaluation, whose attacks are made as short as possible."""
    evaluate, made = running.evaluate, list[dict[str, Any]]()

    def short(protocol: str, backbone: str, data: str, **options: Any) -> Any:
        made.append({"backbone": backbone, **options})
        return evaluate(protocol, backbone, data, **options | CHEAP.get(options["preset"], {}))

    monkeypatch.setattr(running, "evaluate", short)
    monkeypatch.setattr(work, "costs_of", costs_for)
    return made


def carry_out(out: Path, images: str, **changes: Any) -> Path:
    return reproduce("robust", images, out=out, **(TINY | {"seeds": (0,), "epochs": 1} | changes))


def test_the_plan_lists_every_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise UserError("no such images")

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(request, "open_source", absent)
    given = "reproduce robust --data cifar10 --scale full --seeds 0 --plan --out runs/r"
    assert cli.main(given.split()) == 0
    said = capsys.readouterr().out
    for method, values in ROWS.items():
        line = next(line for line in said.splitlines() if line.startswith(f"{method}  "))
        numbers = line.removeprefix(method).split()[: len(values)]
        assert [None if one == "–" else float(one) for one in numbers] == list(values)
        ours = next(
            line for line in said.splitlines() if line.startswith(f"{method}: ")
        ).removeprefix(f"{method}: ")
        if method in WITHOUT:
            assert ours.startswith("– ")
            assert len(ours) > 5
        else:
            assert recipes.get(ours.split()[2]).epochs == int(ours.split("--epochs ")[1].split()[0])
    taught, made = (
        next(line for line in said.splitlines() if f" -m hexa pretrain cifar10-{name} " in line)
        for name in ("deacl", "simclr")
    )
    assert taught.split("--method.teacher ")[1].split()[0] == made.split("--out ")[1]
    assert "3.5e+08" in said  # ACL: seven passes of 50,000 images, 1,000 times


def test_rows_and_arms_are_those_of_the_table() -> None:
    assert {row.method: row.values for row in published.ROBUST.rows} == ROWS
    for scale in ("small", "full"):
        chosen = studies.study("robust", scale=scale)
        assert {arm.published[0] for arm in chosen.arms if arm.published} == set(ROWS) - WITHOUT
        for arm in chosen.arms:
            hard = recipes.get(arm.recipe).hard_examples.values()
            assert {arm.branch} == {getattr(one, "branch", "") for one in hard} or not hard
    with pytest.raises(UserError, match="leave out --method and --from"):
        studies.study("robust", one_run=True)


def test_a_tiny_run_writes_the_table_and_nothing_is_made_twice(
    tmp_path: Path, images: str, calls: list[dict[str, Any]]
) -> None:
    out = carry_out(tmp_path / "out", images)
    page = (out / "table.md").read_text()
    assert all(f"| {name} | 1 |" in page for name in ("SimCLR", "ACL", "DeACL"))
    assert all(f"\n| {method} |" in page.split("## Published")[1] for method in ROWS)
    found = json.loads((out / storage.RESULT).read_text())
    columns = [
        "linear head top1",
        "linear head corrupted",
        "AutoAttack",
        "PGD robust@4",
        "PGD robust@8",
    ]
    assert [list(row["scores"]) for row in found["summary"]] == [columns] * 3
    dual = {Path(one["backbone"]).name.split("-")[0] for one in calls if one.get("branch") == "aux"}
    assert dual == {"acl"}
    assert (
        f"teacher: {out}/runs/simclr-1ep-lr0.03-seed0"
        in (out / "runs/deacl-1ep-lr0.12-seed0/config.yaml").read_text()
    )
    for column in columns:
        assert (
            out / f"figures/robust-{'-'.join(column.lower().replace('@', ' ').split())}.png"
        ).is_file()
    carry_out(tmp_path / "out", images)
    assert len(calls) == 9


def test_a_teacher_that_diverged_is_told_of(
    tmp_path: Path, images: str, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its student has no score, and the other arms have theirs."""
    trained = running._pretrain

    def pretrain(record: dict[str, Any], run: Path, *rest: Any) -> None:
        trained(record, run, *rest)
        if record["arm"] == "simclr":
            (run / running.BACKBONE).unlink()
            raise NonFiniteError(2, "std", 1.0, None)

    monkeypatch.setattr(running, "_pretrain", pretrain)
    found = json.loads((carry_out(tmp_path / "out", images) / storage.RESULT).read_text())
    lost = {row["key"] for row in found["summary"] if row["diverged"]}
    assert (lost, len(found["summary"])) == ({"simclr", "deacl"}, 3)
    student = next(run for run in found["runs"] if run["arm"] == "deacl")
    assert student["diverged"] == "simclr-1ep-lr0.03-seed0, its teacher, has no weights"


def result(preset: str, metrics: dict[str, float], **options: Any) -> dict[str, Any]:
    facts = {"fit": {"images": 50_000}, "test": {"known_as": "CIFAR-10", "images": 10_000}}
    given = {"head": "slf", "images": None, **options}
    return {
        "protocol": f"robust/{preset}",
        "preset": preset,
        "metrics": metrics,
        "data_facts": facts,
        "options": given,
    }


def test_a_result_stands_beside_the_leaderboard() -> None:
    found = published.beside(result("autoattack", {"top1": 1.0, "robust@8": 2.0, "robust@4": 3.0}))
    assert (found.columns, found.own, found.caution) == (("top1", "robust@8"), (1.0, 2.0), "")
    assert ("ACL", (78.2, 39.2)) in [(row.method, row.values) for row in found.rows]
    few = published.beside(result("pgd", {"top1": 1.0, "robust@8": 2.0}, images=200))
    assert (few.columns, few.own) == (("top1", "PGD robust@8"), (1.0, 2.0))
    assert few.caution == "published on all 10,000 test images, here 200 of them"
    other = published.beside(result("corruptions", {"top1": 1.0, "corrupted": 2.0}, head="alf"))
    assert "heads that learned from images as they are" in other.caution


def test_columns_go_by_the_evaluation_and_not_by_its_protocol() -> None:
    chosen = studies.study("robust")
    metrics = dict.fromkeys(("top1", "robust@4", "robust@8"), 1.0)
    one = {"title": "AutoAttack on a", "protocol": "robust/made-up", "metrics": metrics}
    assert metrics_of(chosen, one) == {"robust@8": "AutoAttack on a"}
    assert metrics_of(chosen, one | {"title": "PGD"}) == {
        "robust@4": "PGD robust@4",
        "robust@8": "PGD robust@8",
    }


def test_published_values_stand_beside_ours() -> None:
    given = Request(
        "cifar10", targets=(Target("cifar10", known_as="CIFAR-10"),), seeds=(0,), num_images=50_000
    )
    metrics = dict.fromkeys(("top1", "corrupted", "robust@4", "robust@8"), 1.0)
    titles = {"corruptions": "linear head", "autoattack": "AutoAttack", "pgd": "PGD"}
    results = [result(preset, metrics) | {"title": title} for preset, title in titles.items()]
    shown = {}
    for arm, epochs in (("deacl", 100), ("acl", 1000)):
        run = {
            "arm": arm,
            "epochs": epochs,
            "seed": 0,
            "rate": 1.0,
            "pretrain_seconds": None,
            "results": results,
        }
        (row,) = rows_of(Plan(studies.study("robust", scale="full"), given), [run])
        shown[arm] = [score["published"] for score in row["scores"].values()]
    assert shown == {
        "deacl": [79.9, 73.1, 43.3, None, None],
        "acl": [78.2, 70.7, 39.2, None, None],
    }


def test_other_studies_list_no_rows() -> None:
    assert list(writing.published_rows(Work.begin("table1", Request("digits")))) == []
