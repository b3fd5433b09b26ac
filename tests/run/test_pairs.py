"""Runs whose positives come from metadata: resumed bit for bit, bound to who belongs together."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hexa.config import ConfigError, UserError
from hexa.data import open_source
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment
from hexa.run.build import setting_of
from hexa.run.run import pretrain, resume
from hexa.weights.pretrained import load_backbone
from tests.run.test_every_method import experiment, stopped

SAYS = Console(file=io.StringIO(), width=300)


def table(path: Path, groups: int = 300, prefix: str = "") -> str:
    rows = [
        f"{name},{prefix}{number % groups}"
        for number, name in enumerate(open_source("digits", "train").paths)
    ]
    path.write_text("\n".join(["path,group", *rows]))
    return str(path)


def paired(of: str, method: str = "moco", **changes: Any) -> Experiment:
    return experiment(method, **{"pairs.of": of, "pairs.probability": 0.7}, **changes)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("moco", {"training.resident_limit_bytes": 1, "training.num_workers": 1}),
        ("swav", {"views.extra_crops": [{"count": 3, "size": 6, "scale": [0.05, 0.3]}]}),
    ],
    ids=["workers", "multi-crop"],
)
def test_a_run_resumes_bit_for_bit(tmp_path: Path, method: str, changes: dict[str, Any]) -> None:
    whole = pretrain(
        paired(table(tmp_path / "a.csv"), method, **changes), tmp_path / "whole", console=SAYS
    )
    cut = stopped(whole, tmp_path / "cut", 3)
    resume(cut, console=SAYS)
    assert load_backbone(cut).content_hash() == load_backbone(whole).content_hash()
    if method == "moco":
        plain = pretrain(experiment(method), tmp_path / "plain", console=SAYS)
        assert load_backbone(plain).content_hash() != load_backbone(whole).content_hash()


def test_going_on_needs_the_same_pairs_wherever_they_lie(tmp_path: Path) -> None:
    folder = pretrain(paired(table(tmp_path / "a.csv")), tmp_path / "run", console=SAYS)
    table(tmp_path / "a.csv", prefix="patient ")  # other names of the same groups
    resume(folder, console=SAYS)
    experiments.dump(paired(table(tmp_path / "b.csv")), folder / "config.yaml")
    resume(folder, console=SAYS)
    table(tmp_path / "b.csv", groups=299)
    with pytest.raises(UserError, match=r"has changed, or the images have, since the checkpoint"):
        resume(folder, console=SAYS)
    (tmp_path / "b.csv").unlink()
    with pytest.raises(UserError, match=r"pairs\.of .*b\.csv: cannot be read"):
        resume(folder, console=SAYS)


@pytest.mark.parametrize("method", ["rotation", "jigsaw", "instdisc", "cmc", "cpc"])
def test_methods_of_one_view_refuse(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"pairs\.of: {method} sees one view of an image"):
        setting_of(paired("x.csv", method), 1347)
