"""Names of a backbone's tensors in files of other software.

`LAYOUTS`, from layouts.yaml, maps the names of timm's and torchvision's networks to those of each layout; `renamed` goes
back.
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

#: The content of layouts.yaml.
TABLE: dict[str, Any] = read_resource("hexa.weights", "layouts.yaml")
#: Networks by family, with which a state is compared unless the user names its network.
NETWORKS: dict[str, list[str]] = TABLE["networks"]
#: Words in timm's names of vision transformers, by width.
WIDTHS: dict[int, str] = TABLE["widths"]
#: Vision transformers to suggest for a file: W is the word of the width, P the patch in pixels.
SUGGESTED: list[str] = TABLE["suggested"]
#: Names of modules that follow a network and are not part of it.
HEADS = f"({'|'.join(TABLE['heads'])})"

Renames = tuple[tuple[str, str], ...]
"""(pattern, replacement) pairs, applied in this order. {} in a replacement stands for the number of different matches
before this one; (a|b|c) for several tensors that are joined in this order."""


class Layout(NamedTuple):
    """How some software names a backbone's tensors."""

    renames: Renames = ()
    """Turn the plain names of timm or torchvision into those of the layout."""
    leftovers: str = rf"(embeddings\.(mask_token|position_ids)|{HEADS}(\.|$))"
    """A regular expression of names that are not part of the network."""
    family: str | None = None
    """The only networks that have this layout, one of NETWORKS."""


def _joined(renames: Iterable[list[str] | str]) -> Iterator[tuple[str, str]]:
    """Pairs; a text stands for the shared list of that name."""
    for one in renames:
        if isinstance(one, str):
            yield from _joined(TABLE["shared"][one])
        else:
            pattern, replacement = one
            yield pattern, replacement


def _layout(renames: Iterable[list[str] | str] = (), **fields: str) -> Layout:
    return Layout(tuple(_joined(renames)), **fields)


#: The layouts by the software that writes them. Of several that have as many of a file's names, the first is chosen.
LAYOUTS = {name: _layout(**fields) for name, fields in TABLE["layouts"].items()}


def names(layout: Layout, own: Iterable[str]) -> dict[str, str]:
    """{plain name: the layout's name} of a network's tensors; (a|b) in a name stands for several that are joined."""
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
    """The tensors that a layout's name stands for: a.(q|k).b is a.q.b and a.k.b."""
    begin, bracket, rest = name.partition("(")
    if not bracket:
        return [name]
    choices, _, end = rest.partition(")")
    return [begin + choice + end for choice in choices.split("|")]


def renamed(layout: Layout, state: State, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state with the plain names of a network, whose own state is `own`.

    Tensors that this network does not have keep their names, except for leftovers, which are dropped.
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
        if layout.renames and missing > 0:  # a class token [D] for [1, 1, D]
            value = value.reshape((1,) * missing + value.shape)
        found[plain] = value
    # a head's name in one network is a normalisation's in another
    others = {
        name: value
        for name, value in state.items()
        if name not in used and not re.match(layout.leftovers, name)
    }
    return others | found


def published_for(state: State) -> Preparation | None:
    """The preparation of images by the published code that wrote a file, if its names tell."""
    for known in TABLE["published"]:
        if any(re.fullmatch(known["tensor"], name) for name in state):
            return published(known["whose"], tuple(known.get("std", IMAGENET_STD)))
    return None
