"""The recipes of views, and what a stored configuration makes of a change."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from hexa.data.views.config import ViewsConfig


def _views(**fields: Any) -> ViewsConfig:
    return ViewsConfig.model_validate(fields)


COLOURS: dict[str, Any] = {
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
    "jitter_probability": 0.8,
    "grayscale_probability": 0.2,
    "blur_probability": 0.5,
    "blur_sigma": (0.1, 2.0),
    "flip_probability": 0.5,
    "ratio": (3 / 4, 4 / 3),
}
STRONG = COLOURS | {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
FULL = [(2, 224, (0.2, 1.0))]


@pytest.mark.parametrize(
    ("name", "groups", "fields", "first"),
    [
        ("moco-v2", FULL, COLOURS, "jitter grayscale blur"),
        (
            "moco-v1",
            FULL,
            COLOURS | {"hue": 0.4, "jitter_probability": 1.0, "blur_probability": 0.0},
            "grayscale jitter",
        ),
        ("moco-cifar", [(2, 224, (0.08, 1.0))], COLOURS | {"blur_probability": 0.0}, "jitter"),
        (
            "infomin",
            FULL,
            STRONG
            | {
                "randaugment_ops": 2,
                "randaugment_magnitude": 10,
                "randaugment_magnitude_std": 0.5,
            },
            "jitter blur randaugment grayscale",
        ),
        ("swav", [(2, 224, (0.08, 1.0))], STRONG, ""),
        ("swav-8crop", [(2, 224, (0.14, 1.0)), (6, 96, (0.05, 0.14))], STRONG, ""),
        ("swav-6crop", [(2, 160, (0.08, 1.0)), (4, 96, (0.05, 0.14))], STRONG, ""),
        ("swav-cifar", [(2, 32, (0.08, 1.0))], STRONG | {"blur_probability": 0.0}, ""),
        (
            "swav-cifar-6crop",
            [(2, 32, (0.25, 1.0)), (4, 16, (0.08, 0.25))],
            STRONG | {"blur_probability": 0.0},
            "",
        ),
    ],
)
def test_published_values(name: str, groups: list[Any], fields: dict[str, Any], first: str) -> None:
    """F20 and §2.6; InfoMin: Tian et al. 2020 and the authors' code."""
    config = _views(recipe=name)
    assert [(group.count, group.size, group.scale) for group in config.groups] == groups
    assert config.model_dump(include=set(fields)) == fields
    assert " ".join(config.order).startswith(first)


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
