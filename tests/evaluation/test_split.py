"""Drawing images class by class."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data.sources.source import ArraySource, Labels
from hexa.evaluation import evaluate
from hexa.evaluation.protocols import robust
from hexa.evaluation.request import EvaluationRequest
from hexa.evaluation.split import (
    _class_names,
    draw_per_class,
    fit_and_test,
    folds,
    held_part,
    stratified_part,
    whole_groups,
)
from hexa.runtime.random import Stream
from tests.data.sources.looks import labels_of
from tests.data.sources.test_labels import table
from tests.evaluation.given import QUIET, noise_images
from tests.refusals import one_line

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 5], [40, 10, 3, 1]))


def counts(labels: np.ndarray) -> dict[int, int]:
    classes, sizes = np.unique(labels, return_counts=True)
    return dict(zip(classes.tolist(), sizes.tolist(), strict=True))


def test_stratified_part() -> None:
    """A part takes its share of every class."""
    held = stratified_part(LABELS, 0.2, Stream(0))
    assert counts(LABELS[held]) == {0: 8, 1: 2, 2: 1}
    most = stratified_part(LABELS, 0.9, Stream(0))
    assert counts(LABELS[most]) == {0: 36, 1: 9, 2: 2}
    again = stratified_part(LABELS, 0.2, Stream(0))
    other = stratified_part(LABELS, 0.2, Stream(1))
    assert np.array_equal(again, held)
    assert not np.array_equal(other, held)
    for labels, share in ((np.arange(10) // 5, 0.1), (np.arange(10), 0.5)):
        with one_line(
            "selection: .* selects no image, because .* keeps one .*; give .* or more images of each"
        ):
            stratified_part(labels, share, Stream(0))


def test_fold_partition() -> None:
    """Folds are disjoint and hold all that can be held out."""
    parts = folds(LABELS, 4, Stream(0))
    together = np.concatenate(parts)
    assert len(parts) == 4
    assert sorted(together) == sorted(np.flatnonzero(LABELS != 5))
    for part in parts:
        of_class = counts(LABELS[part])
        assert of_class[0] == 10
        assert of_class[1] in (2, 3)
    single = folds(np.arange(5), 5, Stream(0))
    assert single == [], "nothing to hold out"


def test_fold_remaining_classes() -> None:
    """Every fold leaves each class something."""
    labels = np.array([0, 0, 1, 1, 1])
    for part in folds(labels, 5, Stream(3)):
        assert set(np.delete(labels, part)) == {0, 1}


def _patients(seed: int) -> tuple[Labels, Labels]:
    """Labels and groups of 9 patients with images of one or two of five classes, one of which is rare."""
    generator = np.random.default_rng(seed)
    labels, groups = [], []
    for patient in range(9):
        for label in generator.choice(5, 2, replace=False, p=[0.4, 0.3, 0.15, 0.1, 0.05]):
            labels += [label] * 5
            groups += [patient] * 5
    return np.unique(labels, return_inverse=True)[1], np.array(groups)


def test_whole_groups() -> None:
    """No group is on both sides, also if all images of a class are of one group."""
    split = 0
    for seed in range(20):
        labels, groups = _patients(seed)
        held = held_part(labels, 0.2, Stream(seed), groups)
        assert not set(groups[held]) & set(groups[~held])
        parts = folds(labels, 5, Stream(seed), groups)
        split += any(len(whole_groups(part, groups)) < len(part) for part in parts)
        for part in map(whole_groups, parts, [groups] * len(parts)):
            assert not set(groups[part]) & set(np.delete(groups, part))
    assert split > 5  # the data has such classes


@pytest.mark.parametrize(
    ("names", "share", "said"),
    [
        (
            [
                f"{kind}/{n}.png"
                for kind, count in (("a", 9), ("b", 9), ("c", 2))
                for n in range(count)
            ],
            0.2,
            ["no image of c is scored"],
        ),
        (
            [f"{kind}/p{visit}/{n}.png" for kind in "ab" for visit in range(6) for n in range(4)],
            0.8,
            ["groups stay together: 24 of 48 images are scored (50%)"],
        ),
        (
            ["c/p9/0.png", "c/p9/1.png"]
            + [f"{kind}/p{visit}/{n}.png" for kind in "ab" for visit in range(4) for n in range(4)],
            0.25,
            ["groups stay together: 8 of 34 ", "no image of c is scored"],
        ),
        (
            [f"{kind}/p{kind}{n % 2}/{n}.png" for kind in "ab" for n in range(10)],
            0.1,
            ["groups are ignored"],
        ),
    ],
    ids=["small class", "large share", "class of one group", "groups of one class"],
)
def test_hold_out_notes(tmp_path: Path, names: list[str], share: float, said: list[str]) -> None:
    """Notes name classes that are not scored, and say how many images whole groups are."""
    data = noise_images(tmp_path, dict.fromkeys(names, (8, 8)))
    result = evaluate("knn", "pixels:8", data, holdout=share, **QUIET)
    notes = [note for note in result["notes"] if "scored" in note or "groups" in note]
    assert len(notes) == len(said)
    for text, note in zip(said, notes, strict=True):
        assert text in note


def near_copies(folder: Path, visits: int, apart: bool) -> str:
    """A source of images of noise, of two classes, with three near-copies each.

    apart: copies are not in a sub-folder of their class, so that they are not known to belong together.
    """
    generator = np.random.default_rng(0)
    for visit in range(visits):
        image = generator.integers(0, 230, (8, 8, 3))
        kind = folder / f"{visit % 2}"
        place = kind if apart else kind / f"visit{visit}"
        place.mkdir(parents=True, exist_ok=True)
        for copy in range(3):
            pixels = image + generator.integers(0, 20, (8, 8, 3))
            picture = Image.fromarray(pixels.astype(np.uint8))
            picture.save(place / f"{visit}-{copy}.png")
    return f"folder:{folder}"


@pytest.mark.parametrize("protocol", ["probe", "robust", "linear"])
def test_selection_groups(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a group are not on both sides when a weight decay or a rate is chosen."""
    calls = Mock(wraps=robust.fit_probe)
    monkeypatch.setattr(robust, "fit_probe", calls)
    more: dict[str, Any] = {
        "linear": {"preset": "cifar", "epochs": 30, "learning_rates": (0.1, 0.01)},
        "robust": {"steps": 1, "targets": 1, "epsilons": (1,)},
    }.get(protocol, {})
    test = near_copies(tmp_path / "test", 6, apart=True)
    found = []
    for apart in (True, False):
        data = near_copies(tmp_path / f"{apart}", 40, apart)
        result = evaluate(protocol, "pixels:8", data, test_data=test, **QUIET, **more)
        assert result["protocol"].endswith("-grouped") != apart
        found.append(result["details"])
    if protocol == "linear":
        known, unknown = (one["held_out"].values() for one in found)
        assert max(known) > 90
        assert max(unknown) < 80
    elif protocol == "probe":
        assert found[0]["weight_decay"] < found[1]["weight_decay"]
    else:
        first, second = (call.kwargs["groups"] for call in calls.call_args_list)
        assert first is None
        assert len(np.unique(second)) == 40


def test_selection_groups_few_labels(tmp_path: Path) -> None:
    """Draws of a few labels keep groups too."""
    test = near_copies(tmp_path / "test", 6, apart=True)
    data = near_copies(tmp_path / "data", 40, apart=False)
    how = {**QUIET, "shots": (8,), "draws": 2}
    result = evaluate("probe", "pixels:8", data, test_data=test, **how)
    assert result["protocol"].endswith("-grouped")


def test_draw_too_small_class() -> None:
    """A draw says which class is too small."""
    labels = LABELS[LABELS != 5]
    with pytest.raises(UserError, match="class c has 3 labelled images"):
        draw_per_class(labels, 4, Stream(0), "abc")


def test_train_test_contents(tmp_path: Path) -> None:
    """Train and test of equal names and sizes are distinguished by contents."""
    for split, other in (("train", 0), ("test", 5)):
        colours = {"one": (200, other, 0), "two": (0, other, 200)}
        for kind, colour in colours.items():
            path = tmp_path / split / kind / "1.bmp"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8), colour).save(path)
    options = QUIET | {"k": 1}
    result = evaluate("knn", "pixels:8", f"folder:{tmp_path}", **options)
    assert result["metrics"]["top1"] == 100
    # without a split test, val is scored
    (tmp_path / "test").rename(tmp_path / "val")
    for given in (None, f"folder:{tmp_path}"):
        result = evaluate("knn", "pixels:8", f"folder:{tmp_path}", test_data=given, **options)
        assert result["data_facts"]["test"]["split"] == "val"
    shutil.rmtree(tmp_path / "val")
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    with pytest.raises(UserError, match="would be scored on the images it learns from"):
        evaluate("knn", "pixels:8", f"folder:{tmp_path}", **options)


def test_class_folders_of_numbers() -> None:
    """Folders 0 to 10 sort as text, unlike labels that are numbers."""
    labels = np.arange(11)
    test = ArraySource(torch.zeros(11, 3, 8, 8, dtype=torch.uint8), labels)
    padded, text = (sorted(shape.format(n) for n in labels) for shape in ("{:02}", "{}"))
    sources = [ArraySource(test.images + 1, labels, names) for names in (padded, text)]
    assert _class_names("x", sources[0], test, True) == padded
    with pytest.raises(UserError, match="name the folders 00"):
        _class_names("x", sources[1], test, True)


def test_classes_without_images(tmp_path: Path) -> None:
    """Numbers that are the class of no image are left out, on both sides alike."""
    table(tmp_path / "train.parquet", [0, 0, 5, 5, 9])
    table(tmp_path / "test.parquet", [9, 0])
    fit, test, names, _ = fit_and_test(f"parquet:{tmp_path}", EvaluationRequest(), 3)
    found = labels_of(fit), labels_of(test), names
    assert found == ([0, 0, 1, 1, 2], [2, 0], ["0", "5", "9"])


def test_note_on_numbers(tmp_path: Path) -> None:
    """Numbers that are scored as classes with names are noted."""
    train = noise_images(tmp_path / "train", dict.fromkeys(("a/0.png", "b/0.png"), (8, 8)))
    table(tmp_path / "test.parquet", [0, 1])
    request = EvaluationRequest(test_data=f"parquet:{tmp_path}/test.parquet")
    *_, notes = fit_and_test(train, request, 3)
    assert notes == ["labels that are numbers are taken for classes in this order: a, b"]
