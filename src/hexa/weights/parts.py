"""Search for the networks in a file, such as a student and its teacher, and the choice of one of
them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hexa.config import UserError, some
from hexa.nn.normalize import Channels
from hexa.weights.files import State, Weights
from hexa.weights.fitting import owner
from hexa.weights.layouts import HEADS, LAYOUTS, names, pieces

#: Words in the paths of moving averages of weights, of teachers, students and momentum copies.
_AVERAGE = re.compile(r"(\w*_)?(ema|averaged?|swa)(_\w*)?")
_TEACHER = re.compile(r"(\w*_)?teacher(_\w*)?")
_STUDENT = re.compile(r"(\w*_)?student(_\w*)?")
_TWIN = re.compile(r"(\w*_)?(momentum|k|key|target|teacher|attacker)(_\w*)?")
#: Modules next to a network that its features do not need.
_BESIDE = re.compile(
    rf"{HEADS}|\w*(loss|criterion|metric)\w*|center|temperature|logit_(scale|bias)|(pixel_)?(mean|std)|mu|sigma|"
    rf"normali[sz]e\w*|(\w*_)?(text|language)(_\w*)?|{_AVERAGE.pattern}|{_STUDENT.pattern}|{_TWIN.pattern}"
)
#: Modules of the text tower of a CLIP model, next to `visual`.
_TEXT = re.compile(
    r"transformer|token_embedding|positional_embedding|ln_final|attn_mask|text_projection|cls_emb"
)
_HEADS = re.compile(HEADS)
#: A file contains a network if it has this share of its tensors; missing ones are then reported.
_LEAST = 0.3
#: Names of the stored mean and standard deviation of a network with its own normalisation.
_NORMALISER = re.compile(
    r"(?:.*\.)?(?:(?:normali[sz]e\w*\.)(?:new_)?(?P<name>mean|std)|(?P<greek>mu|sigma))"
)


class Part(NamedTuple):
    """A network in a file: its layout, the path prefix of its tensors, and these tensors by
    name."""

    layout: str
    prefix: str
    state: dict[str, Tensor]

    @property
    def words(self) -> list[str]:
        """Return the words of the path."""
        return self.prefix.split(".")[:-1]

    def beside(self, name: str) -> bool:
        """Return whether a tensor next to this network, or at the root of the file, is known not to
        belong to the network."""
        first = name.partition(".")[0]
        # the vision tower of CLIP is next to its text tower
        text = any(word.startswith("visual") for word in self.words) and _TEXT.fullmatch(first)
        return bool(text or _BESIDE.fullmatch(first))

    def tensor(self, plain: str) -> Tensor | None:
        """Return the tensor with this name in timm or torchvision."""
        return self.state.get(names(LAYOUTS[self.layout], [plain])[plain])

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Return whether a word of the path matches."""
        return any(pattern.fullmatch(word) for word in self.words)


def find(weights: Weights, own: State) -> list[Part]:
    """Return the parts of a file that resemble a network with the state `own`, in one layout.

    A part has at least half as many of the network's tensors as the best one. It has no tensors of
    other parts, or of modules known not to belong to a network, except `mask_token`, by which timm
    identifies layouts.
    """
    counts: Counter[tuple[str, str]] = Counter()
    known: dict[str, set[str]] = {}
    for name, layout in LAYOUTS.items():
        theirs = names(layout, own)
        if layout.renames and all(plain == their for plain, their in theirs.items()):
            continue  # another kind of network
        known[name] = {
            piece
            for plain, their in theirs.items()
            for piece in pieces(their)
            if not plain.endswith("num_batches_tracked")
        }
        for key in weights.state:
            counts.update((name, prefix) for prefix in _prefixes(key, known[name]))
    if not counts:
        return []
    (chosen, _), most = counts.most_common(1)[0]
    if most < _LEAST * len(known[chosen]):
        return []
    prefixes = [prefix for (name, prefix), n in counts.items() if name == chosen and 2 * n >= most]
    parts = []
    for prefix in prefixes:
        inner = tuple(c for c in (*weights.containers, *prefixes) if len(c) > len(prefix))
        part = Part(chosen, prefix, {})
        for key, value in weights.state.items():
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix) or key.startswith(inner):
                continue
            if rest in known[chosen] or rest == "mask_token" or not part.beside(rest):
                part.state[rest] = value
        parts.append(part)
    return [part for part in parts if not part.has(_HEADS)] or parts


def _prefixes(key: str, known: Collection[str]) -> Iterator[str]:
    """Yield each path that is followed by a known name in a key."""
    for dot in re.finditer(r"^|\.", key):
        if key[dot.end() :] in known:
            yield key[: dot.end()]


def below(state: State, prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, with the prefix removed."""
    return {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}


def choose(
    parts: Sequence[Part], wanted: str | None, where: str, network: str
) -> tuple[Part, list[str]]:
    """Return one of the networks in a file, and notes for the user.

    wanted: the last part of FILE#NETWORK:PART, a path or a word of it, or `raw` for weights that
    are not averaged; None if the user gave none. network: as the user named it, because the name
    also sets the preparation of images; empty if it is inferred. By default, averaged weights are preferred to raw
    weights, a teacher to its student, and a network trained by gradients to its momentum copy.
    Raises UserError if several different networks remain.
    """
    left = list(parts)
    if wanted == "raw":
        left = [part for part in left if not part.has(_AVERAGE)]
    elif wanted is not None:
        left = [part for part in left if f".{wanted}." in f".{part.prefix}"]
    if not left:
        known = some(part.prefix.rstrip(".") or "raw" for part in parts)
        raise UserError(f"{where}#{network}:{wanted}: the file has no such part; it has {known}")
    notes: list[str] = []
    for preferred, other in ((_AVERAGE, None), (_TEACHER, _STUDENT)):
        better = [part for part in left if part.has(preferred)]
        others = [part for part in left if part not in better]
        if other is not None:
            others = [part for part in others if part.has(other)]
        if better and others:
            left = better
            word = "raw" if other is None else others[0].prefix.rstrip(".")
            notes.append(
                f"uses the weights of {_shown(better[0])}, not of {_shown(others[0])}; "
                f"for the others give {where}#{network}:{word}"
            )
    left = [part for part in left if not part.has(_TWIN)] or left
    first = left[0]
    different = [part for part in left[1:] if not _equal(part.state, first.state)]
    if different:
        raise UserError(
            f"{where}: has several such networks: {some(_shown(part) for part in left)}; choose one: "
            f"{where}#{network}:{first.prefix.rstrip('.')}"
        )
    return first, notes


def _shown(part: Part) -> str:
    return f"'{part.prefix.rstrip('.')}'" if part.prefix else "the file itself"


def _equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) for name, value in one.items()
    )


def unknown_beside(weights: Weights, part: Part, parts: Sequence[Part]) -> list[str]:
    """Return the tensors next to a network, in the same mapping of the file, that are neither known
    nor another network."""
    container = max((c for c in weights.containers if part.prefix.startswith(c)), key=len)
    others = (*weights.containers, *(one.prefix for one in parts))
    inner = tuple(path for path in others if len(path) > len(container))
    if part.prefix == container:
        return []
    return [
        key
        for key in weights.state
        if key.startswith(container)
        and not key.startswith(inner)
        and not any(part.beside(word) for word in key.removeprefix(container).split("."))
    ]


def normaliser(weights: Weights) -> tuple[Channels, Channels] | None:
    """Return the mean and standard deviation for pixels in [0, 1] that a network with its own
    normalisation stores."""
    found: dict[str, Channels] = {}
    for key, value in weights.state.items():
        match = _NORMALISER.fullmatch(key)
        if match is None or value.numel() not in (1, 3) or not value.is_floating_point():
            continue
        if match["greek"] and value.numel() == 1:
            continue
        name = match["name"] or {"mu": "mean", "sigma": "std"}[match["greek"]]
        numbers = value.double().flatten().tolist()
        found.setdefault(name, tuple(numbers * (3 // len(numbers))))
    if len(found) < 2 or max(*found["mean"], *found["std"]) > 1:
        return None
    return found["mean"], found["std"]


def without_wrappers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state without the common prefix of all its names, such as module._orig_mod."""
    state = dict(state)
    while state:
        first = {key.partition(".")[0] for key in state}
        if len(first) > 1 or not all("." in key for key in state):
            break
        state = below(state, f"{first.pop()}.")
    return state


def find_backbone(
    weights: Weights, network: nn.Module, branch: str
) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of `network` in the state of a method, with plain names, and the name of
    the encoder, such as query.

    Of several encoders, `choose` takes one that is not a momentum twin; of a student and its
    teacher, the teacher (DINO).
    branch: batch-norm set (`bn1.aux.weight`) that replaces the main one (`bn1.weight`).
    """
    own = network.state_dict()
    whole = [part for part in find(weights, own) if own.keys() <= part.state.keys()]
    if not whole:
        problem = "does not have the network in config.yaml; one of the two has been changed"
        raise UserError(f"{weights.where}: {problem}")
    chosen, _ = choose(whole, None, weights.where, "NETWORK")
    found = chosen.state
    if branch != "main":
        mark = f".{branch}."
        plain = {key.replace(mark, "."): value for key, value in found.items() if mark in key}
        if not plain.keys() & found.keys():
            problem = f"its backbone has no batch-norms '{branch}'; give the branch main"
            raise UserError(f"{weights.where}: {problem}")
        found |= {key: value for key, value in plain.items() if key in found}
    return found, owner(chosen.prefix)
