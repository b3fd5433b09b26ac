"""A frozen teacher (FARE, DeACL, ProFeAT; F31): a student is to have its features of the clean view.

Adversarial views then make the student robust without labels, and without other views; without hard examples it is
distillation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import ConfigError
from hexa.core import Batch, Branch, EncoderConfig, Method, Setting
from hexa.methods.byol import ViewTargets
from hexa.nn.backbones import num_features, num_features_at
from hexa.nn.encoder import Encoder, mlp_head, unit
from hexa.nn.normalize import Normalize
from hexa.runtime.precision import at_least_fp32

#: Makers of projectors from the student's width to the teacher's.
_PROJECTORS: dict[str, Callable[[int, int], nn.Module]] = {
    "none": nn.Identity,
    "linear": nn.Linear,
    "mlp": mlp_head,
}


class TeacherConfig(EncoderConfig):
    """A frozen teacher; by default the network as it begins, whose features its robust copy keeps (FARE)."""

    name: Literal["teacher"] = "teacher"
    teacher: str | None = None
    """The network whose features are to be predicted: a run folder, a file of weights, timm:NAME or random:NAME, which
    sees the views at its own image size. none: a frozen copy of the backbone as it begins, with `start.weights`."""
    distance: Literal["l2", "cosine"] = "l2"
    """l2: ‖z − t‖² / ‖t‖², for features z and those of the teacher t (FARE, without the divisor); cosine: 1 − cos(z, t)
    (DeACL)."""
    projector: Literal["none", "linear", "mlp"] = "none"
    """What maps the student's features to the teacher's width in training: nothing, a linear layer, or two with a ReLU
    between (after ProFeAT). Needed for a teacher of another width."""

    @property
    def begins_at_minimum(self) -> bool:
        return self.teacher is None and self.projector == "none"


class FrozenNetwork(nn.Module):
    """A network of pixels in [0, 1] -> features [B, D], without gradients and always in evaluation mode.

    size: the side in pixels that images are resized to before; None leaves them.
    """

    def __init__(
        self,
        network: nn.Module,
        size: int | None = None,
    ) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.size = size

    def train(self, mode: bool = True) -> FrozenNetwork:
        return super().train(False)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.size is not None and self.size != pixels.shape[-1]:
            pixels = F.interpolate(pixels, self.size, mode="bicubic", antialias=True).clamp(0, 1)
        return at_least_fp32(self.network(pixels))


def frozen(
    teacher: str | None,
    backbone: nn.Module,
    setting: Setting,
) -> tuple[FrozenNetwork, int]:
    """The teacher of this name, or the backbone as it begins, and the width of its features. Raises ConfigError."""
    if teacher is None:
        copied = nn.Sequential(Normalize(setting.mean, setting.std), copy.deepcopy(backbone))
        return FrozenNetwork(copied), num_features(backbone)
    if setting.load is None:
        raise ConfigError([("method.teacher", f"'{teacher}' needs Setting(load=…) to be loaded")])
    network, size = setting.load(teacher)
    return FrozenNetwork(network, size), num_features_at(network, size, len(setting.mean))


def teacher_notes(teacher: str | None, begins_with: str | None) -> list[str]:
    """A note for a teacher with random weights."""
    if teacher is not None or begins_with is not None:
        return []
    problem = "the teacher is the network as it begins, with random weights, which teach nothing"
    return [f"{problem}; give --start BACKBONE, or --method.teacher BACKBONE"]


class Teacher(Method[ViewTargets], config=TeacherConfig):
    """L = d(g(f(x)), t(x_clean)): f the student, g its projector, t the frozen teacher, d a distance.

    Of an adversarial view the teacher sees the clean one (FARE: Schlarmann et al., ICML 2024, equation 3; DeACL: Zhang
    et al., ECCV 2022, equation 3; ProFeAT: Addepalli et al., 2024); a mixed view is to have both images' features by
    area. The teacher is a part of each checkpoint, so that a resumed run has the one it began with.
    """

    is_static = True
    encoder: Encoder

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
            message = f"the teacher has {width} features and the student {own}; give method.projector linear or mlp"
            raise ConfigError([("method.projector", message)])
        head = _PROJECTORS[config.projector](own, width)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)

    def notes(self) -> list[str]:
        return teacher_notes(self.config.teacher, self._begins)

    def embed(
        self,
        crops: tuple[Tensor, ...],
        branch: Branch,
    ) -> Tensor:
        """The student's features [V, B, D], projected; not normalised."""
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
        """Relative to the mean of the batch: features after a ReLU all lie in one corner of the sphere."""
        return unit(embedding - embedding.mean(1, keepdim=True))
