"""Properties of a network that its name does not determine, from a file: stem, biases, tokens,
image size."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn

from hexa.config import UserError, nearest
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig, takes_option
from hexa.weights.files import State, Weights
from hexa.weights.layouts import LAYOUTS, NETWORKS
from hexa.weights.parts import Part
from hexa.weights.preparation import current_name

#: Values after FILE#NETWORK: for the padding of a 3×3 stem.
_PADDINGS = {"padding1": 1, "padding2": 2}
_MOCO = re.compile("base_encoder|momentum_encoder")


class Asked(NamedTuple):
    """The network that the user asked for: FILE#NETWORK, FILE#NETWORK.TAG, FILE#NETWORK:PART,
    FILE#NETWORK:padding1 or, for an inferred network, FILE#:PART."""

    where: str
    name: str | None = None
    part: str | None = None
    padding: int | None = None

    @classmethod
    def of(cls, where: str, text: str | None) -> Asked:
        """Parse the user's text after #. Raises UserError for a network that timm does not have."""
        name, *words = (text or "").split(":")
        name = current_name(name)
        paddings = [_PADDINGS[word] for word in words if word in _PADDINGS]
        others = [word.rstrip(".") for word in words if word not in _PADDINGS]
        plain = name.partition(".")[0]
        unknown = plain != name and name not in timm.list_pretrained()
        if name and (plain not in timm.list_models() or unknown):
            remedy = nearest(name, timm.list_models())
            raise UserError(f"{where}#{name}: timm has no network '{name}'; {remedy}")
        if len(others) > 1:
            raise UserError(f"{where}#{text}: write FILE#NETWORK, FILE#NETWORK:PART or FILE#:PART")
        return cls(where, name or None, next(iter(others), None), next(iter(paddings), None))

    @property
    def plain(self) -> str | None:
        """The network's name without the tag of its weights."""
        return None if self.name is None else self.name.partition(".")[0]


def variant(
    config: NetworkConfig, part: Part, weights: Weights, asked: Asked, notes: list[str]
) -> NetworkConfig:
    """Return the network with the properties that the file shows; each uncertain choice adds a
    note."""
    config = _stem(config, part, weights, asked, notes)
    state = part.state
    is_dinov3 = "dinov3" in config.name
    if is_dinov3:
        config = _with_biases(config, state, asked)
    options = dict(config.options)
    is_averaged = "fc_norm.weight" in state and "norm.weight" not in state
    if is_averaged and takes_option(config, "global_pool"):
        options.setdefault("global_pool", "avg")
    published = "storage_tokens" in state or bool(LAYOUTS[part.layout].renames)
    if is_dinov3 and published and "global_pool" not in options:
        options["global_pool"] = "token"
        notes.append("features are class tokens, as published; timm averages patches")
    of_moco = part.has(_MOCO) and config.name == "vit_small_patch16_224"
    if of_moco and "num_heads" not in options:
        options["num_heads"] = 12
        notes.append("the network has 12 attention heads, as MoCo-v3's ViT-S; timm's has 6")
    if part.layout == "CLIP of transformers" and "quickgelu" not in (asked.name or "quickgelu"):
        notes.append("OpenAI's CLIP uses quick GELU: name a network with clip_quickgelu")
    if part.layout == "Detectron2":
        notes.append("Detectron2's own networks take BGR; only converted ones fit this preparation")
    if asked.name is not None and part.layout.startswith("ViT of transformers"):
        options.setdefault("norm_eps", 1e-12)  # transformers' default, and nearly always used
    side = _stored_side(part, backbones.outline(config))
    if side is not None:
        options.setdefault("img_size", side)
    return config.model_copy(update={"options": options})


def _stem(
    config: NetworkConfig, part: Part, weights: Weights, asked: Asked, notes: list[str]
) -> NetworkConfig:
    """Return a ResNet with the 3×3 stem of the file. solo-learn pads it by 2 pixels, all others by
    1."""
    if config.name not in NETWORKS["ResNet"]:
        return config
    stem = part.tensor("conv1.weight")
    if stem is None or stem.shape[2:] != (3, 3):
        return config
    padding = asked.padding
    if padding is None:
        of_solo = _is_of_solo(part, weights)
        padding = 2 if of_solo else 1
        whose = "as solo-learn's" if of_solo else "since the file does not say"
        notes.append(
            f"the 3×3 stem is padded by {padding}, {whose}; "
            f"{asked.where}#{config.name}:padding{3 - padding} pads it by {3 - padding}"
        )
    options = {"stem_padding": padding} if padding != 1 else {}
    return config.model_copy(update={"small_stem": True, "options": config.options | options})


def _is_of_solo(part: Part, weights: Weights) -> bool:
    """Return whether this is a solo-learn checkpoint, with a classifier and a method's head next to
    the backbone."""
    parent = part.prefix.removesuffix("backbone.")
    heads = ("projector.", "predictor.", "momentum_", "prototypes")
    siblings = tuple(parent + head for head in heads)
    return (
        part.prefix.endswith("backbone.")
        and f"{parent}classifier.weight" in weights.state
        and any(key.startswith(siblings) for key in weights.state)
    )


def _with_biases(config: NetworkConfig, state: State, asked: Asked) -> NetworkConfig:
    """Return a DINOv3 network with biases of queries and values if the file has any.

    timm's converter would drop them for a network without. Raises UserError for biases of keys.
    """
    # biases of queries and values; in the larger published networks all are 0
    has_biases = any(key.endswith("attention.q_proj.bias") for key in state)
    for key, value in state.items():
        if not key.endswith("attn.qkv.bias"):
            continue
        queries, keys, values = value.flatten().tensor_split(3)
        if f"{key}_mask" not in state and keys.any():
            raise UserError(
                f"{asked.where}: {key} has biases of keys, which no network of timm has"
            )
        has_biases |= bool(queries.any() or values.any())
    if not has_biases or config.name.endswith("_qkvb"):
        return config
    if f"{config.name}_qkvb" in timm.list_models():
        return config.model_copy(update={"name": f"{config.name}_qkvb"})
    return config.model_copy(update={"options": config.options | {"qkv_bias": True}})


def _stored_side(part: Part, outline: Any) -> int | None:
    """Return the side in pixels of square images for the file's position embeddings; None if it is
    the network's own."""
    own = getattr(outline, "pos_embed", None)
    patches = getattr(outline, "patch_embed", None)
    patch = getattr(patches, "patch_size", None)
    grid = getattr(patches, "grid_size", None)
    if not isinstance(own, Tensor) or own.ndim != 3 or patch is None or grid is None:
        return None
    stored = part.tensor("pos_embed")
    if stored is None or stored.ndim not in (2, 3) or grid[0] != grid[1]:
        return None
    of_tokens = own.shape[1] - grid[0] * grid[1]
    for tokens in (of_tokens, 1):  # DINOv2 with registers has a position for the class token
        count = max(stored.shape[-2] - tokens, 0)
        side = math.isqrt(count)
        if side and side * side == count:
            return None if side == grid[0] else side * int(patch[0])
    return None


def check_periods(network: nn.Module, weights: Weights) -> None:
    """Raise UserError if a file stores other periods of rotary positions than the network
    computes."""
    own = getattr(getattr(network, "rope", None), "periods", None)
    for key, value in weights.state.items():
        if not key.endswith("rope_embed.periods") or not isinstance(own, Tensor):
            continue
        # periods may be stored with 8 bits of precision
        if value.shape != own.shape or not torch.allclose(value.float(), own.float(), rtol=0.01):
            raise UserError(f"{weights.where}: {key} are not the periods of this network of timm")
