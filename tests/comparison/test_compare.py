"""`hexa compare` through its command line and in Python: verdict, page, leakage, sizes, mistakes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import hexa
from hexa.comparison import compare as compare_module, labelled, leakage, verdict
from hexa.comparison.compare import CompareRequest, compare, of_backbones
from hexa.config import UserError
from hexa.data import draw_part, open_source
from hexa.evaluation.split import draw_classes
from hexa.runtime.random import Stream
from hexa.weights.pretrained import load_backbone
from tests.conftest import Says
from tests.data.sources.test_labels import table
from tests.refusals import one_line

RANDOM = "random:small-resnet-8-8-16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos: 60 digits in one folder. labelled: 80 others in class folders, five of them also among the photos, and
    one twice."""
    root = tmp_path_factory.mktemp("images")
    digits = load_digits()
    images = {place: f"labelled/{digits.target[place]}/{place}.png" for place in range(60, 140)}
    images |= {place: f"photos/all/{place}.png" for place in range(60)}
    again = {
        place: f"labelled/{digits.target[place]}/again-{place}.png" for place in (*range(5), 139)
    }
    for place, name in (*images.items(), *again.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[place] * 15.9).astype(np.uint8)).save(root / name)
    return root


def test_compare_command_page(tmp_path: Path, folder: Path, says: Says) -> None:
    """The command names the better backbone and writes a page."""
    out = tmp_path / "compared"
    data = f"--data folder:{folder / 'photos'} --labelled folder:{folder / 'labelled'}"
    told = says(f"compare {RANDOM} pixels:8 {data} --size 8 --time 60s --out {out}")
    said = told.out
    assert f"pixels:8 is better than {RANDOM}: linear probe" in said
    assert "with 85 labelled images a difference of about 12 points can be shown" in told.err
    assert "left out: 1 near-duplicate of other labelled images" in said
    assert "of --data" not in said  # neither backbone learned from these
    record = json.loads((out / "compare.json").read_text())
    assert record["best"] == "pixels:8"
    assert record["judged"] == 85
    assert len(record["duplicates"]) == 1
    html = (out / "compare.html").read_text()
    assert "Which is better?" in html
    assert "Near-duplicates" in html


def test_compare_recipe_names() -> None:
    """Untrained networks of two recipes are named by the recipes, which may have one network."""
    names = "random:digits-moco-v2", "random:digits-hexa-moco"
    record = hexa.compare(names, "digits#test", seconds=60, images=60)
    assert [side["name"] for side in record["backbones"]] == list(names)


def test_compare_same_backbone_sizes() -> None:
    """A backbone is not better than itself, and sizes are distinguished."""
    names = ("pixels:8", "pixels:8", "pixels:4")
    request = CompareRequest(backbones=names, data="digits#test", seconds=60)
    found = compare(request)
    assert found.verdict.best is None
    assert "pixels:8 (1) is not significantly better than pixels:8 (2)" in found.verdict.sentence
    assert any("--size N" in note for note in found.notes)
    sides = {side.name: side.backbone for side in found.sides}
    of_adapt = of_backbones(sides, found.images, found.images, request)
    assert not any("--size" in note for note in of_adapt.notes)  # adapt has no such option
    assert [side.size for side in found.sides] == [8, 8, 4]
    assert found.verdict.pairs[0].differences[labelled.DECIDING].points == 0
    assert found.verdict.pairs[1].differences["k-NN"].sign == -1


def side(name: str, knn: float, probe: float) -> verdict.Side:
    """Return outcomes that are right for the first of 1,000 images by each measure."""
    shares = zip(labelled.MEASURES, (knn, probe), strict=True)
    right = {name: 100.0 * (np.arange(1000) < 10 * share) for name, share in shares}
    return verdict.Side(
        name,
        load_backbone("pixels:4"),
        torch.zeros(1, 1),
        labelled.Scores(right, np.arange(1000) % 2),
    )


@pytest.mark.parametrize(
    ("sides", "best", "said"),
    [
        # beaten by both others, though its k-NN is highest
        (
            [
                side("A", 80.2, 80),
                side("B", 80, 90),
                side("C", 80, 90),
            ],
            None,
            "B is not significantly better than C: linear probe 90.0 against 90.0 % (+0.0 ± 0.3 points)",
        ),
        (
            [
                side("A", 80, 90),
                side("B", 79.8, 80),
                side("C", 79.9, 90),
            ],
            None,
            "; it is better than B",
        ),
        (
            [
                side("A", 70, 90),
                side("B", 90, 95),
                side("C", 60, 80),
            ],
            1,
            "than A and C: against A: linear probe 90.0 → 95.0 %",
        ),
        (
            [side("A", 70, 90), side("B", 60, 95)],
            1,
            "B is better than A: linear probe 90.0 → 95.0 %",
        ),
        (
            [side("A", 70, 90), side("B", 80, 90)],
            None,
            "these labels show no significant difference: linear probe 90.0 → 90.0 %",
        ),
    ],
)
def test_verdict_by_labels(sides: list[verdict.Side], best: int | None, said: str) -> None:
    found = verdict.by_labels(sides)
    assert found.best == best
    assert said in found.sentence


def test_many_small_classes() -> None:
    """Many small classes are evaluated by some of them."""
    labels = np.repeat(np.arange(500), 4)
    rows = draw_classes(labels, 200, Stream(0))
    counts = np.unique(labels[rows], return_counts=True)[1]
    assert 200 <= len(rows) <= 204
    assert counts.min() >= 2
    few = np.repeat([0, 1, 2], [600, 300, 100])
    assert np.bincount(few[draw_classes(few, 100, Stream(0))]).tolist() == [60, 30, 10]


@pytest.mark.parametrize(
    ("labels", "column", "said"),
    [
        ([0, 1, None] * 4, "label", "a label is missing or negative for 4 of 12"),
        ([0.5, 1.5, 1] * 4, "label", "the column 'label' holds double"),
        ([0, 1, 2] * 4, "Label", "the column 'Label' is not called label"),
        ([0, 1, 2] * 4, "label", "0 of 3 classes .* 3 draws too few; give 6 or more"),
    ],
)
def test_reasons_for_missing_labels(
    tmp_path: Path, labels: list[int], column: str, said: str
) -> None:
    table(tmp_path / "train.parquet", labels, column)
    data = f"parquet:{tmp_path}"
    with one_line(f"parquet:.*{said}"):
        compare(CompareRequest(backbones=("pixels:8", "pixels:4"), data=data, images=3))
    assert any(said[:12] in note for note in open_source(data).notes()) != ("draws" in said)


def test_compare_learned_labelled_images(folder: Path) -> None:
    """If a backbone was trained on --data, which may have grown since: exact copies are found among all its images,
    near ones among a sample."""
    learned = load_backbone("pixels:8")
    given = {"data": f"folder:{folder / 'photos'}", "labelled": f"folder:{folder / 'labelled'}"}
    learned.info |= {"data": f"{given['data']}#train", "data_fingerprint": "of fewer images"}
    found = compare(CompareRequest(backbones=(RANDOM, learned), size=8, seconds=30, **given))
    assert any("left out: 5 labelled near-duplicates" in note for note in found.notes)
    assert len(found.images) == 80
    assert ("0/again-0.png", "all/0.png") in found.duplicates


@pytest.mark.parametrize("name", ["folder:a,max_value=0", "digits,links=x"])
def test_compare_impossible_training_images(folder: Path, name: str) -> None:
    """A file of weights may name any training images; they are not the user's words."""
    learned = load_backbone("pixels:8")
    learned.info["data"] = name
    data = f"folder:{folder / 'labelled'}"
    backbones = ("pixels:4", learned)
    request = CompareRequest(backbones=backbones, data=data, size=8, seconds=30)
    found = compare(request)
    assert not any("was trained on" in note for note in found.notes)


def test_compare_learned_contents(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    """Contents decide whether a run was trained on images: names and the current folder do not."""
    photos = shutil.copytree(folder / "labelled", tmp_path / "photos")
    more = "--epochs=1 --max_steps=2 --batch_size=32 --training.report=false --monitor.holdout=0.2"
    monkeypatch.chdir(tmp_path)
    says(f"pretrain digits-moco-v2 --data=folder:photos {more} --out=run")
    run = load_backbone("run")
    assert compare_module._learned_from(run, open_source("photos,links=follow", "train"))
    part = draw_part(open_source("photos", "train"), 10, 0)
    assert compare_module._learned_from(run, part)
    moved = shutil.copytree(photos, tmp_path / "elsewhere" / "moved")
    (tmp_path / "other").mkdir()
    shutil.copytree(folder / "photos", tmp_path / "other" / "photos")
    monkeypatch.chdir(tmp_path / "other")
    assert compare_module._learned_from(run, open_source(str(moved), "train"))
    assert not compare_module._learned_from(run, open_source("folder:photos", "train"))
    taught = (tmp_path / "run", "pixels:8")
    request = CompareRequest(backbones=taught, data=str(moved), size=8, seconds=30)
    found = compare(request)
    assert any("trained on the labelled images" in note for note in found.notes)


def test_compare_learned_name(folder: Path) -> None:
    """Without a fingerprint, the name decides, whatever its options."""
    learned = load_backbone("pixels:8")
    learned.info["data"] = f"folder:{folder / 'photos'}"
    photos = f"{folder / 'photos'},links=follow"
    assert compare_module._learned_from(learned, open_source(photos, "train"))


def test_exact_copies_search(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact copies are found for any sample size, also under other names or in memory."""
    monkeypatch.setattr(leakage, "_LEARNED", 0)
    judging = open_source(f"folder:{folder / 'labelled'}", "train")
    data = open_source(f"folder:{folder / 'photos'}", "train")
    rows = np.array([row for row, path in enumerate(judging.paths) if "again" in path])
    found = leakage.copies(data, judging, rows)
    names = [data.paths[one] if one >= 0 else "" for one in found]
    numbers = [int(judging.paths[row].rpartition("-")[2].removesuffix(".png")) for row in rows]
    assert names == [f"all/{number}.png" if number < 5 else "" for number in numbers]
    digits = open_source("digits", "train")
    assert leakage.copies(digits, digits, np.array([3, 1])).tolist() == [3, 1]


def test_compare_group_folds(folder: Path, tmp_path: Path) -> None:
    """Groups come from folders inside the classes, or from a table."""
    lines = ["path,group"]
    for place, file in enumerate((folder / "labelled").glob("*/*.png")):
        visit = tmp_path / "set" / file.parent.name / f"visit {place % 3}"
        visit.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, visit)
        lines.append(f"{file.parent.name}/{file.name},visit {place % 3}")
    (tmp_path / "visits.csv").write_text("\n".join(lines))
    request = CompareRequest(
        backbones=(RANDOM, "pixels:8"), data=f"folder:{tmp_path / 'set'}", size=8, seconds=30
    )
    told = replace(
        request, data=f"folder:{folder / 'labelled'}", groups=str(tmp_path / "visits.csv")
    )
    groups = list[set[frozenset[str]]]()
    said = "are in the same fold; the scored images are in 3 groups"
    for one, alike in (
        (request, "equal sub-folders (visit 0, visit 1, visit 2)"),
        (told, "a group"),
    ):
        found = compare(one)
        assert f"images of {alike} {said}" in found.notes
        names = np.array([Path(path).name for path in found.images.paths])
        groups.append({frozenset(names[found.images.groups() == group]) for group in range(3)})
        assert found.sides[0].scores.groups.max() == 2  # type: ignore[union-attr]
    assert groups[0] == groups[1]
    # a table without common groups switches sub-folders off
    (tmp_path / "none.csv").write_text("path,group")
    free = compare(replace(request, groups=str(tmp_path / "none.csv")))
    assert any("count as independent" in note for note in free.notes)
    alike = "\n".join(["path,group", *(f"{line.rpartition(',')[0]},one" for line in lines[1:])])
    for text, said in (
        ("path,group", "no two images"),
        (alike, "fewer than two classes"),
    ):
        (tmp_path / "visits.csv").write_text(text)
        with pytest.raises(UserError, match=said):
            compare(told)


def test_alike_labelled_images(tmp_path: Path) -> None:
    """Near-duplicates by thumbnail, such as photographs of one part on a test bench, are noted."""
    generator = np.random.default_rng(0)
    part = generator.integers(0, 255, (16, 16))
    for place in range(40):
        noisy = np.clip(part + generator.normal(0, 1, (16, 16)), 0, 255).astype(np.uint8)
        for folder in (f"lab/{place % 2}", "all"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy).save(tmp_path / folder / f"{place}.png")
    given = {"data": f"folder:{tmp_path / 'all'}", "labelled": f"folder:{tmp_path / 'lab'}"}
    found = compare(CompareRequest(backbones=(RANDOM, "pixels:8"), size=8, seconds=30, **given))
    assert len(found.images) == 40
    assert any("near-duplicates of others" in note for note in found.notes)
    learned = load_backbone("pixels:8")
    learned.info["data"] = f"{given['data']}#train"
    found = compare(CompareRequest(backbones=(RANDOM, learned), size=8, seconds=30, **given))
    assert len(found.images) == 40
    assert any("overstate a gain" in note for note in found.notes)
