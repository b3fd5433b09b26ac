"""Names of a backbone's tensors in files of other software.

`LAYOUTS`, from layouts.yaml, maps the names of timm's and torchvision's networks to those of each
layout; `renamed` is the inverse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hexa.nn.normalize import IMAGENET_STD
from hexa.runtime.parsing import read_resource
from hexa.weights.files import State
from hexa.weights.preparation import Preparation, published

#: Content of layouts.yaml.
TABLE: dict[str, Any] = read_resource("hexa.weights", "layouts.yaml")
#: Networks by family; a state is compared with these unless the user names its network.
NETWORKS: dict[str, list[str]] = TABLE["networks"]
#: Names of widths in timm's vision transformers, by width.
WIDTHS: dict[int, str] = TABLE["widths"]
#: Vision transformers to suggest: W stands for the name of the width, P for the patch in pixels.
SUGGESTED: list[str] = TABLE["suggested"]
#: Names of modules that follow a backbone and are not part of it.
HEADS = f"({'|'.join(TABLE['heads'])})"

Renames = tuple[tuple[str, str], ...]
"""(pattern, replacement) pairs, applied in this order. In a replacement, {} stands for the number
of different matches before this one, and (a|b|c) for several tensors to join in this order."""


class Layout(NamedTuple):
    """A naming scheme of a backbone's tensors."""

    renames: Renames = ()
    """Rules that turn the names of timm or torchvision into those of the layout."""
    leftovers: str = rf"(embeddings\.(mask_token|position_ids)|{HEADS}(\.|$))"
    """Regular expression of names that are not part of the network."""
    family: str | None = None
    """The only family of networks with this layout, a key of NETWORKS; None for any."""


def _joined(renames: Iterable[list[str] | str]) -> Iterator[tuple[str, str]]:
    """Yield pairs; a text stands for the shared list of that name."""
    for one in renames:
        if isinstance(one, str):
            yield from _joined(TABLE["shared"][one])
        else:
            pattern, replacement = one
            yield pattern, replacement


#: Layouts by the software that writes them. If several match equally many names, the first is used.
LAYOUTS = {
    name: Layout(**fields | {"renames": tuple(_joined(fields.get("renames", ())))})
    for name, fields in TABLE["layouts"].items()
}


def names(layout: Layout, own: Iterable[str]) -> dict[str, str]:
    """Return {plain name: the layout's name} for a network's tensors; (a|b) in a name stands for
    several joined tensors."""
    renamed = {name: name for name in own}
    for pattern, new in layout.renames:
        numbers: dict[str, int] = {}
        for name, theirs in renamed.items():
            if found := re.search(pattern, theirs):
                number = numbers.setdefault(found[0], len(numbers))
                renamed[name] = (
                    theirs[: found.start()]
                    + found.expand(new).format(number)
                    + theirs[found.end() :]
                )
    return renamed


def pieces(name: str) -> list[str]:
    """Return the tensors that a layout's name stands for: a.(q|k).b gives a.q.b and a.k.b."""
    begin, bracket, rest = name.partition("(")
    if not bracket:
        return [name]
    choices, _, end = rest.partition(")")
    return [begin + choice + end for choice in choices.split("|")]


def renamed(layout: Layout, state: State, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state with the plain names of a network, whose own state is `own`.

    Tensors that this network does not have keep their names, except for leftovers, which are
    dropped.
    """
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for plain, theirs in names(layout, own).items():
        parts = pieces(theirs)
        if not all(part in state for part in parts):
            continue
        value = state[parts[0]]
        if len(parts) > 1:
            if len({state[part].shape[1:] for part in parts}) > 1 or not value.ndim:
                continue
            value = torch.cat([state[part] for part in parts])
        used.update(parts)
        missing = own[plain].ndim - value.ndim
        if layout.renames and missing > 0:  # for example, a class token [D] instead of [1, 1, D]
            value = value.reshape((1,) * missing + value.shape)
        found[plain] = value
    # a name of a head in one network may be the name of a normalisation in another
    others = {
        name: value
        for name, value in state.items()
        if name not in used and not re.match(layout.leftovers, name)
    }
    return others | found


def published_for(state: State) -> Preparation | None:
    """Return the preparation of images in the published code that wrote a file, if the tensors'
    names identify it."""
    for known in TABLE["published"]:
        if any(re.fullmatch(known["tensor"], name) for name in state):
            std = tuple(known.get("std", IMAGENET_STD))
            return published(known["whose"], std, known.get("interpolation", "bilinear"))
    return None
