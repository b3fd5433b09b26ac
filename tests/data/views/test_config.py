"""The recipes of views, and what a stored configuration makes of a change."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from hexa.config import ConfigError
from hexa.data.views.config import RECIPES, ViewsConfig


def _views(**fields: Any) -> ViewsConfig:
    return ViewsConfig.model_validate(fields)


def test_published_values() -> None:
    """F20 and §2.6."""
    v2, v1, cifar = (_views(recipe=name) for name in ("moco-v2", "moco-v1", "moco-cifar"))
    assert (v2.scale, v2.ratio) == ((0.2, 1.0), (3 / 4, 4 / 3))
    assert (v2.brightness, v2.contrast, v2.saturation, v2.hue, v2.jitter_probability) == (
        0.4,
        0.4,
        0.4,
        0.1,
        0.8,
    )
    assert (v2.grayscale_probability, v2.blur_probability, v2.blur_sigma) == (0.2, 0.5, (0.1, 2.0))
    assert (v2.flip_probability, v2.order[:3]) == (0.5, ("jitter", "grayscale", "blur"))
    assert (v1.hue, v1.jitter_probability, v1.blur_probability, v1.scale) == (
        0.4,
        1.0,
        0.0,
        (0.2, 1.0),
    )
    assert v1.order.index("grayscale") < v1.order.index("jitter")
    assert (cifar.scale, cifar.blur_probability, cifar.hue, cifar.jitter_probability) == (
        (0.08, 1.0),
        0.0,
        0.1,
        0.8,
    )
    assert ViewsConfig() == v2


NEEDED = "must contain randaugment for randaugment_ops"


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
def test_published_values_of_multi_crop(
    name: str, groups: list[tuple[int, int, tuple[float, float]]]
) -> None:
    """F20."""
    config = _views(recipe=name)
    assert [(group.count, group.size, group.scale) for group in config.groups] == groups
    assert config.total_views == sum(count for count, _, _ in groups)
    assert (config.brightness, config.contrast, config.saturation, config.hue) == (
        0.8,
        0.8,
        0.8,
        0.2,
    )
    assert (config.jitter_probability, config.grayscale_probability) == (0.8, 0.2)
    assert (config.blur_probability, config.blur_sigma) == (
        0.0 if "cifar" in name else 0.5,
        (0.1, 2.0),
    )
    assert (config.ratio, config.flip_probability) == ((3 / 4, 4 / 3), 0.5)


def test_published_values_of_infomin() -> None:
    """Tian et al. 2020 and the authors' code: MoCo-v2's but for stronger colours and RandAugment between the others."""
    config = _views(recipe="infomin")
    assert (config.brightness, config.contrast, config.saturation, config.hue) == (
        0.8,
        0.8,
        0.8,
        0.2,
    )
    assert (
        config.randaugment_ops,
        config.randaugment_magnitude,
        config.randaugment_magnitude_std,
    ) == (2, 10, 0.5)
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


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "infomin"])
def test_randaugment_leaves_no_trace_where_it_is_not_asked_for(name: str) -> None:
    """Fields off their defaults make the fingerprint of a run; stored configurations know nothing of RandAugment."""
    config = _views(recipe=name)
    assert "randaugment" not in config.model_dump_json(exclude_defaults=True)
    stored = {
        key: value
        for key, value in config.model_dump(mode="json").items()
        if "randaugment" not in key
    }
    assert sorted(stored["order"]) == ["blur", "grayscale", "jitter", "solarize"]
    assert ViewsConfig.model_validate(stored) == config


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("byol", [(1, 224, 1.0, 0.0), (1, 224, 0.1, 0.2)]),
        ("dino", [(1, 224, 1.0, 0.0), (1, 224, 0.1, 0.2), (8, 96, 0.5, 0.0)]),
    ],
)
def test_views_that_differ_in_blur_and_solarisation(
    name: str, expected: list[tuple[int, int, float, float]]
) -> None:
    """As in the papers' appendices; what a group leaves open is as in the first views."""
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


@pytest.mark.parametrize("name", RECIPES)
def test_a_stored_configuration_comes_back(name: str) -> None:
    config = _views(recipe=name, size=48, blur_probability=0.25)
    assert ViewsConfig.model_validate(config.model_dump(mode="json")) == config


def test_naming_another_recipe_in_a_stored_configuration_changes_what_was_not_set_by_hand() -> None:
    stored = _views(recipe="moco-v2", size=32, hue=0.25).model_dump(mode="json")
    assert ViewsConfig.model_validate({**stored, "recipe": "moco-v1"}) == _views(
        recipe="moco-v1", size=32, hue=0.25
    )


@pytest.mark.parametrize(
    ("fields", "then", "groups"),
    [
        ({"recipe": "moco-cifar", "size": 28}, "swav-cifar-6crop", [(2, 28), (4, 16)]),
        ({"recipe": "infomin", "size": 28}, "moco-v2", [(2, 28)]),
        (
            {
                "recipe": "swav-6crop",
                "extra_crops": [{"count": 3, "size": 64, "scale": [0.1, 0.2]}],
            },
            "swav-8crop",
            [(2, 224), (3, 64)],
        ),
    ],
)
def test_groups_follow_another_recipe_unless_set_by_hand(
    fields: dict[str, Any], then: str, groups: list[tuple[int, int]]
) -> None:
    changed = ViewsConfig.model_validate(
        {**_views(**fields).model_dump(mode="json"), "recipe": then}
    )
    assert [(group.count, group.size) for group in changed.groups] == groups


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recipe": "moco-v3"}, "did you mean 'moco-v"),
        ({"scale": (0.5, 0.2)}, "scale: must be two increasing"),
        ({"magnification": (1.0, 1000.0)}, "must be two increasing numbers between"),
        ({"order": ("jitter", "blur")}, "order: must name each"),
        ({"order": ("jitter", "grayscale", "blur", "randaugment")}, "order: must name each"),
        ({"randaugment_ops": 2}, f"order: {NEEDED}, for example [jitter, blur, randaug"),
        (
            {"recipe": "infomin", "randaugment_magnitude_std": float("inf")},
            "randaugment_magnitude_std: must be",
        ),
        ({"sizes": 3}, "did you mean 'size'"),
        ({"extra_crops": "4x16"}, "extra_crops: must be a list of groups, for example [{count"),
        (
            {"extra_crops": [{"count": 1, "size": 16, "scale": (1, 0.1)}]},
            "extra_crops.0.scale: must be two increasing",
        ),
        ({"extra_crops": [{"size": 16, "scale": (0.1, 0.2)}]}, "extra_crops.0.count: is missing"),
        (
            {"extra_crops": [{"count": 1, "sise": 1, "scale": (0.1, 0.2)}]},
            "0.sise: unknown field; did you mean 'size'",
        ),
    ],
)
def test_fields_that_do_not_hold_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        _views(**fields)
    assert message in str(ConfigError.of(caught.value))
