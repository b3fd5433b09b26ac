"""The published tables, against the document it was taken from."""

from __future__ import annotations

from typing import Any

import pytest

from hexa import recipes
from hexa_paper import published


def result(
    protocol: str, metrics: dict[str, float], known_as: str | None, images: int, fit: int = 5011
) -> dict[str, Any]:
    facts = {"fit": {"images": fit}, "test": {"known_as": known_as, "images": images}}
    preset = protocol.partition("/")[2]
    made = {"protocol": protocol, "preset": preset, "metrics": metrics, "data_facts": facts}
    return made | {"options": {}, "deviations": {}, "transform": {"size": 224}}


def test_published_row_beside_result() -> None:
    """A result stands next to what was published for it."""
    found = published.beside(result("svm/goyal", {"mAP": 80.0}, "VOC07", 4952))
    assert found.columns == ("VOC07",)
    assert found.own == (80.0,)
    assert found.caution == ""
    assert ("HEXA-MoCo", 800, (87.0,)) in [
        (row.method, row.epochs, row.values) for row in found.rows
    ]
    assert all(row.values != (None,) for row in found.rows)
    found = published.beside(result("low-shot/pcl", {"mAP@1": 1.0, "mAP@4": 2.0}, "VOC07", 900))
    assert found.columns == ("mAP@4",)
    assert found.own == (2.0,)
    few = result(
        "semi-supervised/fixmatch", {"top1": 40.0, "top1_std": 1.0}, "CIFAR-10", 10_000, fit=50_000
    )
    found = published.beside(few | {"options": {"labels": 40, "percent": 10.0}})
    assert found.columns == ("error@40",)
    assert found.own == (60.0,)
    assert found.rows[-1].values == (8.33,)
    assert "one network and one length" in found.caution
    assert published.beside(few | {"options": {"labels": 100, "percent": 10.0}}) is None
    found = published.beside(result("svm/pcl", {"mAP": 1.0}, "VOC07", 900, fit=800))
    assert found.caution == (
        "published with 5,011 training images, here 800; 4,952 test images, here 900: not comparable"
    )
    semi = result(
        "semi-supervised/hexa", {"top1": 60.0, "top5": 80.0, "top1_last": 1.0}, "ImageNet", 50_000
    )
    found = published.beside({**semi, "options": {"percent": 1.0}})
    assert found.columns == ("1 % top1", "1 % top5")
    assert found.own == (60.0, 80.0)


def test_other_settings() -> None:
    """Published rows of other settings, or beside changed options, are not comparable."""
    top1 = {"top1": 60.0}
    probe = result("linear/moco", top1, "ImageNet", 50_000, fit=1_281_167)
    assert published.beside(probe).caution == ""
    changed = published.beside(probe | {"deviations": {"epochs": [100, 2]}})
    assert "without the deviations" in changed.caution
    small = published.beside(probe | {"transform": {"size": 32}})
    assert small.caution == "published at 224 px, here 32"
    for protocol, data, fit, test in (
        ("linear/moco-ablation", "ImageNet", 1_281_167, 50_000),
        ("linear/moco", "CIFAR-10", 50_000, 10_000),
        ("low-shot/goyal", "VOC07", 5011, 4952),
    ):
        metrics = top1 | {"mAP@4": 1.0}
        found = published.beside(result(protocol, metrics, data, test, fit))
        assert found.caution.startswith("published with the settings of")
    few = result("low-shot/pcl", {"mAP@4": 2.0}, "VOC07", 4952) | {
        "deviations": {"shots": [[1, 2], [4]]}
    }
    assert published.beside(few).caution == ""


def test_robust_cautions() -> None:
    """AutoAttack on all images is comparable; APGD, fewer images or other steps are not."""
    resized = result("robust/autoattack", {"robust@8": 30.0}, "CIFAR-10", 10_000, 50_000)
    standard = resized | {"transform": {"size": 32}}
    assert published.beside(standard).caution == ""
    fewer = published.beside(standard | {"options": {"images": 1000}})
    assert fewer.caution == "published on all 10,000 test images, here 1,000 of them"
    apgd = published.beside(standard | {"preset": "apgd", "options": {"images": 1000}})
    assert apgd.caution == f"published with another attack; {fewer.caution}"
    short = published.beside(standard | {"deviations": {"steps": [100, 5]}})
    assert short.caution == "published with another attack"
    asked = {"images": [1000, None], "epsilons": [[1, 8], [8]], "branch": ["main", "aux"]}
    assert published.beside(standard | {"deviations": asked}).caution == ""
    assert published.beside(resized).caution == "published at 32 px, here 224"
    other = published.beside(standard | {"deviations": {"mean": ["a", "b"]}})
    assert "without the deviations" in other.caution


@pytest.mark.parametrize(
    ("protocol", "known_as"),
    [("knn/k200", "CIFAR-10"), ("svm/pcl", "CIFAR-10"), ("linear/moco", None)],
)
def test_unpublished_results(protocol: str, known_as: str | None) -> None:
    """Nothing was published for some results."""
    metrics = {"mAP": 1.0} if protocol.startswith("svm") else {"top1": 1.0}
    assert published.beside(result(protocol, metrics, known_as, 10_000)) is None


@pytest.mark.parametrize(
    ("table", "method", "epochs", "first"),
    [
        (
            published.LOW_SHOT,
            "DeepCluster-v2 (8-crop)",
            800,
            53.5,
        ),  # whatever stands in its brackets
        (published.LINEAR, "HEXA-D (8-crop)", 200, 74.0),
        (published.LINEAR, "HEXA-D", 200, 68.1),
        (published.LINEAR, "HEXA-D", 800, None),
        (published.LOW_SHOT, "SwAV (B=256)", 200, None),  # a row of another batch is another row
        (published.LINEAR, "SwAV (B=4)", 200, None),  # not even a part of its brackets
    ],
)
def test_published_row_lookup(
    table: published.Table, method: str, epochs: int, first: float | None
) -> None:
    """A row is found by its method."""
    row = published.find(table.rows, method, epochs)
    assert (row and row.values[0]) == first


def test_scored_image_size() -> None:
    """Networks of the paper's rows are scored at 224 pixels whatever their views; CPC at its published size."""
    for name in [*published.COUNTERPARTS, "ablate-dcluster", "grid-beta"]:
        expected = 260 if name == "imagenet-cpc" else 224
        assert recipes.get(name).views.test_size == expected, name
