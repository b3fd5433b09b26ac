"""Backbones in files of other software, recognised by key names and shapes.

`LAYOUTS` describes each layout; `foreign_state` finds the layout of a state dict and gives its tensors plain names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import timm
import torch
from torch import Tensor

from hexa.config import UserError, nearest, some
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.weights.files import State
from hexa.weights.fitting import misfit
from hexa.weights.preparation import Preparation, assumed, of_timm, published

_WIDER = ("wide_resnet50_2", "wide_resnet101_2", "resnext50_32x4d", "resnext101_32x8d")
#: Networks by family, with which a state is compared unless the user names its network.
NETWORKS = {
    "ResNet": (*(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)), *_WIDER),
    # efficientnet_pytorch pads convolutions as TensorFlow does and adds 1e-3 to variances in batch-norms; timm's
    # networks without tf_ have the same tensors but do neither
    "EfficientNet": tuple(f"tf_efficientnet_lite{number}" for number in range(5)),
}


class Layout(NamedTuple):
    """How some software names a backbone's tensors, and how it prepares images.

    A file has the layout if one of its keys is `prefix` + `mark` and another begins with the same prefix + `also`.
    The tensors under that prefix are the backbone's, except those whose names begin with `head`.
    """

    prefix: str
    """A regular expression, as are `mark`, `head` and the patterns of `renames`."""
    mark: str | None = None
    """None: the name of the network's first tensor."""
    also: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    """(pattern, replacement) pairs that turn plain names into those of the layout, in this order. {} stands for the
    number of different matches before this one."""
    head: str = r"(fc|head|classifier|projection_head|prototypes)\."
    family: str = "ResNet"
    preparation: Preparation | None = None
    """As published; None: by timm's configuration for named networks and EfficientNets, otherwise by default."""


#: The layouts by the software that writes them; the first that a file has is chosen.
LAYOUTS = {
    "efficientnet_pytorch": Layout(
        prefix=r".*",
        mark=r"_conv_stem\.weight",
        renames=(
            *((r"^conv_", "_conv_"), (r"^bn1\.", "_bn0."), (r"^bn2\.", "_bn1.")),
            # blocks are numbered without stages; the first has no expansion
            *((r"^blocks\.\d+\.\d+\.", "_blocks.{}."), (r"\.conv_dw\.", "._depthwise_conv.")),
            *(
                (r"^_blocks\.0\.bn", "_blocks.0._bn"),
                (r"^_blocks\.0\.conv_pw\.", "_blocks.0._project_conv."),
            ),
            *((r"\.conv_pw\.", "._expand_conv."), (r"\.conv_pwl\.", "._project_conv.")),
            *((rf"\.bn{number}\.", f"._bn{number - 1}.") for number in range(1, 4)),
        ),
        head=r"_fc\.",
        family="EfficientNet",
    ),
    "VISSL": Layout(prefix=r".*_feature_blocks\."),
    "Detectron2": Layout(
        prefix=r"(.*\.)?",
        mark=r"stem\.conv1\.norm\.weight",
        renames=(
            *((rf"^layer{stage}\.", f"res{stage + 1}.") for stage in range(1, 5)),
            *((r"\bbn(\d)\.", r"conv\1.norm."), (r"downsample\.1\.", "shortcut.norm.")),
            *((r"downsample\.0\.", "shortcut."), (r"^(?!res)", "stem.")),
        ),
        head=r"(?!(stem|res\d)\.)",  # whatever is outside the ResNet
    ),
    # the children of torchvision's ResNet by number: conv1, bn1, ReLU, pooling, stages
    "lightly": Layout(
        prefix=r"(.*\.)?",
        mark=r"4\.\d+\.conv1\.weight",
        also="0.weight",
        renames=(
            *((rf"^layer{n}\.", f"{n + 3}.") for n in range(1, 5)),
            (r"^conv1\.", "0."),
            (r"^bn1\.", "1."),
        ),
    ),
    # their code normalises with another standard deviation of red (D22)
    "SwAV and DeepCluster-v2": Layout(
        prefix=r"module\.",
        mark=r"projection_head\..*",
        preparation=published("SwAV and DeepCluster-v2", std=(0.228, 0.224, 0.225)),
    ),
    "MoCo and PCL": Layout(prefix=r"module\.encoder_q\.", preparation=published("MoCo and PCL")),
    "SimSiam": Layout(prefix=r"module\.encoder\.", preparation=published("SimSiam")),
    "torchvision, timm, solo-learn and others": Layout(
        prefix=r"(module\.)?((encoder_q|encoder|backbone)\.)?"
    ),
}


class Foreign(NamedTuple):
    """A state dict in another layout: its network, preparation of images, renamed tensors, and their former prefix."""

    config: NetworkConfig
    preparation: Preparation
    state: dict[str, Tensor]
    prefix: str


def foreign_state(state: State, where: str, name: str | None = None) -> Foreign:
    """The backbone in a state dict of one of `LAYOUTS`.

    name: the timm network NAME or weights NAME.TAG, if key names are not enough. Images are prepared as the layout's
    software publishes; by timm's configuration for named networks and EfficientNets; otherwise by default values.
    Raises UserError if no known network has these tensors.
    """
    if not state:
        raise UserError(f"{where}: has no tensors")
    plain = None if name is None else _timms(name, where)
    first = (
        "conv1.weight"
        if plain is None
        else next(iter(backbones.outline(NetworkConfig(name=plain)).state_dict()))
    )
    layout, prefix = _layout(state, first)
    known = NETWORKS[layout.family]
    if plain is not None and plain not in known and layout.renames:
        raise UserError(f"{where}#{name}: the network must be one of {', '.join(known)}")
    every = {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }
    if all(re.match(layout.head, key) for key in every):
        raise UserError(
            f"{where}: has only a head ({some(every)}); give a file with the whole network"
        )
    stem = every.get(names(layout, ["conv1.weight"])["conv1.weight"])
    small = stem is not None and stem.shape[2:] == (3, 3)
    remedy = f"if timm has this network, name it: {where}#NETWORK"
    if plain is None and layout.family == "ResNet" and (stem is None or stem.ndim != 4):
        raise UserError(
            f"{where}: no network is recognised by these key names ({some(every)}); {remedy}"
        )
    for candidate in known if plain is None else [plain]:
        config = NetworkConfig(name=candidate, small_stem=small and candidate in NETWORKS["ResNet"])
        own = backbones.outline(config).state_dict()
        of_theirs = {theirs: ours for ours, theirs in names(layout, own).items()}
        # a head's name in one network is a normalisation's in another
        kept = {
            of_theirs.get(k, k): v
            for k, v in every.items()
            if k in of_theirs or not re.match(layout.head, k)
        }
        given, wanted = _convolutions(kept).items(), _convolutions(own).items()
        if plain is not None or wanted == given:
            by_timm = name or (candidate if layout.family != "ResNet" else None)
            preparation = layout.preparation or (of_timm(by_timm) if by_timm else assumed())
            if config.small_stem:  # no published weights are for such small images
                preparation = replace(assumed(32), std=preparation.std)
            return Foreign(config, preparation, kept, prefix)
        if len(wanted ^ given) <= 0.2 * len(wanted):  # a few tensors are missing or renamed
            raise UserError(f"{where}: almost a {candidate}, but {misfit(own, kept)}")
    problem = f"unknown {layout.family} of {len(_convolutions(every))} convolutions; known: {', '.join(known)}"
    others = (
        "give the safetensors file of a run, which describes its network, or python:MODULE:CALLABLE"
    )
    raise UserError(f"{where}: {problem}; {others}; {remedy}")


def _timms(name: str, where: str) -> str:
    """The timm network that a user named, without the tag of its weights."""
    plain = name.partition(".")[0]
    if plain not in timm.list_models() or (plain != name and name not in timm.list_pretrained()):
        raise UserError(
            f"{where}#{name}: timm has no network '{name}'; {nearest(name, timm.list_models())}"
        )
    return plain


def _layout(state: State, first: str) -> tuple[Layout, str]:
    """The layout of a state, and the prefix of its backbone. first: the name of the network's first tensor."""
    for mark in (re.escape(first), ".*"):  # any tensor if that one is missing
        for layout in LAYOUTS.values():
            for found in filter(
                None, map(re.compile(f"({layout.prefix}){layout.mark or mark}").fullmatch, state)
            ):
                if any(key.startswith(found[1] + layout.also) for key in state):
                    return layout, found[1]
    raise AssertionError("the last layout has any key")


def names(layout: Layout, own: Iterable[str]) -> dict[str, str]:
    """{plain name: the layout's name} of a network's tensors."""
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


def _convolutions(state: State) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in state.items() if value.ndim == 4}
