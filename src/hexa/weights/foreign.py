"""Backbones in files of other software: finds the network in a file and renames its tensors to
timm's names.

No tensor of a network stays random: `foreign_state` raises an error unless the file has all tensors
of the network, and unless all other tensors in the file are known not to belong to it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import timm
import timm.models
import torch
from torch import Tensor, nn

from hexa.config import UserError, some
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.weights import layouts, parts
from hexa.weights.files import State, Weights
from hexa.weights.fitting import misfit, outlined, own_branch
from hexa.weights.layouts import LAYOUTS, NETWORKS, SUGGESTED, WIDTHS
from hexa.weights.parts import Part
from hexa.weights.preparation import Preparation, assumed, of_timm
from hexa.weights.variants import Asked, variant

#: Image size in pixels of ResNets with a 3×3 stem.
_SMALL = 32
#: Name of a block that was compiled, sharded or checkpointed separately.
_WRAPPED_BLOCK = re.compile(
    r"(\.\d+\.)((_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+"
)
#: Name of a block in a chunk, as in DINOv2's training: blocks.1.7.
_CHUNKED_BLOCK = re.compile(r"\bblocks\.\d+\.(\d+\.)")
#: Names of tensors that timm would resample to another patch size or window.
_RESAMPLED = re.compile(r"patch_embed\.proj\.weight|.*relative_position_bias_table")
#: Tensors that a timm filter may drop, because the network computes them.
_COMPUTED = re.compile(r"(.*\.)?(relative_position_index|attn_mask|attention_bias_idxs)")


class Match(NamedTuple):
    """A part of a file of other software as a network of timm."""

    part: Part
    config: NetworkConfig
    outline: nn.Module
    state: dict[str, Tensor]
    """Tensors by timm's names."""
    notes: list[str]
    """Notes for the user on the choices."""
    problem: str
    """Tensors that do not fit, as text; empty if all fit."""


def foreign_state(
    weights: Weights,
    name: str | None = None,
    described: NetworkConfig | None = None,
    preparation: Preparation | None = None,
) -> tuple[Match, Preparation]:
    """Return the backbone in a file of other software, and the preparation of images.

    name: the user's text after FILE#, if the names of tensors are ambiguous.
    described, preparation: from a config.json.
    Otherwise, the preparation of images comes from the file's own normalisation, from the published
    code of its software, from timm's configuration (for networks given by name, and EfficientNets),
    or from default values. Raises UserError if the file lacks tensors of the network or has others.
    """
    asked = Asked.of(weights.where, name)
    weights = replace(weights, state=_plain(weights.state))
    if not weights.state:
        raise UserError(f"{asked.where}: has no tensors")
    known = asked.plain or (_nearest(weights) if described is None else None)
    config = described if known is None else NetworkConfig(name=known)
    if config is None:
        problem = f"no network is recognised by these key names ({some(weights.state)})"
        raise UserError(f"{asked.where}: {problem}; {_remedy(weights, asked)}")
    match = _match(weights, asked, config)
    config = match.config
    if match.problem:
        problem = f"not the state of {config.name}: {match.problem}"
        raise UserError(f"{asked.where}: {problem}; {_remedy(weights, asked)}")
    if preparation is None:
        preparation = _preparation(weights, asked, config)
    preparation = _of_size(preparation, match.outline)
    if own := parts.normaliser(weights):
        origin = "the file's own normalisation"
        origins = {**preparation.origins, "mean": origin, "std": origin}
        mean, std = own
        preparation = replace(preparation, mean=mean, std=std, origins=origins)
    return match, preparation


def _plain(state: State) -> dict[str, Tensor]:
    """Return a state without the wrappers of single blocks and without tensors that have no values.

    transformers writes 0 registers as such a tensor.
    """
    filled = {key: value for key, value in state.items() if value.numel()}
    plain = {_WRAPPED_BLOCK.sub(r"\1", key): value for key, value in filled.items()}
    # a file with a duplicate block is refused later
    return plain if len(plain) == len(filled) else filled


def _nearest(weights: Weights) -> str | None:
    """Return the ResNet or EfficientNet-Lite that shares most convolutions with a file; None if it
    has another network."""
    for known in NETWORKS.values():
        found = parts.find(weights, _own(known[0]))
        if found:
            part = found[0]
            return min(known, key=lambda name: _difference(part, _own(name)))
    return None


def _own(name: str) -> dict[str, Tensor]:
    """Return the state of a network on the meta device, without values."""
    return backbones.outline(NetworkConfig(name=name)).state_dict()


def _difference(part: Part, own: State) -> int:
    """Return the number of convolutions that only one of the two has, by name and channels."""
    theirs = layouts.renamed(LAYOUTS[part.layout], part.state, own)
    return len(_convolutions(own) ^ _convolutions(theirs))


def _convolutions(state: State) -> set[tuple[Any, ...]]:
    return {(name, *value.shape[:2]) for name, value in state.items() if value.ndim == 4}


def _match(weights: Weights, asked: Asked, config: NetworkConfig) -> Match:
    """Return the part of a file that is most similar to a network. Raises UserError if several are,
    or for unknown tensors."""
    where = f"{asked.where}#{config.name}"
    own = outlined(config, asked.where).state_dict()
    if not any(_CHUNKED_BLOCK.search(key) for key in own):
        whole = {_CHUNKED_BLOCK.sub(r"blocks.\1", key): v for key, v in weights.state.items()}
        weights = replace(weights, state=whole)
    found = parts.find(weights, own)
    if not found:  # timm may know the layout
        found = [Part("plain", "", parts.without_wrappers(weights.state))]
    part, notes = parts.choose(found, asked.part, asked.where, asked.name or "")
    family = LAYOUTS[part.layout].family
    if family is not None and config.name not in NETWORKS[family]:
        raise UserError(f"{where}: the network must be one of {', '.join(NETWORKS[family])}")
    unknown = [] if asked.part else parts.unknown_beside(weights, part, found)
    if unknown:
        raise UserError(
            f"{asked.where}: unknown tensors next to the network: {some(unknown)}; if the features do not need these, give the network's part: {where}:{part.prefix.rstrip('.')}"
        )
    config = variant(config, part, weights, asked, notes)
    outline = outlined(config, asked.where)
    own = outline.state_dict()
    state = converted(part, outline, config.name)
    return Match(part, config, outline, state, notes, misfit(own, own_branch(state, own)))


def converted(part: Part, outline: nn.Module, name: str) -> dict[str, Tensor]:
    """Return the tensors of a part with timm's names and shapes, without those that do not belong
    to the network.

    name: of the network; its own converter in timm is used if it has one.
    """
    own = outline.state_dict()
    layout = LAYOUTS[part.layout]
    state = layouts.renamed(layout, part.state, own)
    if layout.renames or "mask_token" not in part.state:
        state.pop("mask_token", None)
    else:
        state["mask_token"] = part.state["mask_token"]
    if layout.renames and getattr(outline, "no_embed_class", False) and "reg_token" in state:
        state["register_tokens"] = state.pop("reg_token")
    if any("register_tokens" in key or ".mlp.w12." in key for key in state):
        state.setdefault("mask_token", torch.zeros(1))  # timm detects DINOv2 by this key
    resampled = {key: value for key, value in state.items() if _RESAMPLED.fullmatch(key)}
    state = _by_timm(state, outline, name)
    for key, value in resampled.items():
        if key in state and (value.ndim == 4 or "bias_table" in key):
            state[key] = value
    return {
        key: value
        for key, value in state.items()
        if key in own or not (re.match(layout.leftovers, key) or _COMPUTED.fullmatch(key))
    }


def _by_timm(state: dict[str, Tensor], outline: nn.Module, name: str) -> dict[str, Tensor]:
    """Return a state converted by timm's own converter of this network; unchanged if it has none or
    if it fails."""
    module = sys.modules[timm.models.model_entrypoint(name).__module__]
    convert: Any = getattr(module, "checkpoint_filter_fn", None)
    if convert is None:
        return state
    with _silence():
        try:
            found: dict[str, Tensor] = convert(dict(state), outline)
        except Exception:  # a layout unknown to timm; missing tensors are reported later
            return state
    return found


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the output and logs of timm's converters."""
    logger = logging.getLogger("timm")
    before = logger.disabled
    logger.disabled = True
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.disabled = before


def _preparation(weights: Weights, asked: Asked, config: NetworkConfig) -> Preparation:
    """Return the preparation of images by the software that wrote the file."""
    found = layouts.published_for(weights.state)
    if found is None and (asked.name or config.name in NETWORKS["EfficientNet"]):
        found = of_timm(asked.name or config.name)
    found = found or assumed()
    if config.small_stem:  # there are no published values for such small images
        found = replace(assumed(_SMALL), std=found.std)
    return found


def _of_size(preparation: Preparation, outline: Any) -> Preparation:
    """Return a preparation for a network with a fixed image size."""
    grid = getattr(outline, "patch_embed", None)
    size = getattr(grid, "img_size", None)
    if size is None or getattr(outline, "pos_embed", None) is None or size[0] == preparation.size:
        return preparation
    origins = {**preparation.origins, "size": "the network's position embeddings"}
    return replace(preparation, size=int(size[0]), origins=origins)


def _remedy(weights: Weights, asked: Asked) -> str:
    """Return advice for a file that does not fit: a network that fits, if one is found."""
    for name in _candidates(weights):
        with contextlib.suppress(UserError):
            named = asked._replace(name=name)
            if not _match(weights, named, NetworkConfig(name=name)).problem:
                return f"it fits {name}: give {asked.where}#{name}"
    return (
        f"name the network of timm that it was saved from: {asked.where}#NETWORK; if timm does not "
        "have it, give a function that returns it: python:FILE.py:CALLABLE"
    )


def _candidates(weights: Weights) -> list[str]:
    """Return timm networks from which a file may have been saved."""
    found = [_nearest(weights) or ""]
    for value in weights.state.values():
        if value.ndim == 4 and value.shape[1] == 3 and value.shape[0] in WIDTHS:
            word = WIDTHS[value.shape[0]]
            patch = str(value.shape[2])
            found += [name.replace("W", word).replace("P", patch) for name in SUGGESTED]
            break
    known = timm.list_models()
    return [name for name in found if name in known]
