"""`hexa compare` through its command line and in Python: verdict, page, leakage, sizes, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hexa import cli
from hexa.comparison import verdict
from hexa.comparison.compare import CompareRequest, compare
from hexa.config import UserError

RANDOM = "random:small-resnet-8-8-16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos: 60 digits in one folder. labelled: 80 others in class folders, five of them also among the photos, and
    one twice."""
    root, digits = tmp_path_factory.mktemp("images"), load_digits()
    for place in range(140):
        name = "photos/all" if place < 60 else f"labelled/{digits.target[place]}"
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[place] * 15.9).astype(np.uint8)).save(root / name / f"{place}.png")
    for place in (*range(5), 139):
        Image.fromarray((digits.images[place] * 15.9).astype(np.uint8)).save(
            root / f"labelled/{digits.target[place]}" / f"again-{place}.png"
        )
    return root


def test_the_command_names_the_better_backbone_and_writes_a_page(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compared"
    given = ["compare", RANDOM, "pixels:8", "--data", f"folder:{folder / 'photos'}", "--size", "8"]
    assert cli.main([*given, "--labelled", f"folder:{folder / 'labelled'}", "--time", "60s", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"pixels:8 is better than {RANDOM}: k-NN" in said
    assert "left out: 1 labelled images that are near-duplicates of other labelled ones" in said
    assert "left out: 5 labelled images that are near-duplicates of images of --data" in said
    record = json.loads((out / "compare.json").read_text())
    assert record["best"] == "pixels:8"
    assert record["judged"] == 80
    assert len(record["duplicates"]) == 6
    html = (out / "compare.html").read_text()
    for part in (
        "Which is better?",
        "The closest images",
        "Classes that gained and lost most",
        "Near-duplicates",
        "<svg",
    ):
        assert part in html


def test_without_labels_it_says_that_it_cannot_be_told(folder: Path) -> None:
    data = f"folder:{folder / 'photos'}"
    found = compare(CompareRequest(backbones=(RANDOM, "pixels:8", RANDOM), data=data, size=8, seconds=30))
    assert found.verdict.best is None
    assert "without labels it cannot be told which is better" in found.verdict.sentence
    assert "give labelled images (--labelled)" in found.verdict.sentence
    header, rows = verdict.table(found.sides, found.verdict)
    assert [len(row) for row in rows] == [len(header)] * len(rows)
    assert found.verdict.pairs[1].kept == pytest.approx(100)  # the same network


def test_the_same_backbone_is_not_better_than_itself_and_sizes_are_told_apart() -> None:
    found = compare(CompareRequest(backbones=("pixels:8", "pixels:8", "pixels:4"), data="digits#test", seconds=60))
    assert found.verdict.best is None
    assert "pixels:8 (1) reaches most, but pixels:8 (2) not significantly less" in found.verdict.sentence
    assert "each at its own image size: 4 and 8 px; --size N compares at a common one" in found.notes
    assert [side.size for side in found.sides] == [8, 8, 4]
    assert found.verdict.pairs[1].better == -1


def test_little_time_looks_at_fewer_images_of_every_class() -> None:
    found = compare(CompareRequest(backbones=(RANDOM, "pixels:8"), data="digits", size=8, seconds=1e-9))
    assert len(np.unique(found.images.classes)) == 10
    assert 90 <= len(found.images) <= 110
    assert any("images were drawn; more --time looks at more" in note for note in found.notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backbones": ("pixels:8",)}, "a comparison needs two backbones or more"),
        ({"labelled": "folder:{}/photos/all"}, "have no labels; give class folders"),
        ({"data": "digits#nothing"}, "nothing"),
    ],
)
def test_mistakes_are_one_line(given: dict[str, object], said: str, folder: Path) -> None:
    named = {key: value.format(folder) if isinstance(value, str) else value for key, value in given.items()}
    with pytest.raises(UserError, match=said):
        compare(CompareRequest(**{"backbones": ("pixels:8", "pixels:4"), "data": "digits", **named}))  # type: ignore[arg-type]
