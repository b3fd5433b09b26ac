"""Backbones in checkpoints of other software, recognised by key names and shapes (REFERENCE §2.5).

Tables list each layout's tensor names and preparation of images; `foreign_state` applies them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import timm
import torch
from torch import Tensor

from hexa.config import UserError, nearest, some
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.fitting import misfit
from hexa.nn.preparation import Preparation, assumed, of_timm, published

State = Mapping[str, Tensor]

#: Prefixes of the backbone's key names, longest first, and the method whose published code they identify. The last is
#: that of a plain torchvision or timm file.
PREFIXES: dict[str, str | None] = {
    "module.encoder_q.": "MoCo and PCL",
    "encoder_q.": None,
    "module.encoder.": "SimSiam",
    "encoder.": None,
    "module.backbone.": None,
    "backbone.": None,
    "module.": None,
    "": None,
}
#: The head in SwAV's and DeepCluster-v2's code, which normalises with another standard deviation of red (D22).
_SWAV_HEAD = "module.projection_head."
_SWAV = published("SwAV and DeepCluster-v2", std=(0.228, 0.224, 0.225))
#: A classifier or projection head beside the backbone; its tensors are dropped.
HEADS = ("fc.", "head.", "classifier.", "projection_head.", "prototypes.")
#: Networks that a plain ResNet state is compared with.
RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"),
    *("resnext50_32x4d", "resnext101_32x8d"),
)
#: Networks that a state with efficientnet_pytorch's names is compared with. It pads convolutions as TensorFlow does and
#: adds 1e-3 to variances in batch-norms; timm's networks without tf_ have the same tensors but do neither.
EFFICIENTNETS = tuple(f"tf_efficientnet_lite{number}" for number in range(5))

#: torchvision's and Detectron2's names of parts of a ResNet. Detectron2 prefixes tensors outside the stages with stem.
_DETECTRON2 = (
    *((f"layer{stage}.", f"res{stage + 1}.") for stage in range(1, 5)),
    *((f"bn{number}.", f"conv{number}.norm.") for number in range(1, 4)),
    *(("downsample.1.", "shortcut.norm."), ("downsample.0.", "shortcut.")),
)
#: lightly numbers the children of a ResNet: conv1, bn1, ReLU and pooling, then the stages.
_LIGHTLY = {0: "conv1", 1: "bn1", 4: "layer1", 5: "layer2", 6: "layer3", 7: "layer4"}
#: efficientnet_pytorch's and timm's names of parts of an EfficientNet: outside the blocks, and in blocks with and
#: without an expansion.
_AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
_EXPANDED = {
    **{"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"},
    **{"_project_conv": "conv_pwl", "_bn2": "bn3"},
}
_NOT_EXPANDED = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


class Foreign(NamedTuple):
    """A state dict in another layout: its network, preparation of images, renamed tensors, and their former prefix."""

    config: NetworkConfig
    preparation: Preparation
    state: dict[str, Tensor]
    prefix: str


def foreign_state(state: State, where: str, name: str | None = None) -> Foreign:
    """The backbone in a state dict of another layout.

    MoCo, PCL (`module.encoder_q.*`), SimSiam (`module.encoder.*`), SwAV and DeepCluster-v2 (`module.*`, prototypes),
    solo-learn (`backbone.*`), lightly (`backbone.0.*`), VISSL, Detectron2, EfficientNet-Lite, torchvision and timm are
    recognised by their key names. name: the timm network NAME or weights NAME.TAG, if key names are not enough. Images
    are prepared as published for MoCo, PCL, SimSiam, SwAV and DeepCluster-v2; by timm's configuration for named
    networks and EfficientNets; otherwise by default values. Raises UserError if no known network has these tensors.
    """
    if any(key.endswith("_conv_stem.weight") for key in state):
        return _efficientnet(state, where, name)
    swav = any(key.startswith(_SWAV_HEAD) for key in state)
    state = _renamed(state)
    prefix = next((p for p in PREFIXES if f"{p}conv1.weight" in state), None)
    if prefix is None:
        prefix = next(p for p in PREFIXES if any(key.startswith(p) for key in state))
    every = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    kept = {key: value for key, value in every.items() if not key.startswith(HEADS)}
    if not kept:
        raise UserError(f"{where}: has only a head ({some(every)}); give a file with the whole network")
    stem = kept.get("conv1.weight")
    small = stem is not None and stem.shape[2:] == (3, 3)
    config = _recognised(kept, where) if name is None else _named(name, small, where)
    if name is not None:  # a head's name in one network is a normalisation's in another
        kept |= {key: every[key] for key in backbones.outline(config).state_dict() if key in every}
    whose = PREFIXES[prefix]
    preparation = _SWAV if swav else published(whose) if whose else assumed() if name is None else of_timm(name)
    if config.small_stem:  # no published weights are for such small images
        preparation = replace(assumed(32), std=preparation.std)
    return Foreign(config, preparation, kept, prefix)


def _named(name: str, small: bool, where: str) -> NetworkConfig:
    """The timm network that a user named."""
    plain = name.partition(".")[0]
    if plain not in timm.list_models() or (plain != name and name not in timm.list_pretrained()):
        raise UserError(f"{where}#{name}: timm has no network '{name}'; {nearest(name, timm.list_models())}")
    return NetworkConfig(name=plain, small_stem=small and plain in RESNETS)


def _recognised(state: State, where: str) -> NetworkConfig:
    """The ResNet whose convolutions have these names and shapes."""
    remedy = f"if timm has this network, name it: {where}#NETWORK"
    stem = state.get("conv1.weight")
    if stem is None or stem.ndim != 4:
        raise UserError(f"{where}: not a ResNet by its key names ({some(state)}); {remedy}")
    small = stem.shape[2:] == (3, 3)
    given = _convolutions(state).items()
    for name in RESNETS:
        config = NetworkConfig(name=name, small_stem=small)
        own = backbones.outline(config).state_dict()
        wanted = _convolutions(own).items()
        if wanted == given:
            return config
        if len(wanted ^ given) <= 0.2 * len(wanted):  # a few tensors are missing or renamed
            raise UserError(f"{where}: almost a {name}, but {misfit(own, state)}")
    depths = [len({key.split(".")[1] for key in state if key.startswith(f"layer{i}.")}) for i in range(1, 5)]
    raise UserError(
        f"{where}: unknown ResNet with {depths} blocks per stage and {stem.shape[0]} channels in its stem; known: "
        f"{', '.join(RESNETS)}; give the safetensors file of a run, which describes its network, or {remedy}"
    )


def _convolutions(state: State) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in state.items() if value.ndim == 4}


# -- names ------------------------------------------------------------------------------------------------------------


def to_detectron2(name: str) -> str:
    """Detectron2's name of a ResNet's tensor: layer1.0.bn2.bias -> res2.0.conv2.norm.bias, conv1 -> stem.conv1."""
    for own, theirs in _DETECTRON2:
        name = name.replace(own, theirs)
    return name if name.startswith("res") else f"stem.{name}"


def of_detectron2(name: str) -> str:
    """The inverse of `to_detectron2`."""
    name = name.removeprefix("backbone.bottom_up.").removeprefix("backbone.").removeprefix("stem.")
    for own, theirs in _DETECTRON2:
        name = name.replace(theirs, own)
    return name


def _renamed(state: State) -> dict[str, Tensor]:
    """The state with torchvision's names of a ResNet in place of those of VISSL (trunk._feature_blocks.conv1 …),
    Detectron2 (stem.conv1, res2.0.conv1.norm …) or lightly (backbone.0 …); other names are kept.
    """
    if any("_feature_blocks." in key for key in state):
        return {key.split("_feature_blocks.")[1]: value for key, value in state.items() if "_feature_blocks." in key}
    if any(key.endswith("stem.conv1.weight") for key in state):
        ours = (key for key in state if re.search(r"(^|\.)(stem|res\d)\.", key))
        return {of_detectron2(key): state[key] for key in ours}
    return _unnumbered(state)


def _unnumbered(state: State) -> dict[str, Tensor]:
    """Replace lightly's numbers by names, keeping the prefix. Raises UserError for lightly's own small ResNet."""
    stages = (re.match(r"(.*?)(\d+)\.\d+\.conv1\.weight$", key) for key in state)
    numbered = [(match[1], int(match[2])) for match in stages if match and f"{match[1]}0.weight" in state]
    if not numbered:
        return dict(state)
    prefix = numbered[0][0]  # other networks (momentum twins) come later in the file
    if _LIGHTLY.get(min(number for other, number in numbered if other == prefix)) != "layer1":
        raise UserError(
            "lightly's small ResNet, a Sequential without a ReLU after the first batch-norm, is not supported; give it "
            "as python:MODULE:CALLABLE"
        )
    renamed = {}
    for key, value in state.items():
        number, _, rest = key.removeprefix(prefix).partition(".")
        known = key.startswith(prefix) and number.isdecimal() and int(number) in _LIGHTLY
        renamed[f"{prefix}{_LIGHTLY[int(number)]}.{rest}" if known else key] = value
    return renamed


def _efficientnet(state: State, where: str, name: str | None) -> Foreign:
    """`foreign_state` for a state with efficientnet_pytorch's names."""
    if name not in (None, *EFFICIENTNETS):
        raise UserError(f"{where}#{name}: the network must be one of {', '.join(EFFICIENTNETS)}")
    for candidate in EFFICIENTNETS if name is None else [name]:
        config = NetworkConfig(name=candidate)
        own = backbones.outline(config).state_dict()
        blocks = dict.fromkeys(".".join(key.split(".")[:3]) for key in own if key.startswith("blocks."))
        kept = _of_efficientnet(state, list(blocks))
        if name is not None or _convolutions(kept) == _convolutions(own):
            return Foreign(config, of_timm(candidate), kept, "")
    raise UserError(f"{where}: unknown EfficientNet; known: {', '.join(EFFICIENTNETS)}")


def _of_efficientnet(state: State, blocks: Sequence[str]) -> dict[str, Tensor]:
    """The state with timm's names, without the classifier. blocks: timm's names of the blocks in order, blocks.0.0 …

    Unknown names, and blocks beyond the last, are kept.
    """
    prefix = next(key for key in state if key.endswith("_conv_stem.weight")).removesuffix("_conv_stem.weight")
    renamed = {}
    for key, value in state.items():
        name = key.removeprefix(prefix)
        first, _, rest = name.partition(".")
        if first == "_fc" or not key.startswith(prefix):
            continue
        if first in _AROUND:
            name = f"{_AROUND[first]}.{rest}"
        elif first == "_blocks":
            number, _, inner = rest.partition(".")
            part, _, kind = inner.partition(".")
            parts = _EXPANDED if f"{prefix}_blocks.{number}._expand_conv.weight" in state else _NOT_EXPANDED
            if number.isdecimal() and int(number) < len(blocks) and part in parts:
                name = f"{blocks[int(number)]}.{parts[part]}.{kind}"
        renamed[name] = value
    return renamed
