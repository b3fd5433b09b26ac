"""The recipes of views, and what a stored configuration makes of a change."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from hexa.data.views.config import ViewsConfig


def _views(**fields: Any) -> ViewsConfig:
    return ViewsConfig.model_validate(fields)


def test_published_view_values() -> None:
    """F20 and §2.6."""
    v2 = _views(recipe="moco-v2")
    v1 = _views(recipe="moco-v1")
    cifar = _views(recipe="moco-cifar")
    assert v2.scale == (0.2, 1.0)
    assert v2.ratio == (3 / 4, 4 / 3)
    assert v2.brightness == 0.4
    assert v2.contrast == 0.4
    assert v2.saturation == 0.4
    assert v2.hue == 0.1
    assert v2.jitter_probability == 0.8
    assert v2.grayscale_probability == 0.2
    assert v2.blur_probability == 0.5
    assert v2.blur_sigma == (0.1, 2.0)
    assert v2.flip_probability == 0.5
    assert v2.order[:3] == ("jitter", "grayscale", "blur")
    assert v1.hue == 0.4
    assert v1.jitter_probability == 1.0
    assert v1.blur_probability == 0.0
    assert v1.scale == (0.2, 1.0)
    assert v1.order.index("grayscale") < v1.order.index("jitter")
    assert cifar.scale == (0.08, 1.0)
    assert cifar.blur_probability == 0.0
    assert cifar.hue == 0.1
    assert cifar.jitter_probability == 0.8
    assert ViewsConfig() == v2


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("swav", [(2, 224, (0.08, 1.0))]),
        ("swav-8crop", [(2, 224, (0.14, 1.0)), (6, 96, (0.05, 0.14))]),
        ("swav-6crop", [(2, 160, (0.08, 1.0)), (4, 96, (0.05, 0.14))]),
        ("swav-cifar", [(2, 32, (0.08, 1.0))]),
        ("swav-cifar-6crop", [(2, 32, (0.25, 1.0)), (4, 16, (0.08, 0.25))]),
    ],
)
def test_published_multi_crop_values(
    name: str, groups: list[tuple[int, int, tuple[float, float]]]
) -> None:
    """F20."""
    config = _views(recipe=name)
    assert [(group.count, group.size, group.scale) for group in config.groups] == groups
    assert config.total_views == sum(count for count, _, _ in groups)
    assert config.brightness == 0.8
    assert config.contrast == 0.8
    assert config.saturation == 0.8
    assert config.hue == 0.2
    assert config.jitter_probability == 0.8
    assert config.grayscale_probability == 0.2
    assert config.blur_probability == (0.0 if "cifar" in name else 0.5)
    assert config.blur_sigma == (0.1, 2.0)
    assert config.ratio == (3 / 4, 4 / 3)
    assert config.flip_probability == 0.5


def test_published_infomin_values() -> None:
    """Tian et al. 2020 and the authors' code: MoCo-v2's but for stronger colours and RandAugment between the others."""
    config = _views(recipe="infomin")
    assert config.brightness == 0.8
    assert config.contrast == 0.8
    assert config.saturation == 0.8
    assert config.hue == 0.2
    assert config.randaugment_ops == 2
    assert config.randaugment_magnitude == 10
    assert config.randaugment_magnitude_std == 0.5
    assert config.order[:4] == ("jitter", "blur", "randaugment", "grayscale")
    changed = {
        "based_on",
        "brightness",
        "contrast",
        "saturation",
        "hue",
        "randaugment_ops",
        "order",
    }
    assert set(config.model_dump(exclude_defaults=True)) == changed


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("byol", [(1, 224, 1.0, 0.0), (1, 224, 0.1, 0.2)]),
        (
            "dino",
            [
                (1, 224, 1.0, 0.0),
                (1, 224, 0.1, 0.2),
                (8, 96, 0.5, 0.0),
            ],
        ),
    ],
)
def test_asymmetric_views(name: str, expected: list[tuple[int, int, float, float]]) -> None:
    """The papers' asymmetric views; fields that a group leaves open are those of the first
    views."""
    groups = _views(recipe=name).groups
    assert [
        (g.count, g.size, g.blur_probability, g.solarize_probability) for g in groups
    ] == expected
    assert [
        g.blur_probability for g in _views(recipe="swav-8crop", blur_probability=0.3).groups
    ] == [0.3, 0.3]
    smaller = _views(recipe="byol", size=160, scale=(0.1, 0.9)).groups
    assert [(g.size, g.scale) for g in smaller] == [(160, (0.1, 0.9))] * 2
    with pytest.raises(pydantic.ValidationError, match="less than or equal to 1"):
        _views(extra_crops=[{"count": 1, "size": 8, "scale": [0.1, 0.2], "blur_probability": 1.5}])
