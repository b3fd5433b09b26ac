"""Whose checkpoint is it? Finding a backbone among the tensors of a file, by key names and shapes (REFERENCE §2.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import timm
import torch
from torch import Tensor, nn

from hexa.config import UserError, nearest
from hexa.nn import backbones, key_names
from hexa.nn.backbones import NetworkConfig
from hexa.nn.preparation import Preparation, assumed, of_timm, published

State = Mapping[str, Tensor]

#: What precedes the backbone's key names elsewhere, longest first. The last is a plain torchvision or timm file.
PREFIXES = (
    *("module.encoder_q.", "encoder_q.", "module.encoder.", "encoder.", "module.backbone.", "backbone."),
    *("module.", ""),
)
#: The head of SwAV's and DeepCluster-v2's code, which normalises with another deviation of red (D22).
_SWAV_HEAD = "module.projection_head."
_SWAV = published("SwAV and DeepCluster-v2", std=(0.228, 0.224, 0.225))
#: Codes whose files are known by their prefix, and with them how they prepare images.
_PUBLISHED = {"module.encoder_q.": published("MoCo and PCL"), "module.encoder.": published("SimSiam")}
#: A classifier or projection head beside the backbone; its tensors are dropped.
HEADS = ("fc.", "head.", "classifier.", "projection_head.", "prototypes.")
#: What weights are kept in.
_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Momentum twins of the encoder that is meant, by words of their names: they hold the same keys.
TWINS = ("key", "encoder_k", "momentum", "teacher", "target", "ema")
#: Networks that a plain ResNet state is compared with.
RESNETS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "resnext50_32x4d",
    "resnext101_32x8d",
)

#: Networks that a state with efficientnet_pytorch's names is compared with. Its convolutions pad as TensorFlow's do and
#: its batch-norms add 1e-3 to the variance; timm's networks without tf_ have the same tensors and do neither.
EFFICIENTNETS = tuple(f"tf_efficientnet_lite{number}" for number in range(5))


class Foreign(NamedTuple):
    """What a state dict in somebody's layout is: its network, how to feed it, its tensors, and the prefix they had."""

    config: NetworkConfig
    preparation: Preparation
    state: dict[str, Tensor]
    prefix: str


def foreign_state(state: State, where: str, name: str | None = None) -> Foreign:
    """The backbone in a state dict of somebody's layout.

    MoCo, PCL (`module.encoder_q.*`), SimSiam (`module.encoder.*`), SwAV and DeepCluster-v2 (`module.*`, prototypes),
    solo-learn (`backbone.*`), lightly (`backbone.0.*`), VISSL, Detectron2, EfficientNet-Lite, torchvision and timm are
    recognised by their key names. name: the timm network, or one of its weights NAME.TAG, where the names alone don't
    tell it. Images are prepared as published with MoCo, PCL, SimSiam, SwAV and DeepCluster-v2; by timm's configuration
    of a named network and of EfficientNets; else as is assumed. Raises UserError if no known network has these tensors.
    """
    if key_names.is_efficientnet(state):
        return _efficientnet(state, where, name)
    swav = any(key.startswith(_SWAV_HEAD) for key in state)
    state = key_names.plain(state)
    prefix = next((p for p in PREFIXES if f"{p}conv1.weight" in state), None)
    if prefix is None:
        prefix = next(p for p in PREFIXES if any(key.startswith(p) for key in state))
    every = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    kept = {key: value for key, value in every.items() if not key.startswith(HEADS)}
    if not kept:
        raise UserError(f"{where}: holds a head alone ({_listed(list(every))}); give the file with the whole network")
    stem = kept.get("conv1.weight")
    small = stem is not None and stem.shape[2:] == (3, 3)
    config = recognise(kept, where) if name is None else _named(name, small, where)
    if name is not None:  # what is called a head in one network is a normalisation in another
        kept |= {key: every[key] for key in backbones.outline(config).state_dict() if key in every}
    preparation = _SWAV if swav else _PUBLISHED.get(prefix)
    preparation = preparation or (assumed() if name is None else of_timm(name))
    if config.small_stem:  # nothing published is of images this small
        preparation = replace(assumed(32), std=preparation.std)
    return Foreign(config, preparation, kept, prefix)


def _named(name: str, small: bool, where: str) -> NetworkConfig:
    """The timm network that a user named."""
    plain = name.partition(".")[0]
    if plain not in timm.list_models() or (plain != name and name not in timm.list_pretrained()):
        raise UserError(f"{where}#{name}: timm has no such network; {nearest(name, timm.list_models())}")
    return NetworkConfig(name=plain, small_stem=small and plain in RESNETS)


def _efficientnet(state: State, where: str, name: str | None) -> Foreign:
    """As `foreign_state`, of a state with efficientnet_pytorch's names."""
    if name not in (None, *EFFICIENTNETS):
        raise UserError(f"{where}#{name}: an EfficientNet with these names is one of {', '.join(EFFICIENTNETS)}")
    for candidate in EFFICIENTNETS if name is None else [name]:
        config = NetworkConfig(name=candidate)
        own = backbones.outline(config).state_dict()
        blocks = dict.fromkeys(".".join(key.split(".")[:3]) for key in own if key.startswith("blocks."))
        kept = key_names.of_efficientnet(state, list(blocks))
        if name is not None or _convolutions(kept) == _convolutions(own):
            return Foreign(config, of_timm(candidate), kept, "")
    raise UserError(f"{where}: an EfficientNet that is none of the known ({', '.join(EFFICIENTNETS)})")


def _convolutions(state: State) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in state.items() if value.ndim == 4}


def recognise(state: State, where: str) -> NetworkConfig:
    """The ResNet whose convolutions have these names and shapes."""
    remedy = f"if timm has this network, name it: {where}#NETWORK"
    stem = state.get("conv1.weight")
    if stem is None or stem.ndim != 4:
        some = ", ".join(list(state)[:4])
        raise UserError(f"{where}: no ResNet by its key names ({some} …); {remedy}")
    small = stem.shape[2:] == (3, 3)
    given = _convolutions(state).items()
    for name in RESNETS:
        config = NetworkConfig(name=name, small_stem=small)
        own = backbones.outline(config).state_dict()
        wanted = _convolutions(own).items()
        if wanted == given:
            return config
        if len(wanted ^ given) <= 0.2 * len(wanted):  # a tensor or two are lost or renamed
            raise UserError(f"{where}: nearly a {name}, but {_misfit(own, state)}")
    depths = [len({key.split(".")[1] for key in state if key.startswith(f"layer{i}.")}) for i in range(1, 5)]
    raise UserError(
        f"{where}: a ResNet of {depths} blocks a stage and {stem.shape[0]} channels in its stem is none of the known "
        f"({', '.join(RESNETS)}); give the safetensors file of a run, which says how to build it, or {remedy}"
    )


def find_backbone(state: State, network: nn.Module, where: str) -> tuple[dict[str, Tensor], str]:
    """The tensors of `network` inside the state of a method that contains it, under the plain key names, and whose.

    The second is the name of the encoder that the method keeps it in: query, encoder …

    Every prefix under which all keys of the network lie is a candidate; of several, the one that is no momentum twin.
    But of a student and its teacher, the teacher is what was trained for (DINO).
    """
    own = network.state_dict()
    probe = next(iter(own))
    prefixes = [key.removesuffix(probe) for key in state if key == probe or key.endswith("." + probe)]
    whole = [prefix for prefix in prefixes if all(prefix + key in state for key in own)]
    trained = [prefix for prefix in whole if not any(word in prefix.split(".") for word in TWINS)]
    if not whole:
        raise UserError(f"{where}: holds no network as config.yaml describes it; the run has been changed since")
    taught = [prefix for prefix in whole if "teacher" in prefix.split(".")]
    if taught and any("student" in prefix.split(".") for prefix in whole):
        trained = taught
    chosen = (trained or whole)[0]
    return {key.removeprefix(chosen): value for key, value in state.items() if key.startswith(chosen)}, owner(chosen)


def owner(path: str) -> str:
    """The encoder that a path such as `contrast.query.backbone` goes through last: query."""
    parts = path.rstrip(".").split(".")
    return parts[-2] if len(parts) > 1 else "encoder"


def filled(
    config: NetworkConfig, state: State, where: str, check: Callable[[State], None], remedy: str = ""
) -> nn.Module:
    """The network with a backbone's state; every key must match, and all that don't are listed in the UserError.

    What may differ: a further batch-norm set (`bn1.aux.weight` beside `bn1.weight`) is dropped, and the counter
    `num_batches_tracked`, which old files lack, stays 0. check: raises for tensors that can't be used.
    remedy: what to do about tensors that don't match.
    """
    outline = nn.Flatten() if config.name == "pixels" else outlined(config, where)
    own = outline.state_dict()
    plain = {key: value for key, value in state.items() if not _is_further_branch(key, own)}
    misfit = _misfit(own, plain)
    if misfit:
        raise UserError(f"{where}: not the state of this network: {misfit}{remedy and f'; {remedy}'}")
    check(plain)
    learnt = {name for name, _ in outline.named_parameters()}
    for key, value in plain.items():
        if own[key].is_floating_point() and value.dtype not in _REAL:
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{where}: {key} holds {kind}; weights are real numbers of 16 bits or more")
        # buffers of masks may be infinite
        if (key in learnt or key.endswith(("running_mean", "running_var"))) and not value.isfinite().all():
            raise UserError(f"{where}: {key} holds values that are not finite; take an earlier file")
    network = nn.Flatten() if config.name == "pixels" else backbones.build(config)
    network.load_state_dict(network.state_dict() | plain, strict=True)
    return network


def outlined(config: NetworkConfig, where: str) -> nn.Module:
    """`backbones.outline` of what a file describes. Raises UserError that names the file."""
    try:
        return backbones.outline(config)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _misfit(own: State, given: State) -> str:
    """Which keys a state lacks, has too much, or has in another shape than a network's own; empty if it fits."""
    problems = {
        "it lacks": [k for k in own if k not in given and not k.endswith("num_batches_tracked")],
        "it has the unknown": [k for k in given if k not in own],
        "of another shape are": [
            f"{k} ({list(given[k].shape)}, not {list(own[k].shape)})"
            for k in own
            if k in given and given[k].shape != own[k].shape
        ],
    }
    return "; ".join(f"{what} {_listed(keys)}" for what, keys in problems.items() if keys)


def _is_further_branch(key: str, own: Mapping[str, Tensor]) -> bool:
    """`layer.aux.weight` where `layer` is a batch-norm."""
    parts = key.split(".")
    if key in own or len(parts) < 3:
        return False
    base = ".".join(parts[:-2])
    return f"{base}.running_mean" in own and f"{base}.{parts[-1]}" in own


def _listed(keys: Sequence[str], most: int = 4) -> str:
    more = f" … ({len(keys)} in all)" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
