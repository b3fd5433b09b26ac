"""Initial weights of the backbone, and the rules for fine-tuning them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, cast

import pydantic
from timm.models import adapt_input_conv, group_parameters
from torch import nn

from hexa.config import Config, UserError
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.encoder import Encoder
from hexa.nn.image_size import resampled
from hexa.weights.fitting import filled
from hexa.weights.preparation import CROP
from hexa.weights.pretrained import Backbone, load_backbone

#: Backbones that `read_once` caches, by name; None outside of its context.
_READ: ContextVar[dict[str, Backbone] | None] = ContextVar("read", default=None)


class StartConfig(Config):
    """Initial weights of the backbone, and the rules for fine-tuning them. The head always starts
    from random weights."""

    weights: str | None = None
    """Initial weights: a run folder, a file in any layout that `hexa evaluate` reads, or timm:NAME;
    none draws weights from the seed. Their network, normalisation and image size are used unless
    you set others."""
    sha256: str | None = None
    """First digits of the SHA-256 of the names and values of the weights, recorded when the run
    begins; other weights with the same name are then refused."""
    crop: float = pydantic.Field(default=CROP, ge=0.1, le=1)
    """Side of the centre crop for evaluation, as a share of the shorter side. If not set, the value
    of the weights is used and recorded."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Interpolation for resizing evaluated images. If not set, the value of the weights is used and
    recorded."""
    batch_norm: Literal["keep", "follow"] = "keep"
    """keep: freeze the batch-norm statistics of the initial weights. follow: normalise with batch
    statistics and update running statistics from augmented views, as in training from random
    weights."""
    freeze_backbone: int = pydantic.Field(default=0, ge=0)
    """Number of initial epochs in which only the head learns."""
    trainable_stages: int | None = pydantic.Field(default=None, gt=0)
    """Number of last stages of the backbone that learn (a ViT's blocks are stages); none trains all
    of it."""
    view_sets: int | None = pydantic.Field(default=None, gt=0)
    """Number of epochs with new views; later epochs repeat these. none draws new views in every
    epoch. If only the last stages learn (SimCLR without hard examples), the maps below them are
    computed once."""
    backbone_rate: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Learning rate of the backbone, as a share of the head's."""
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Learning rate of each stage, as a share of the rate of the stage above it."""

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
        """True if the backbone's batch-norms normalise with fixed running statistics in
        training."""
        return self.weights is not None and self.batch_norm == "keep"


def read(weights: str, field: str = "start.weights") -> Backbone:
    """Return the initial backbone. Raises UserError unless it has weights and its network can be
    rebuilt.

    field: the experiment's field that names the weights.
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
    """Return the initial backbone that a configuration names, as `read` does."""
    return read(config.weights or "")


@contextmanager
def read_once() -> Iterator[None]:
    """Cache the initial backbone inside the context: `read` loads it once and then returns the same
    object."""
    before = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(before)


def unchanged(config: StartConfig) -> Backbone:
    """Return the initial backbone. Raises UserError if its weights differ from those at the
    beginning of the experiment."""
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
    """Return the network with the initial weights. Raises UserError that names the tensors that do
    not fit.

    The position embeddings of a vision transformer are resampled for the network's own size.
    """
    backbone = unchanged(config)
    theirs = backbone.network_config
    initial = backbone.network
    size = network.options.get("img_size")
    other_size = isinstance(size, int) and size != theirs.options.get("img_size")
    if other_size and hasattr(initial, "set_input_size"):
        initial = resampled(initial, theirs, cast(int, size)).network
    state = dict(initial.state_dict())
    if network.channels != theirs.channels:
        for name, own in backbones.outline(network).state_dict().items():
            value = state.get(name, own)
            is_of_rgb = value.ndim == 4 and value.shape[1] == 3
            if is_of_rgb and own.shape[1:2] == (network.channels,):
                state[name] = adapt_input_conv(network.channels, value)
    remedy = "do not set network fields; the weights define the network"
    return filled(network, state, f"start.weights {config.weights}", remedy)


def convolves(network: nn.Module) -> bool:
    """Return whether convolutions have more than half of the network's weights."""
    sizes = [(parameter.ndim == 4, parameter.numel()) for parameter in network.parameters()]
    return 2 * sum(size for convolution, size in sizes if convolution) > sum(
        size for _, size in sizes
    )


def stages(network: Any) -> dict[str, int]:
    """Return the stage of every parameter by name, as timm groups them: 0 for the stem, then stages
    or blocks. Raises UserError for a network that does not define its stages.
    """
    try:
        groups: dict[str, int] = group_parameters(
            network, network.group_matcher(coarse=True), reverse=True
        )
    except (AttributeError, AssertionError):
        raise UserError(
            f"start: {type(network).__name__} does not define its stages; "
            "remove start.layer_decay and start.trainable_stages"
        ) from None
    ranks = {stage: rank for rank, stage in enumerate(sorted(set(groups.values())))}
    return {name: ranks[stage] for name, stage in groups.items()}


def count_stages(network: nn.Module) -> int:
    """Return the number of stages of a network; 1 if it does not define them."""
    with suppress(UserError):
        return max(stages(network).values()) + 1
    return 1


def last_stages(network: nn.Module) -> int:
    """Return the smallest number of last stages with 5 % of the parameters; 1 if the network
    does not define stages.

    Some networks end in a stage that contains only a normalisation.
    """
    with suppress(UserError):
        of = stages(network)
        sizes = dict[int, int]()
        for name, parameter in network.named_parameters():
            sizes[of[name]] = sizes.get(of[name], 0) + parameter.numel()
        least = 0.05 * sum(sizes.values())
        held = 0
        for count, stage in enumerate(sorted(sizes, reverse=True), 1):
            held += sizes[stage]
            if held >= least:
                return count
    return 1


def rates(method: nn.Module, config: StartConfig) -> dict[nn.Parameter, float]:
    """Return each backbone parameter's share of the learning rate; 0 if it never learns.

    backbone_rate · layer_decay^(n − 1 − stage) for n stages. Momentum twins are excluded.
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
