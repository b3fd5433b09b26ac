"""Backbones: any timm network as a feature extractor, a stem for small images, and narrow ResNets
for CPUs."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, cast

import pydantic
import timm
import torch
from pydantic import PositiveFloat
from timm.layers import LayerNorm
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from hexa.config import Config, UserError, field_error, nearest, reason
from hexa.entry_points import added
from hexa.nn.normalize import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    OF_OTHER_PIXELS,
    Channels,
    of_unit_pixels,
)

#: Largest width: wider networks would fill the memory.
_WIDEST = 4096
#: Largest depth: deeper networks take minutes to outline.
_DEEPEST = 512


class NetworkConfig(Config):
    """The network to train, and the statistics that normalise its input."""

    name: str = pydantic.Field(default="resnet50", max_length=100)
    """Name of a timm model, or small-resnet for a network with `widths`."""
    small_stem: bool = False
    """Use a 3×3 stem with stride 1 and no max-pool, for images of about 32 pixels (F4). ResNets
    only."""
    widths: tuple[Annotated[int, pydantic.Field(ge=1, le=_WIDEST)], ...] = pydantic.Field(
        default=(), max_length=8
    )
    """small-resnet only: number of channels of each stage; a stage has one basic block."""
    stem_stride: int = pydantic.Field(default=1, ge=1, le=4)
    """small-resnet only: 2 halves the resolution in the stem, for speed."""
    stem: Literal["learned", "cosine"] = "learned"
    """small-resnet only: learned, or cosine, a fixed cosine transform of 3×3 patches for colour
    photographs, which only fine-tuning changes."""
    options: dict[str, bool | int | float | str] = {}
    """Arguments for the class of the timm network, such as img_size: 32 and patch_size: 4 of a ViT
    for small images, norm_eps of its layer norms, or stem_padding: 2 of a 3×3 stem (solo-learn)."""
    channels: int = pydantic.Field(default=3, ge=1, le=_WIDEST)
    """Number of image channels: 1 for grey, 4 or more for bands of TIFF and .npy files; mean and
    std must match."""
    streams: str = pydantic.Field(default="one", max_length=100)
    """one: a single network. lab: two such networks for RGB images, one for lightness (L) and one
    for colour (a and b of CIE Lab); their features are concatenated (CMC)."""
    checkpoint: bool = False
    """Store only the input of each block, and recompute its activations in the backward pass: less
    memory, the same gradients, one more forward pass."""
    mean: Channels = IMAGENET_MEAN
    """Mean of each channel over the data, or one number for all channels, for pixels in [0, 1].
    auto measures it when the run begins, and is shown as [] until then."""
    std: tuple[PositiveFloat, ...] = IMAGENET_STD
    """Standard deviation of each channel; auto measures it."""

    @pydantic.field_validator("mean", "std", mode="before")
    @classmethod
    def _short(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Expand `auto`, and one number for all channels."""
        if value == "auto":
            return ()
        alike = isinstance(value, int | float) and not isinstance(value, bool)
        return (value,) * info.data.get("channels", 3) if alike else value

    @pydantic.model_validator(mode="after")
    def _one_a_channel(self) -> NetworkConfig:
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values and len(values) != self.channels:
                raise field_error(
                    name, f"{len(values)} numbers for {self.channels} channels; give one each"
                )
            if not of_unit_pixels(values):
                raise field_error(name, OF_OTHER_PIXELS)
        return self


class SmallResNet(nn.Module):
    """A ResNet with one basic block per stage and torchvision's key names: normalised images -> [B,
    widths[-1]].

    The stem is 3×3; every stage after the first halves the resolution. With four stages it has nine
    3×3 layers. A cosine stem consists of fixed `cosine_filters`; channels beyond them keep their
    random initial weights.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        stem_stride: int = 1,
        channels: int = 3,
        stem: str = "learned",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, stem_stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.num_stages = len(widths)
        for stage, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            stride = 1 if stage == 0 else 2
            downsample = None
            if stride != 1 or before != width:
                downsample = nn.Sequential(
                    nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
                )
            setattr(
                self,
                f"layer{stage + 1}",
                nn.Sequential(BasicBlock(before, width, stride, downsample)),
            )
        self.num_features = widths[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if stem == "cosine":
            fixed = cosine_filters(widths[0], channels)
            self.conv1.weight.requires_grad_(False)[: len(fixed)] = fixed

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return the patterns by which timm's tools identify the stages."""
        return {"stem": r"^conv1|bn1", "blocks": r"^layer(\d+)"}

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the last feature maps, [B, widths[-1], h, w]."""
        x = self.relu(self.bn1(self.conv1(images)))
        for stage in range(self.num_stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return cast(Tensor, x)

    def forward_head(self, maps: Tensor) -> Tensor:
        """Return the features [B, widths[-1]]: the mean of the last maps."""
        return maps.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def cosine_filters(most: int, channels: int) -> Tensor:
    """Return the first filters of a discrete cosine transform of 3×3 patches and their channels,
    each with both signs.

        b_{u,v,w}[c, i, j] = d_u[c] · d_v[i] · d_w[j],   d_u[c] ∝ cos(π u (c + ½) / C),   ‖d_u‖ = 1

    These filters decorrelate natural images about as well as the principal components of patches,
    which airbench uses to whiten the input of a supervised network (Jordan, 2024). The lowest
    degrees u + v + w come first, and grey filters (u = 0) first within a degree. Returns [n,
    channels, 3, 3] with n ≤ `most`; fewer if the transform has no more.
    """
    line = _cosines(channels)
    square = _cosines(3)
    degrees = sorted(
        itertools.product(range(channels), range(3), range(3)),
        key=lambda degree: (sum(degree), degree),
    )
    waves = [
        torch.einsum("c,i,j->cij", line[u], square[v], square[w])
        for u, v, w in degrees[: max(1, most // 2)]
    ]
    return torch.cat([torch.stack(waves), -torch.stack(waves)])[:most]


def _cosines(n: int) -> Tensor:
    """Return an orthonormal basis of ℝⁿ, [n, n]: one row per frequency."""
    at = torch.arange(n)
    return nn.functional.normalize(torch.cos(torch.pi * at[:, None] * (at + 0.5) / n), dim=1)


def build(config: NetworkConfig) -> nn.Module:
    """Build the network without classifier: normalised images [B, C, S, S] -> features [B,
    num_features].

    Weights are drawn from torch's global generator. Options may come from untrusted files, and timm
    accepts file names and addresses to load from; therefore only parameters of the network's own
    class are passed on. Raises UserError for an unknown name, unknown options, or an unsuitable
    stem.
    """
    if config.streams != "one":
        added_builders = {entry.name: entry for entry in added("hexa.streams")}
        if config.streams not in added_builders:
            remedy = nearest(config.streams, ["one", *added_builders])
            raise UserError(f"network.streams: unknown '{config.streams}'; {remedy}")
        joined: nn.Module = added_builders[config.streams].load()(config)
        return joined
    if config.name == "small-resnet":
        if not config.widths:
            raise UserError("network.widths: small-resnet needs widths, such as [16, 32, 64, 128]")
        return SmallResNet(config.widths, config.stem_stride, config.channels, config.stem)
    if config.name not in timm.list_models():
        remedy = nearest(config.name, ["small-resnet", *timm.list_models()])
        raise UserError(f"network.name: unknown network '{config.name}'; {remedy}")
    if config.options:
        _check_options(config)
    options: dict[str, Any] = dict(config.options)
    padding = options.pop("stem_padding", 1)
    if "norm_eps" in options:
        options["norm_layer"] = functools.partial(LayerNorm, eps=options.pop("norm_eps"))
    if timm.models.is_model_in_modules(config.name, "resnet"):
        # as torchvision and the published codes; timm begins with weights of 0
        options.setdefault("zero_init_last", False)
    try:
        channels = {} if config.channels == 3 else {"in_chans": config.channels}
        network = cast(
            nn.Module, timm.create_model(config.name, num_classes=0, **channels, **options)
        )
    except Exception as error:
        if not config.options and not channels:
            raise
        field = "options" if config.options else "channels"
        raise UserError(
            f"network.{field}: {config.name} cannot be built with these ({reason(error)})"
        ) from None
    return use_small_stem(network, config.name, padding) if config.small_stem else network


def outline(config: NetworkConfig) -> nn.Module:
    """Return the network on the meta device, to inspect its structure without allocating memory or
    drawing weights.

    The result is cached, so it must not be changed.
    """
    return _outlined(config.model_dump_json())


@functools.lru_cache(maxsize=4)
def _outlined(config: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return build(NetworkConfig.model_validate_json(config))


#: Parameters of timm's classes that hexa sets itself, or that are not numbers.
_SET = {
    "self",
    "num_classes",
    "in_chans",
    "device",
    "dtype",
    "cfg",
    "block",
    "block_args",
    "layers",
}
#: Further options of timm's EfficientNets.
_FURTHER = {"bn_momentum", "bn_eps"}


def takes_option(config: NetworkConfig, name: str) -> bool:
    """Return whether the class of a timm network has a parameter with this name."""
    return name in _parameters(type(outline(NetworkConfig(name=config.name))))


def _check_options(config: NetworkConfig) -> None:
    named = _parameters(type(outline(NetworkConfig(name=config.name))))
    known = (named | _FURTHER) - _SET
    if "norm_layer" in known and "embed_dim" in known:
        known.add("norm_eps")
    if config.small_stem:
        known.add("stem_padding")
    for name, value in config.options.items():
        if name not in known:
            raise UserError(
                f"network.options: {config.name} has no {name[:40]!r}; {nearest(name, known)}"
            )
        if isinstance(value, str) and not re.fullmatch(r"\w{1,40}", value):
            raise UserError(
                f"network.options: {name} must be a name or a number, got {value[:40]!r}"
            )
        most = _DEEPEST if name == "depth" else _WIDEST
        if isinstance(value, int | float) and not abs(value) <= most:
            raise UserError(f"network.options: {name} must be at most {most}, got {value}")


def _parameters(network: type) -> set[str]:
    """Return the parameter names of a class, and of base classes that receive its remaining
    arguments."""
    names: set[str] = set()
    for of in network.__mro__:
        parameters = inspect.signature(of).parameters.values()
        passed_on = {
            one.name for one in parameters if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        }
        names |= {one.name for one in parameters} - passed_on
        if not passed_on:
            break
    return names


def use_small_stem(network: nn.Module, name: str = "this network", padding: int = 1) -> nn.Module:
    """Replace the stem of a timm or torchvision ResNet, in place, by a 3×3 convolution with stride
    1 and no max-pool (F4).

    padding: of the convolution; solo-learn uses 2.
    """
    stem = getattr(network, "conv1", None)
    if not isinstance(stem, nn.Conv2d) or not hasattr(network, "maxpool"):
        raise UserError(
            f"network.small_stem: {name} has no ResNet stem to replace; set it to false"
        )
    small = nn.Conv2d(stem.in_channels, stem.out_channels, 3, 1, padding, bias=False)
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    network.conv1 = small
    network.maxpool = nn.Identity()
    return network


#: Attribute names of the classifiers of torchvision's networks.
_LAST = ("fc", "classifier", "heads")


def check_headless(network: nn.Module) -> None:
    """Raise UserError if a backbone still ends in its classifier: class scores are not features."""
    get = getattr(network, "get_classifier", None)  # timm
    layers = (
        {"the classifier": get()}
        if callable(get)
        else {name: getattr(network, name, None) for name in _LAST}
    )
    for name, layer in layers.items():
        last = layer[-1] if isinstance(layer, nn.Sequential) and len(layer) else layer
        if isinstance(last, nn.Linear):
            raise UserError(
                f"{type(network).__name__} ends in {name} with {last.out_features} class "
                "scores; replace it by torch.nn.Identity(), or use num_classes=0 with timm"
            )


def num_features(network: nn.Module, channels: int = 3) -> int:
    """Return the feature width of a backbone for images with this number of channels."""
    # timm's head_hidden_size is the width of the output; num_features is the width of the maps
    # before the layer that follows the pooling in MobileNetV3, GhostNet and VGG
    width = getattr(network, "head_hidden_size", getattr(network, "num_features", None))
    return width if isinstance(width, int) else num_features_at(network, 64, channels)


def num_features_at(network: nn.Module, size: int, channels: int) -> int:
    """Return the feature width for blank images of this size. Raises UserError if the network does
    not accept them."""
    try:
        with tried(network) as device:
            features = network(torch.zeros(2, channels, size, size, device=device))
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        raise UserError(
            f"size {size}: the network does not accept images of this size ({reason(error)})"
        ) from None
    return int(features.shape[1])


@contextmanager
def tried(network: nn.Module) -> Iterator[torch.device]:
    """Switch the network to evaluation mode without gradients inside the context; yields its
    device."""
    training = network.training
    try:
        with torch.no_grad():
            network.eval()
            yield next((value.device for value in network.parameters()), torch.device("cpu"))
    finally:
        network.train(training)
