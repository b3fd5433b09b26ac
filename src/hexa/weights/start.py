"""Initial weights of the backbone, and how they are trained further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, cast

import pydantic
from timm.models import adapt_input_conv, group_parameters
from torch import Tensor, nn

from hexa.config import Config, UserError
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.encoder import Encoder
from hexa.nn.image_size import resampled
from hexa.weights.fitting import filled
from hexa.weights.preparation import CROP
from hexa.weights.pretrained import Backbone, load_backbone

#: Backbones that `read_once` keeps, by name; None outside of it.
_READ: ContextVar[dict[str, Backbone] | None] = ContextVar("read", default=None)


class StartConfig(Config):
    """Initial weights of the backbone, and how they are trained further. The head begins with random weights."""

    weights: str | None = None
    """A run folder, a file in any layout that `hexa evaluate` reads, or timm:NAME; none draws weights from the seed.
    Their network, normalisation and image size are used unless given."""
    sha256: str | None = None
    """The first digits of the SHA-256 of the weights' names and values, recorded when the run begins; other weights with
    the same name are then refused."""
    crop: float = pydantic.Field(default=CROP, ge=0.1, le=1)
    """The share of the shorter side that the centre crop of evaluated images takes. That of the weights is recorded
    unless given."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """The interpolation by which evaluated images are resized. That of the weights is recorded unless given."""
    batch_norm: Literal["keep", "follow"] = "keep"
    """keep: the backbone's batch-norms normalise with the statistics of the start, which stay fixed; follow: they
    normalise with batch statistics, and running statistics follow those of augmented views, as from random weights."""
    freeze_backbone: int = pydantic.Field(default=0, ge=0)
    """Number of epochs at the beginning in which only the head learns."""
    trainable_stages: int | None = pydantic.Field(default=None, gt=0)
    """Number of the backbone's last stages that learn (a ViT's blocks are stages); none for the whole backbone."""
    view_sets: int | None = pydantic.Field(default=None, gt=0)
    """Number of epochs with views of their own, which later ones repeat; none draws new ones for every epoch. Where
    only the last stages learn (SimCLR without hard examples), the maps below them are computed once."""
    backbone_rate: float = pydantic.Field(default=1.0, gt=0, le=1)
    """The learning rate of the backbone as a share of the head's."""
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Each stage of the backbone learns at this share of the rate of the stage above it."""

    @pydantic.model_validator(mode="after")
    def _only_with_weights(self) -> StartConfig:
        given = [
            name
            for name, value in self
            if name != "weights" and value != type(self).model_fields[name].default
        ]
        if self.weights is None and given:
            raise ValueError(f"{given[0]} has no effect without start.weights; set start.weights")
        return self

    @property
    def keeps_statistics(self) -> bool:
        """Whether the backbone's batch-norms normalise with fixed running statistics in training."""
        return self.weights is not None and self.batch_norm == "keep"


def read(weights: str, field: str = "start.weights") -> Backbone:
    """The initial backbone. Raises UserError unless these are weights of a network that can be built again.

    field: the field of an experiment that names them.
    """
    if weights.startswith("python:"):  # a config.yaml from elsewhere must not run code
        remedy = "save the state_dict of its network, and give FILE#NETWORK"
        raise UserError(f"{field}: {weights} is code, which is not run here; {remedy}")
    if weights.startswith("pixels:"):
        remedy = "give a run, a file of weights or timm:NAME"
        raise UserError(f"{field}: {weights} has no weights; {remedy}")
    kept = _READ.get()
    if kept is None or field != "start.weights":  # a method owns its teacher
        return load_backbone(weights)
    if weights not in kept:
        kept[weights] = load_backbone(weights)
    return kept[weights]


def of(config: StartConfig) -> Backbone:
    """The initial backbone that a configuration names, as `read` does."""
    return read(config.weights or "")


@contextmanager
def read_once() -> Iterator[None]:
    """Within it, `read` loads the start once, and returns the same backbone every time."""
    before = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(before)


def unchanged(config: StartConfig) -> Backbone:
    """The start. Raises UserError if it is not the one that the experiment began with."""
    assert config.weights is not None
    backbone = of(config)
    sha256 = backbone.content_hash()
    if config.sha256 not in (None, sha256):
        raise UserError(
            f"start.weights: {config.weights} has changed since this experiment began (SHA-256 "
            f"{sha256}, not {config.sha256}); restore it, or begin a new experiment with --start"
        )
    return backbone


def begun(network: NetworkConfig, config: StartConfig) -> nn.Module:
    """The network with the start's weights. Raises UserError that names what does not fit.

    A vision transformer's positions are resampled for the network's own size.
    """
    backbone = unchanged(config)
    state = dict(_for_size(backbone, network.options.get("img_size")).state_dict())
    if network.channels != backbone.network_config.channels:
        own = backbones.outline(network).state_dict()
        state = {
            name: _of_channels(network.channels, value, own.get(name))
            for name, value in state.items()
        }
    remedy = "leave out what you set of network: the weights bring theirs"
    return filled(network, state, f"start.weights {config.weights}", remedy)


def _of_channels(channels: int, given: Tensor, own: Tensor | None) -> Tensor:
    """A convolution of RGB images adapted to `channels` by timm's rule; any other tensor unchanged."""
    of_rgb = (
        given.ndim == 4
        and given.shape[1] == 3
        and own is not None
        and own.shape[1:2] == (channels,)
    )
    return adapt_input_conv(channels, given) if of_rgb else given


def _for_size(backbone: Backbone, size: object) -> nn.Module:
    """The network of a backbone, its positions resampled where another `img_size` is given."""
    config = backbone.network_config
    network = backbone.network
    other = isinstance(size, int) and size != config.options.get("img_size")
    if other and hasattr(network, "set_input_size"):
        return resampled(network, config, cast(int, size)).network
    return network


def convolves(network: nn.Module) -> bool:
    """True if more than half of the weights of the network belong to convolutions."""
    sizes = [(parameter.ndim == 4, parameter.numel()) for parameter in network.parameters()]
    return 2 * sum(size for convolution, size in sizes if convolution) > sum(
        size for _, size in sizes
    )


def stages(network: Any) -> dict[str, int]:
    """The stage of every parameter by name, as timm groups them: 0 for the stem, then stages or blocks.

    Raises UserError for a network that does not define its stages.
    """
    try:
        groups: dict[str, int] = group_parameters(
            network, network.group_matcher(coarse=True), reverse=True
        )
    except (AttributeError, AssertionError):
        raise UserError(
            f"start: {type(network).__name__} does not define its stages; "
            "leave out start.layer_decay and start.trainable_stages"
        ) from None
    ranks = {stage: rank for rank, stage in enumerate(sorted(set(groups.values())))}
    return {name: ranks[stage] for name, stage in groups.items()}


def count_stages(network: nn.Module) -> int:
    """How many stages a network has; 1 if it does not define them."""
    with suppress(UserError):
        return max(stages(network).values()) + 1
    return 1


def last_stages(network: nn.Module, share: float = 0.05) -> int:
    """The fewest last stages that hold this share of the parameters; 1 if the network does not define its stages.

    Some networks end in a stage of a normalisation alone.
    """
    with suppress(UserError):
        of = stages(network)
        sizes = dict[int, int]()
        for name, parameter in network.named_parameters():
            sizes[of[name]] = sizes.get(of[name], 0) + parameter.numel()
        least = share * sum(sizes.values())
        held = 0
        for count, stage in enumerate(sorted(sizes, reverse=True), 1):
            held += sizes[stage]
            if held >= least:
                return count
    return 1


def rates(method: nn.Module, config: StartConfig) -> dict[nn.Parameter, float]:
    """Each backbone parameter's share of the learning rate; 0 if it never learns.

    backbone_rate · layer_decay^(n − 1 − stage) for n stages. Momentum twins are left out.
    """
    shares: dict[nn.Parameter, float] = {}
    by_stage = config.layer_decay < 1 or config.trainable_stages is not None
    encoders = (module for module in method.modules() if isinstance(module, Encoder))
    learning = (
        e.backbone for e in encoders if any(p.requires_grad for p in e.backbone.parameters())
    )
    for backbone in learning:
        stage_of = stages(backbone) if by_stage else {}
        last = max(stage_of.values(), default=0)
        first = 0 if config.trainable_stages is None else last + 1 - config.trainable_stages
        for name, parameter in backbone.named_parameters():
            stage = stage_of.get(name, last)
            shares[parameter] = (
                config.backbone_rate * config.layer_decay ** (last - stage)
                if stage >= first
                else 0.0
            )
    return shares
