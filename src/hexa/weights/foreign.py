"""Backbones in files of other software: finds the network in a file and gives its tensors timm's names.

No tensor of a network is left at random: `foreign_state` raises an error unless the file has all of them, and unless
everything else in the file is known not to belong to the network.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import timm
import timm.models
import torch
from torch import Tensor, nn

from hexa.config import UserError, nearest, some
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.weights import layouts, parts
from hexa.weights.files import State, Weights
from hexa.weights.fitting import misfit, own_branch
from hexa.weights.layouts import LAYOUTS, NETWORKS, WIDTHS
from hexa.weights.parts import Part
from hexa.weights.preparation import Preparation, assumed, of_timm

#: What the user may write after FILE#NETWORK: for the padding of a 3×3 stem.
_PADDINGS = {"padding1": 1, "padding2": 2}
#: Networks to suggest: W is the word of the width, P the patch.
_SUGGESTED = (
    *("vit_W_patchP_224", "vit_W_patchP_dinov2", "vit_W_patchP_reg4_dinov2", "vit_W_patchP_dinov3"),
    *("vit_W_patchP_clip_224", "deit3_W_patchP_224", "vit_W_plus_patchP_dinov3"),
)
#: How many networks with similar names are tried for a suggestion if the file does not tell more.
_SIMILAR = 3
#: Side of images in pixels for which a ResNet has a 3×3 stem.
_SMALL = 32
#: A block that was compiled, sharded or checkpointed alone.
_WRAPPED_BLOCK = re.compile(
    r"(\.\d+\.)((_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+"
)
#: Tensors that any filter of timm may leave out, since the network computes them.
_COMPUTED = re.compile(r"(.*\.)?(relative_position_index|attn_mask|attention_bias_idxs)")


class Foreign(NamedTuple):
    """The backbone in a file of other software.

    state: with timm's names. prefix: the path of the network in the file. notes: what a user should know of the choices
    that were made.
    """

    config: NetworkConfig
    preparation: Preparation
    state: dict[str, Tensor]
    prefix: str
    notes: tuple[str, ...] = ()


class Asked(NamedTuple):
    """A network as the user names it: FILE#NETWORK, FILE#NETWORK.TAG, FILE#NETWORK:PART or FILE#NETWORK:padding1."""

    where: str
    name: str | None = None
    part: str | None = None
    padding: int | None = None

    @classmethod
    def of(cls, where: str, text: str | None) -> Asked:
        """What the user wrote after #. Raises UserError for a network that timm does not have."""
        name, *words = (text or "").split(":")
        paddings = [_PADDINGS[word] for word in words if word in _PADDINGS]
        others = [word.rstrip(".") for word in words if word not in _PADDINGS]
        plain = name.partition(".")[0]
        unknown = plain != name and name not in timm.list_pretrained()
        if name and (plain not in timm.list_models() or unknown):
            remedy = nearest(name, timm.list_models())
            raise UserError(f"{where}#{name}: timm has no network '{name}'; {remedy}")
        if len(others) > 1 or (words and not name):
            raise UserError(f"{where}#{text}: write FILE#NETWORK or FILE#NETWORK:PART")
        return cls(where, name or None, next(iter(others), None), next(iter(paddings), None))

    @property
    def plain(self) -> str | None:
        """The network without the tag of its weights."""
        return None if self.name is None else self.name.partition(".")[0]


def foreign_state(
    weights: Weights,
    name: str | None = None,
    described: NetworkConfig | None = None,
    preparation: Preparation | None = None,
) -> Foreign:
    """The backbone in a file of other software.

    name: what the user wrote after FILE#, if key names are not enough. described, preparation: by a config.json.
    Otherwise images are prepared as the file's own normalisation or the published code of its software says, by timm's
    configuration for named networks and EfficientNets, or by default values. Raises UserError if the file does not
    have all tensors of the network, or has others.
    """
    asked = Asked.of(weights.where, name)
    weights = replace(weights, state=_plain(weights.state))
    if not weights.state:
        raise UserError(f"{asked.where}: has no tensors")
    if asked.plain is not None:
        config = NetworkConfig(name=asked.plain)
    elif described is not None:
        config = described
    else:
        return _recognised(weights, asked, preparation)
    weights = _without_chunks(weights, config)
    found = parts.find(weights, backbones.outline(config).state_dict())
    return _fitted(weights, asked, config, found, preparation)


def _plain(state: State) -> dict[str, Tensor]:
    """A state without the wrappers of single blocks, and without tensors that have no values.

    transformers writes 0 registers as such a tensor.
    """
    filled = {key: value for key, value in state.items() if value.numel()}
    plain = {_WRAPPED_BLOCK.sub(r"\1", key): value for key, value in filled.items()}
    # a file that has a block twice is refused later
    return plain if len(plain) == len(filled) else filled


def _without_chunks(weights: Weights, config: NetworkConfig) -> Weights:
    """The file with blocks.7 for blocks.1.7: DINOv2 trains blocks in chunks."""
    chunk = re.compile(r"\bblocks\.\d+\.(\d+\.)")
    if any(chunk.match(key) for key in backbones.outline(config).state_dict()):
        return weights
    state = {chunk.sub(r"blocks.\1", key): value for key, value in weights.state.items()}
    return replace(weights, state=state)


def _recognised(weights: Weights, asked: Asked, preparation: Preparation | None) -> Foreign:
    """The backbone of a file that nobody named: a ResNet or an EfficientNet-Lite, by the shapes of convolutions."""
    for family, known in NETWORKS.items():
        found = parts.find(weights, backbones.outline(NetworkConfig(name=known[0])).state_dict())
        if not found or not _has_stem(found[0], family):
            continue
        part = found[0]
        with contextlib.suppress(UserError):  # which is raised again below, with the network's name
            part, _ = parts.choose(found, None, asked.where, known[0])
        layout = LAYOUTS[part.layout]
        for candidate in known:
            own = backbones.outline(NetworkConfig(name=candidate)).state_dict()
            state = layouts.renamed(layout, part.state, own)
            given = _convolutions(state)
            wanted = _convolutions(own)
            if given.keys() == wanted.keys() and _alike(given, wanted):
                config = NetworkConfig(name=candidate)
                return _fitted(weights, asked, config, found, preparation)
            if len(wanted.items() ^ given.items()) <= 0.2 * len(wanted):
                # a few tensors are missing or renamed
                problem = misfit(own, state)
                raise UserError(f"{asked.where}: almost a {candidate}, but {problem}")
        number = len(_convolutions(part.state))
        problem = f"unknown {family} of {number} convolutions; known: {', '.join(known)}"
        others = "give the safetensors file of a run, which describes its network, or python:MODULE:CALLABLE"
        raise UserError(f"{asked.where}: {problem}; {others}; {_remedy(weights, asked)}")
    head = re.compile(layouts.HEADS)
    if all(any(map(head.fullmatch, key.split("."))) for key in weights.state):
        problem = f"has only a head ({some(weights.state)})"
        raise UserError(f"{asked.where}: {problem}; give a file with the whole network")
    problem = f"no network is recognised by these key names ({some(weights.state)})"
    raise UserError(f"{asked.where}: {problem}; {_remedy(weights, asked)}")


def _has_stem(part: Part, family: str) -> bool:
    own = ["conv1.weight" if family == "ResNet" else "conv_stem.weight"]
    stem = part.state.get(layouts.names(LAYOUTS[part.layout], own)[own[0]])
    return stem is not None and stem.ndim == 4


def _alike(given: dict[str, torch.Size], wanted: dict[str, torch.Size]) -> bool:
    """True if all shapes are equal, except for the kernel of a ResNet's stem."""
    return all(
        shape == wanted[name] or (name == "conv1.weight" and shape[:2] == wanted[name][:2])
        for name, shape in given.items()
    )


def _convolutions(state: State) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items() if value.ndim == 4}


def _fitted(
    weights: Weights,
    asked: Asked,
    config: NetworkConfig,
    found: list[Part],
    preparation: Preparation | None,
) -> Foreign:
    """The chosen network of a file with all its tensors. Raises UserError."""
    where = asked.where
    if not found:  # timm may know the layout
        found = [Part("plain", "", parts.without_wrappers(weights.state))]
    part, notes = parts.choose(found, asked.part, where, config.name)
    layout = LAYOUTS[part.layout]
    if layout.family not in (None, _family(config.name)):
        known = ", ".join(NETWORKS[str(layout.family)])
        raise UserError(f"{where}#{config.name}: the network must be one of {known}")
    if asked.part is None and (unknown := parts.unknown_beside(weights, part, found)):
        remedy = f"if its features do not need them, name the network's part: {where}#{config.name}:{part.prefix.rstrip('.')}"
        raise UserError(f"{where}: unknown tensors beside the network: {some(unknown)}; {remedy}")
    weights.check(part.state)
    config = _of_file(config, part, weights, asked, notes)
    outline = backbones.outline(config)
    state = converted(part, outline, config.name)
    if problem := misfit(outline.state_dict(), own_branch(state, outline.state_dict())):
        remedy = _remedy(weights, asked)
        raise UserError(f"{where}: not the state of {config.name}: {problem}; {remedy}")
    if preparation is None:
        preparation = _preparation(weights, asked, config, part)
    preparation = _of_size(preparation, outline)
    if own := parts.normaliser(weights):
        origin = "the file's own normalisation"
        origins = {**preparation.origins, "mean": origin, "std": origin}
        mean, std = own
        preparation = replace(preparation, mean=mean, std=std, origins=origins)
    return Foreign(config, preparation, state, part.prefix, tuple(notes))


def _family(name: str) -> str | None:
    return next((family for family, known in NETWORKS.items() if name in known), None)


def converted(part: Part, outline: nn.Module, name: str) -> dict[str, Tensor]:
    """The tensors of a part with timm's names and in timm's shapes, without what does not belong to the network.

    name: of the network, whose own converter in timm is used where it has one.
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
        state.setdefault("mask_token", torch.zeros(1))  # by which timm recognises DINOv2
    before = state.get("patch_embed.proj.weight")
    state = _by_timm(state, outline, name)
    if before is not None and before.ndim == 4 and "patch_embed.proj.weight" in state:
        state["patch_embed.proj.weight"] = before  # timm would resample it to another patch size
    return {
        key: value
        for key, value in state.items()
        if key in own or not (re.match(layout.leftovers, key) or _COMPUTED.fullmatch(key))
    }


def _by_timm(state: dict[str, Tensor], outline: nn.Module, name: str) -> dict[str, Tensor]:
    """A state as timm's own converter of this network returns it; unchanged if there is none, or if it fails."""
    module = sys.modules[timm.models.model_entrypoint(name).__module__]
    convert: Any = getattr(module, "checkpoint_filter_fn", None)
    if convert is None:
        return state
    with _silence():
        try:
            found: dict[str, Tensor] = convert(dict(state), outline)
        except Exception:  # a layout that it does not know; what is missing is reported later
            return state
    return found


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what timm's converters print and log from the user's terminal."""
    logger = logging.getLogger("timm")
    before = logger.disabled
    logger.disabled = True
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.disabled = before


# -- what a file says of its network -----------------------------------------------------------------------------------


def _of_file(
    config: NetworkConfig, part: Part, weights: Weights, asked: Asked, notes: list[str]
) -> NetworkConfig:
    """The network with what the file says of it beyond its name; each choice that is not sure adds a note."""
    config = _stem(config, part, weights, asked, notes)
    state = part.state
    if "dinov3" in config.name:
        config = _with_biases(config, state, asked)
    outline: Any = backbones.outline(config)
    options = dict(config.options)
    if "fc_norm.weight" in state and "norm.weight" not in state:
        options.setdefault("global_pool", "avg")
    published = "storage_tokens" in state or bool(LAYOUTS[part.layout].renames)
    if "dinov3" in config.name and published and "global_pool" not in options:
        options["global_pool"] = "token"
        notes.append("features are class tokens, as published; timm averages patches")
    of_moco = part.has(re.compile("base_encoder|momentum_encoder"))
    if of_moco and config.name == "vit_small_patch16_224" and "num_heads" not in options:
        options["num_heads"] = 12
        notes.append("the network has 12 heads of attention, as MoCo-v3's ViT-S; timm's has 6")
    if asked.name is not None and part.layout.startswith("ViT of transformers"):
        options.setdefault("norm_eps", 1e-12)  # by default there, and of nearly all published ones
    side = _stored_side(part, outline)
    if side is not None and "img_size" not in options:
        options["img_size"] = side
    return config.model_copy(update={"options": options})


def _stem(
    config: NetworkConfig, part: Part, weights: Weights, asked: Asked, notes: list[str]
) -> NetworkConfig:
    """A ResNet with the 3×3 stem that the file has. solo-learn pads it by 2 pixels, everybody else by 1."""
    if config.name not in NETWORKS["ResNet"]:
        return config
    stem = part.state.get(layouts.names(LAYOUTS[part.layout], ["conv1.weight"])["conv1.weight"])
    if stem is None or stem.shape[2:] != (3, 3):
        return config
    parent = part.prefix.removesuffix("backbone.")
    siblings = (
        f"{parent}projector.",
        f"{parent}predictor.",
        f"{parent}momentum_",
        f"{parent}prototypes",
    )
    of_solo = (
        part.prefix.endswith("backbone.")
        and f"{parent}classifier.weight" in weights.state
        and any(key.startswith(siblings) for key in weights.state)
    )
    padding = asked.padding or (2 if of_solo else 1)
    if asked.padding is None:
        other = f"{asked.where}#{config.name}:padding{3 - padding}"
        whose = "as solo-learn's" if of_solo else "since the file does not say"
        notes.append(
            f"the 3×3 stem is padded by {padding}, {whose}; {other} pads it by {3 - padding}"
        )
    options = {"stem_padding": padding} if padding != 1 else {}
    return config.model_copy(update={"small_stem": True, "options": config.options | options})


def _with_biases(config: NetworkConfig, state: State, asked: Asked) -> NetworkConfig:
    """A DINOv3 network with biases of queries and values if the file has any.

    timm's converter would drop them from a network without. Raises UserError for biases of keys.
    """
    fused = {key: value for key, value in state.items() if key.endswith("attn.qkv.bias")}
    for key, value in fused.items():
        if f"{key}_mask" not in state and bool(value.chunk(3)[1].any()):
            problem = f"{key} has biases of keys, which no network of timm has"
            raise UserError(f"{asked.where}: {problem}")
    apart = any(key.endswith("attention.q_proj.bias") for key in state)
    # those of the larger published networks are all 0
    biases = (half for value in fused.values() for half in value.chunk(3)[::2])
    if not apart and not any(bool(half.any()) for half in biases):
        return config
    if config.name.endswith("_qkvb"):
        return config
    if f"{config.name}_qkvb" in timm.list_models():
        return config.model_copy(update={"name": f"{config.name}_qkvb"})
    return config.model_copy(update={"options": config.options | {"qkv_bias": True}})


def _stored_side(part: Part, outline: Any) -> int | None:
    """The side in pixels of square images that the file's position embeddings are for, if not the network's own."""
    own = getattr(outline, "pos_embed", None)
    patch = getattr(getattr(outline, "patch_embed", None), "patch_size", None)
    grid = getattr(getattr(outline, "patch_embed", None), "grid_size", None)
    if not isinstance(own, Tensor) or own.ndim != 3 or patch is None or grid is None:
        return None
    theirs = layouts.names(LAYOUTS[part.layout], ["pos_embed"])["pos_embed"]
    stored = part.state.get(theirs)
    if stored is None or stored.ndim not in (2, 3) or grid[0] != grid[1]:
        return None
    for prefix in (
        own.shape[1] - grid[0] * grid[1],
        1,
    ):  # DINOv2 with registers: a position of the class token
        count = stored.shape[-2] - prefix
        side = math.isqrt(max(count, 0))
        if side and side * side == count:
            return None if side == grid[0] else side * int(patch[0])
    return None


def _preparation(weights: Weights, asked: Asked, config: NetworkConfig, part: Part) -> Preparation:
    """How images are prepared, by the software that wrote the file."""
    published = layouts.published_for(weights.state)
    if published is None and (asked.name or _family(config.name) == "EfficientNet"):
        published = of_timm(asked.name or config.name)
    found = published or assumed()
    if config.small_stem:  # no published weights are for such small images
        found = replace(assumed(_SMALL), std=found.std)
    return found


def _of_size(preparation: Preparation, outline: Any) -> Preparation:
    """A preparation for a network of a fixed image size."""
    grid = getattr(outline, "patch_embed", None)
    size = getattr(grid, "img_size", None)
    if size is None or getattr(outline, "pos_embed", None) is None or size[0] == preparation.size:
        return preparation
    origins = {**preparation.origins, "size": "the network's position embeddings"}
    return replace(preparation, size=int(size[0]), origins=origins)


# -- suggestions -------------------------------------------------------------------------------------------------------


def _remedy(weights: Weights, asked: Asked) -> str:
    """What a user can do about a file that does not fit: a network that fits, if one is found."""
    for candidate in _candidates(weights, asked):
        if fits(weights, candidate if asked.part is None else f"{candidate}:{asked.part}"):
            return f"it fits {candidate}: give {asked.where}#{candidate}"
    if asked.name is None:
        return f"if timm has this network, name it: {asked.where}#NETWORK"
    return (
        f"name the network of timm that it was saved from: {asked.where}#NETWORK; if it was built "
        "with other options, give a function that returns it: python:FILE.py:CALLABLE"
    )


def fits(weights: Weights, name: str) -> bool:
    """True if a file loads as this network."""
    asked = Asked.of(weights.where, name)
    config = NetworkConfig(name=str(asked.plain))
    weights = _without_chunks(weights, config)
    try:
        own = backbones.outline(config).state_dict()
        part, _ = parts.choose(parts.find(weights, own), asked.part, asked.where, config.name)
        config = _of_file(config, part, weights, asked, [])
        outline = backbones.outline(config)
        state = converted(part, outline, config.name)
    except (UserError, IndexError):
        return False
    return not misfit(outline.state_dict(), own_branch(state, outline.state_dict()))


def _candidates(weights: Weights, asked: Asked) -> list[str]:
    """Networks of timm that a file may have been saved from, the likeliest first."""
    known = timm.list_models()
    found = list[str]()
    if any(key.endswith(("layer4.0.conv1.weight", "res5.0.conv1.weight")) for key in weights.state):
        found += NETWORKS["ResNet"][:5]
    for value in weights.state.values():
        if value.ndim == 4 and value.shape[1] == 3 and value.shape[0] in WIDTHS:
            word = WIDTHS[value.shape[0]]
            patch = str(value.shape[2])
            found += [name.replace("W", word).replace("P", patch) for name in _SUGGESTED]
            break
    if asked.plain is not None and not found:
        found += difflib.get_close_matches(asked.plain, known, _SIMILAR, 0.8)
    return [name for name in dict.fromkeys(found) if name in known and name != asked.plain]


def check_periods(network: nn.Module, weights: Weights) -> None:
    """Raise UserError if a file stores other periods of rotary positions than the network computes."""
    own = getattr(getattr(network, "rope", None), "periods", None)
    for key, value in weights.state.items():
        if not key.endswith("rope_embed.periods") or not isinstance(own, Tensor):
            continue
        # they may be stored with 8 bits of precision
        if value.shape != own.shape or not torch.allclose(value.float(), own.float(), rtol=0.01):
            raise UserError(f"{weights.where}: {key} are not the periods of this network of timm")
