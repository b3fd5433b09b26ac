"""The names that recipes had in version 0.1, when hard examples and sizes were recipes of their own."""

from __future__ import annotations

import re
from typing import Any

from hexa.core.schemes import SCHEMES

#: Methods whose name changed with their hard examples.
_PLAIN = {"moco": "moco-v2", "dcluster": "deepcluster-v2", "pcl": "pcl-v2"}
_HEXA = re.compile(r"hexa-(\w+?)(-plus|-cutmix|-split)?(-6crop|-vit)?")
_ENDS = {None: "+adversarial", "-plus": "+adversarial+cutmix", "-cutmix": "+cutmix", "-split": "+split"}
#: What the paper prints, or what has a measured result, kept its name.
_KEPT = re.compile(r"digits-.*|imagenet-hexa-(moco|dcluster).*")


def current(name: str) -> tuple[str, dict[str, Any]]:
    """Today's name of a recipe, and fields to set beside; a name of today is itself."""
    if _KEPT.fullmatch(name):
        return name, {}
    if fits := re.fullmatch(r"(ablate-\w+)-(i|ii|iii|iv|v|vi)", name):
        return fits[1] + SCHEMES[fits[2]].modifiers, {}
    if fits := re.fullmatch(r"grid-attack-(\d)-(\d)", name):
        attack = "hard_examples.adversarial"
        return "grid-attack", {f"{attack}.epsilon": int(fits[1]), f"{attack}.step_size": int(fits[2])}
    if fits := re.fullmatch(r"grid-beta-(\d)-(\d)", name):
        mixing = "hard_examples.cutmix"
        return "grid-beta", {f"{mixing}.alpha": int(fits[1]), f"{mixing}.beta": int(fits[2])}
    fits = re.fullmatch(r"(cifar10|imagenet)-(small-)?([a-z0-9-]+)", name)
    if not fits or not (fits[2] or fits[3].startswith("hexa-")):
        return name, {}
    size, method, hard = "+small" if fits[2] else "", fits[3], ""
    if plain := _HEXA.fullmatch(method):
        method, hard = _PLAIN.get(plain[1], plain[1]) + (plain[3] or ""), _ENDS[plain[2]]
    return f"{fits[1]}-{method}{size}{hard}", {}
