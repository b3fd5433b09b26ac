"""Whole studies on the embedded digits: stopped, resumed, and the same as in one go."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.runtime.lock import locked
from hexa_paper import loop, results, running
from hexa_paper.loop import begin, show
from hexa_paper.request import Request
from hexa_paper.running import command_of
from tests.conftest import Says
from tests.paper import conftest

TINY = conftest.TINY | {"method.queue_size": 256}
SHORT: dict[str, Any] = {"seeds": (0,), "epochs": 1, "rates": (0.03,)}
pytestmark = pytest.mark.usefixtures("few_digits")


def carry_out(out: Path, experiment: str = "ablation", **changes: Any) -> dict[str, Any]:
    """Run a study and return its result."""
    import hexa_paper

    folder = hexa_paper.reproduce(experiment, "digits", out=out, **(TINY | SHORT | changes))
    return json.loads((folder / "result.json").read_text())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The protocols of all evaluations; the fifth is interrupted."""
    made: list[str] = []

    def counted(protocol: str, *given: Any, **options: Any) -> Any:
        made.append(protocol)
        if len(made) == 5:  # in the third run, between its two evaluations
            raise KeyboardInterrupt
        return evaluate(protocol, *given, **options)

    monkeypatch.setattr(running, "evaluate", counted)
    return made


def test_interrupted_study(tmp_path: Path, calls: list[str]) -> None:
    out = tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        carry_out(out)
    written = {path: path.stat().st_mtime_ns for path in out.glob("r*/*")}
    partial = json.loads((out / "result.json").read_text())
    assert {row["arm"] for row in partial["summary"]} == {"Std", "Std+Adv"}
    assert "2 of 6 runs" in partial["notes"][0]
    found = carry_out(out)
    assert len(calls) == 2 * 6 + 1  # only the interrupted evaluation is made again
    unchanged = [path for path, when in written.items() if path.stat().st_mtime_ns == when]
    assert len(unchanged) == len(written) - 1  # the results of the third run
    at_epochs = [row for row in found["summary"] if row["comparison"] == "equal epochs"]
    assert [row["key"] for row in at_epochs] == ["i", "ii", "iii", "iv", "v", "vi"]
    for name in ("table.md", "figures/ablation-k-nn-top-1.png"):
        assert (out / name).stat().st_size > 0
    for name in found["runs"]:
        stored = results.read(out, name)
        assert stored is not None
        of_run = json.loads((out / "runs" / name / "results.json").read_text())
        metrics = [one["metrics"] for one in of_run]
        assert all(one["metrics"] in metrics for one in stored["results"].values())
    assert carry_out(out) == found
    assert len(calls) == 13


def test_shared_study_runs(tmp_path: Path) -> None:
    """Two studies in one folder train an arm once, and further seeds join."""
    first = carry_out(tmp_path, "table2")
    again = carry_out(tmp_path, "ablation")
    found = len(set(first["runs"]) & set(again["runs"]))
    assert found == 2
    assert len(list((tmp_path / "runs").iterdir())) == 6
    joined = carry_out(tmp_path, "table2", seeds=(1,))
    assert joined["seeds"] == [0, 1]
    rows = {(row["key"], row["comparison"]): row["seeds"] for row in joined["summary"]}
    assert set(map(tuple, rows.values())) == {(0, 1)}


def test_manual_study_runs(tmp_path: Path, says: Says) -> None:
    """The commands of a plan train what the study then only evaluates."""
    out = tmp_path / "study"
    fields = " ".join(f"--{name}={value}".replace(" ", "") for name, value in TINY.items())
    asked = f"reproduce table2 --data=digits --epochs=1 --rates=0.03 --seeds=0 --out={out} {fields}"
    said = says(f"{asked} --plan").out.replace("\n", " ")
    assert not out.exists()
    request = Request("digits", out=out, fields=TINY, **SHORT)
    (plan,) = begin("table2", request, loop.Console())
    for job in plan.final()[:2]:
        command = command_of(job, out, full=False)
        assert str(results.run_folder(out, job.name)) in command
        assert command.split()[2] in said
        says(*shlex.split(command)[1:])
    trained = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/backbone.safetensors")}
    assert "# table2, moco, small scale" in says(asked).out
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert len(list(out.glob("runs/*"))) == 2


def test_refused_study_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: is a file"):
        carry_out(tmp_path / "file")
    with pytest.raises(UserError, match="holds something other than a study"):
        carry_out(tmp_path)
    out = tmp_path / "study"
    request = Request("digits", out=out, fields=TINY, **SHORT)
    (plan,) = begin("table2", request, loop.Console())
    job = plan.final()[0]
    results.write(out / "results" / f"{job.name}.json", {"name": "nothing"})
    with pytest.raises(UserError, match=f"{job.name}.json"):
        carry_out(out, "table2")


def test_concurrent_study_lock(tmp_path: Path) -> None:
    """A study that another process works on is refused."""
    with (
        locked(tmp_path / results.LOCK, ""),
        pytest.raises(UserError, match=f"process {os.getpid()} on .* works on {tmp_path} already"),
    ):
        carry_out(tmp_path, "table2")
    assert not (tmp_path / "runs").exists()


def test_failed_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures do not stop the others."""

    def failing(protocol: str, backbone: Any, *given: Any, **options: Any) -> Any:
        if "std-1ep" in str(backbone):
            raise RuntimeError("no room for it\nand more")
        return evaluate(protocol, backbone, *given, **options)

    monkeypatch.setattr(running, "evaluate", failing)
    with pytest.raises(UserError, match=r"1 run failed.*std-1ep.*no room for it"):
        carry_out(tmp_path, "table2")
    found = json.loads((tmp_path / "result.json").read_text())
    assert {row["key"] for row in found["summary"]} == {"ii", "random"}

    def full(*given: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running, "evaluate", full)
    with pytest.raises(OSError, match="No space"):
        carry_out(tmp_path, "table2")
    monkeypatch.setattr(running, "evaluate", evaluate)
    assert len(carry_out(tmp_path, "table2")["summary"]) == 5


def test_failed_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No arm is scored on test images before all are searched."""
    request = Request("digits", out=tmp_path, fields=TINY, **SHORT | {"rates": (0.03, 0.06)})
    carried = Mock(return_value=["no room for it"])
    monkeypatch.setattr(loop, "_carried_out", carried)
    with pytest.raises(UserError, match="1 run failed; to try again"):
        loop.make(begin("table2", request, loop.Console()), loop.Console())
    assert all(job.searching for job in carried.call_args.args[1])


def test_diverged_study_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = carry_out(tmp_path, "table2", rates=(1e30,), **{"optimizer.name": "sgd"})
    rows = [row for row in found["summary"] if row["key"] != "random"]
    assert {row["arm"] for row in rows} == {"MoCo-v2", "HEXA-MoCo"}
    assert all((row["seeds"], row["diverged"], row["scores"]) == ([], [0], {}) for row in rows)
    assert "1 of 1 seed diverged (0) at rate 1e+30" in (tmp_path / "table.md").read_text()
    assert "diverged, step" in capsys.readouterr().err


def test_removed_search_runs(tmp_path: Path) -> None:
    """Search runs are removed."""
    found = carry_out(tmp_path, "table2", rates=(0.03, 0.06))
    assert sorted((one["arm"], one["rate"]) for one in found["search"]) == [
        ("i", 0.03),
        ("i", 0.06),
        ("ii", 0.03),
        ("ii", 0.06),
    ]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        name for name in found["runs"] if not name.startswith("random")
    }


def test_learning_curve_checkpoints(tmp_path: Path) -> None:
    """Learning curves are checkpoints of one run."""
    found = carry_out(tmp_path, "learning-curves", epochs=4)
    rows = [(row["key"], row["epochs"]) for row in found["summary"]]
    assert rows == [(key, epochs) for key in ("i", "ii") for epochs in (4, 3, 2, 1)]
    name = found["runs"][1]
    saved = sorted((tmp_path / "runs" / name / "checkpoints").glob("step-*.pt"))
    assert len(saved) == 4
    by_epochs = {row["epochs"]: row["scores"] for row in found["summary"] if row["key"] == "ii"}
    for number, path in enumerate(saved, 1):
        expected = evaluate("knn", str(path), "digits", device="cpu")["metrics"]["top1"]
        assert by_epochs[number]["k-NN top-1"]["values"] == [expected]
    assert (tmp_path / "figures/learning-curves-k-nn-top-1.png").is_file()


def test_all_experiment_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (("table2", "moco"), ("table4", "moco"), ("ablation", "moco"))
    monkeypatch.setattr(loop, "PARTS", parts)
    said: list[str] = []
    monkeypatch.setattr(loop.Console, "print", lambda self, line: said.append(str(line)))
    request = Request("digits", out=tmp_path, fields=TINY, **SHORT)
    plans = begin("all", request, loop.Console())
    assert [plan.study.name for plan in plans] == ["ablation"]  # the others need VOC2007
    found = [line.split(":")[0] for line in said]
    assert found == [
        "table2 moco is left out",
        "table4 moco is left out",
    ]
    assert plans[0].tables == tmp_path / "ablation-moco"
    assert [line for line in show(plans[0]) if str(line).startswith("hexa pretrain")]
