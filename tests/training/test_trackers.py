"""Trackers: what they are told, that they go on where they stopped, and that they never stop a training.

The adapters are tried on stand-ins of their packages, which refuse what the real ones refuse, and on the real ones,
without a network, where they are installed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hexa.config import ConfigError, UserError
from hexa.run.run import pretrain, resume
from hexa.training import trackers
from hexa.training.journal import METRICS, Journal
from hexa.weights.pretrained import load_backbone
from tests.end_to_end.endings import metric_lines
from tests.run.test_run import events, quiet, tiny


class FakeWandb(types.ModuleType):
    """Runs in memory, by id; `broken` makes every log fail."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = importlib.util.spec_from_loader("wandb", None)
        self.runs: dict[str, dict[str, Any]] = {}
        self.broken = self.unreachable = False
        self.Settings = lambda **options: options

    def init(self, **options: Any) -> Any:
        if self.unreachable:
            raise ConnectionError("no\nroute to host")
        kept = self.runs.setdefault(
            options["id"], {"options": options, "log": [], "summary": {}, "exits": []}
        )
        assert options["resume"] == "allow"

        def log(values: dict[str, float], step: int) -> None:
            if self.broken:
                raise TimeoutError("the server is gone")
            kept["log"].append((step, values))

        return types.SimpleNamespace(
            log=log,
            summary=kept["summary"],
            finish=lambda exit_code: kept["exits"].append(exit_code),
        )


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def logged(folder: Path, event: str) -> dict[int, dict[str, float]]:
    return {line["step"]: line for line in metric_lines(folder, event)}


def test_metrics_configuration_and_results_arrive(wandb: FakeWandb, tmp_path: Path) -> None:
    folder = pretrain(
        tiny(training__tracker="wandb", monitor__knn_every=1), tmp_path / "my run", console=quiet()
    )
    (run,) = wandb.runs.values()
    assert run["options"]["name"] == "my run"
    assert run["options"]["project"] == "hexa"
    assert run["options"]["config"]["method.queue_size"] == 256
    assert run["options"]["config"]["network.widths"] == [4, 8]
    told: dict[int, dict[str, float]] = {}
    for step, values in run["log"]:
        told.setdefault(step, {}).update(values)
    for step, line in logged(folder, "train").items():
        assert told[step]["loss/std"] == pytest.approx(line["loss/std"], rel=1e-6)
        assert told[step]["learning_rate"] == pytest.approx(line["learning_rate"], rel=1e-6)
    (monitor,) = logged(folder, "monitor").values()
    assert told[monitor["step"]]["monitor/knn"] == pytest.approx(monitor["knn"], rel=1e-6)
    assert run["summary"]["state"] == "finished"
    assert run["exits"] == [0]
    # an evaluation that was made since is sent by the next sitting, under the same id
    result = {"protocol": "knn/k200", "data": "digits", "metrics": {"top1": 50.5}}
    (folder / "results.json").write_text(json.dumps([result]))
    resume(folder, console=quiet())
    assert len(wandb.runs) == 1
    assert run["summary"]["results/knn/k200/digits/top1"] == 50.5


def test_a_tracker_that_fails_in_the_middle_is_given_up_with_one_warning(
    wandb: FakeWandb, tmp_path: Path
) -> None:
    wandb.broken = True
    plain = pretrain(tiny(), tmp_path / "plain", console=quiet())
    folder = pretrain(
        tiny(training__tracker="wandb"), tmp_path / "run", console=(console := quiet())
    )
    assert [event for event in events(folder) if event != "warning"] == events(plain)
    (warning,) = logged(folder, "warning").values()
    assert "Wandb failed (TimeoutError: the server is gone); the run goes on without it" in str(
        warning["message"]
    )
    assert console.file.getvalue().count("the server is gone") == 1  # type: ignore[attr-defined]
    assert load_backbone(plain).content_hash() == load_backbone(folder).content_hash()


def test_one_that_cannot_begin_stops_a_new_run_but_not_one_that_goes_on(
    wandb: FakeWandb, tmp_path: Path
) -> None:
    folder = pretrain(tiny(training__tracker="wandb"), tmp_path / "run", console=quiet())
    (folder / "backbone.safetensors").unlink()
    wandb.unreachable = True
    resume(folder, console=(console := quiet()))
    assert (folder / "backbone.safetensors").is_file()
    assert "no route to host" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(
        UserError, match=r"training\.tracker: wandb can't begin \(no route to host\); log in with"
    ):
        pretrain(tiny(training__tracker="wandb"), tmp_path / "other", console=quiet())
    assert not (tmp_path / "other" / "metrics.jsonl").exists()


def test_a_missing_package_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(
        ConfigError, match=r"training\.tracker: wandb is not installed; install it .*\[wandb\]"
    ):
        pretrain(
            tiny(training__tracker="wandb", data="folder:nowhere"),
            tmp_path / "run",
            console=quiet(),
        )
    assert not (tmp_path / "run").exists()


def test_only_finite_numbers_are_told_and_a_failure_at_the_end_is_a_warning_too(
    tmp_path: Path,
) -> None:
    values = {"a": 1, "b": float("nan"), "c": "text", "d": True, "e": None, "f": 0.5}
    assert trackers.numbers(values) == {"a": 1.0, "f": 0.5}
    fail = Mock(side_effect=OSError("disk full"))
    Journal(tmp_path).open(0, [Mock(log=fail, finish=fail)]).close()
    assert (tmp_path / METRICS).read_text().count("disk full") == 1


def test_wandb_for_real_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    first = trackers.start("wandb", tmp_path, {"epochs": 3})
    first.log({"loss": 2.0}, 10)
    first.finish("interrupted", {})
    again = trackers.start("wandb", tmp_path, {"epochs": 3}, resumed=True)
    assert again.identity == first.identity
    again.log({"loss": 1.0}, 20)
    again.finish("finished", {"results/knn/top1": 50.0})
    kept = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert kept
    assert {path.stem for path in kept} == {f"run-{first.identity}"}
    assert all(path.stat().st_size > 0 for path in kept)
