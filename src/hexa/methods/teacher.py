"""A frozen teacher (FARE, DeACL, ProFeAT; F31): a student learns the teacher's features of the
clean view.

With adversarial views the student becomes robust without labels; without hard examples this is
distillation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import field_error
from hexa.core import Batch, Branch, EncoderConfig, Method, Setting
from hexa.methods.byol import ViewTargets
from hexa.nn.backbones import num_features, num_features_at
from hexa.nn.encoder import Encoder, mlp_head, unit
from hexa.nn.folding import folded
from hexa.nn.normalize import Normalize
from hexa.runtime.precision import at_least_fp32

#: Constructors of projectors from the student's width to the teacher's, by name.
_PROJECTORS: dict[str, Callable[[int, int], nn.Module]] = {
    "none": nn.Identity,
    "linear": nn.Linear,
    "mlp": mlp_head,
}


class TeacherConfig(EncoderConfig):
    """A frozen teacher. The default teacher is a copy of the initial network, whose features the
    robust student keeps (FARE)."""

    name: Literal["teacher"] = "teacher"
    teacher: str | None = None
    """Network whose features are the targets: a run folder, a file of weights, timm:NAME or
    random:NAME; it sees the views at its own image size. none: a frozen copy of the initial
    backbone (see `start.weights`)."""
    distance: Literal["l2", "cosine"] = "l2"
    """Loss between student features z and teacher features t. l2: ‖z − t‖² / ‖t‖² (FARE, without
    the divisor); cosine: 1 − cos(z, t) (DeACL)."""
    projector: Literal["none", "linear", "mlp"] = "none"
    """Training-only map from the student's features to the teacher's width: none, one linear layer,
    or an mlp of two layers with a ReLU (after ProFeAT). Required if the widths differ."""

    @property
    def begins_at_minimum(self) -> bool:
        return self.teacher is None and self.projector == "none"


class FrozenNetwork(nn.Module):
    """A network of pixels in [0, 1] -> features [B, D], without gradients and always in evaluation
    mode.

    size: resize images to this side in pixels first; None keeps their size.
    Passes run on a copy with batch-norms folded into convolutions, which is made at the first pass;
    the state is that of `network`.
    """

    def __init__(
        self,
        network: nn.Module,
        size: int | None = None,
    ) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.size = size
        self._folded: list[nn.Module] = []  # a list keeps the copy out of the state
        self.register_load_state_dict_post_hook(_unfold)  # type: ignore[no-untyped-call]

    def _apply(self, *given: Any, **options: Any) -> FrozenNetwork:
        _unfold(self)  # moved to another device or dtype
        return super()._apply(*given, **options)  # type: ignore[no-any-return, no-untyped-call]

    def train(self, mode: bool = True) -> FrozenNetwork:
        return super().train(False)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.size is not None and self.size != pixels.shape[-1]:
            pixels = F.interpolate(pixels, self.size, mode="bicubic", antialias=True).clamp(0, 1)
        if not self._folded:
            self._folded = [folded(self.network, pixels[:1])]
        return at_least_fp32(self._folded[0](pixels))


def _unfold(module: FrozenNetwork, *_: object) -> None:
    """Drop the folded copy, because the weights changed."""
    module._folded = []


def frozen(
    teacher: str | None,
    backbone: nn.Module,
    setting: Setting,
) -> tuple[FrozenNetwork, int]:
    """Return the teacher with this name (None: a copy of the initial backbone) and its feature
    width. Raises ConfigError."""
    if teacher is None:
        copied = nn.Sequential(Normalize(setting.mean, setting.std), copy.deepcopy(backbone))
        return FrozenNetwork(copied), num_features(backbone)
    if setting.load is None:
        raise field_error("method.teacher", f"cannot load '{teacher}'; set Setting(load=…)")
    network = setting.load(teacher)
    size = network.image_size
    return FrozenNetwork(network, size), num_features_at(network, size, len(setting.mean))


class Teacher(Method[ViewTargets], config=TeacherConfig):
    """L = d(g(f(x)), t(x_clean)), with f the student, g its projector, t the frozen teacher and d a
    distance.

    For an adversarial view, the teacher sees the clean view (FARE: Schlarmann et al., ICML 2024,
    equation 3; DeACL: Zhang et al., ECCV 2022, equation 3; ProFeAT: Addepalli et al., 2024). A
    mixed view has the features of both images as targets, weighted by area. Checkpoints contain the
    teacher, so a resumed run keeps it.
    """

    is_static = True
    encoder: Encoder

    loss_per_image = True

    def __init__(
        self,
        config: TeacherConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        self._begins = setting.begins_with
        self.teacher, width = frozen(config.teacher, backbone, setting)
        own = num_features(backbone, len(setting.mean))
        if config.projector == "none" and width != own:
            raise field_error(
                "method.projector",
                f"the teacher has {width} features, the student {own}; use linear or mlp",
            )
        head = _PROJECTORS[config.projector](own, width)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)

    def notes(self) -> list[str]:
        if self.config.teacher is not None or self._begins is not None:
            return []
        return [
            "the teacher is the initial network with random weights, so nothing useful is "
            "learned; give --start BACKBONE or --method.teacher BACKBONE"
        ]

    def embed(
        self,
        crops: tuple[Tensor, ...],
        branch: Branch,
    ) -> Tensor:
        """Return the student's projected features [V, B, D], not normalised."""
        return at_least_fp32(self.encoder.project(crops, branch))

    def pseudo_labels(
        self,
        batch: Batch,
        embedding: Tensor | None,
    ) -> ViewTargets:
        return ViewTargets(torch.stack([self.teacher(crop) for crop in batch.crops]))

    def loss(
        self,
        embedding: Tensor,
        labels: ViewTargets,
    ) -> Tensor:
        targets = labels.targets[: len(embedding)]
        if self.config.distance == "cosine":
            return 1 - (unit(embedding) * unit(targets)).sum(-1)
        scale = targets.square().sum(-1).clamp_min(torch.finfo(targets.dtype).tiny)
        return (embedding - targets).square().sum(-1) / scale

    def correct(
        self,
        embedding: Tensor,
        labels: ViewTargets,
    ) -> Tensor:
        return ViewTargets(unit(labels.targets)).nearest_is_own(unit(embedding))

    def directions(self, embedding: Tensor) -> Tensor:
        """Return features relative to the batch mean: after a ReLU all features lie in one corner
        of the sphere."""
        return unit(embedding - embedding.mean(1, keepdim=True))
