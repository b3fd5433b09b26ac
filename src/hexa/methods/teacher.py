"""A frozen teacher (FARE, DeACL, ProFeAT; F31): a student is to have its features of the clean view.

Adversarial views then make the student robust without labels, and without other views; without hard examples it is
distillation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import pydantic
import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import ConfigError
from hexa.core import Batch, Branch, EncoderConfig, Method, Passes, Setting
from hexa.methods.byol import ViewTargets
from hexa.nn.backbones import num_features, num_features_at
from hexa.nn.encoder import Encoder, mlp_head, unit
from hexa.nn.normalize import Normalize
from hexa.ops.kmeans import spherical_kmeans

_PROJECTORS: dict[str, Callable[[int, int], nn.Module]] = {"linear": nn.Linear, "mlp": mlp_head}


class TeacherConfig(EncoderConfig):
    """A frozen teacher; by default the network as it begins, whose features its robust copy keeps (FARE)."""

    name: Literal["teacher"] = "teacher"
    teacher: str | None = None
    """The network whose features are to be predicted: a run folder, a file of weights, timm:NAME or random:NAME, which
    sees the views at its own image size. none: a frozen copy of the backbone as it begins, with `start.weights`."""
    distance: Literal["l2", "cosine", "kl"] = "l2"
    """l2: ‖z − t‖² / ‖t‖², for features z and those of the teacher t (FARE, without the divisor); cosine: 1 − cos(z, t)
    (DeACL); kl: KL(p(t) ‖ p(z)) of soft assignments p to prototypes, clusters of the teacher's features."""
    num_prototypes: int = pydantic.Field(default=256, gt=1)
    """Prototypes of kl, found once by spherical k-means of the teacher's features of all images."""
    temperature: PositiveFloat = 0.1
    """τ of kl: p(z) = softmax(cos(z, prototypes) / τ)."""
    projector: Literal["none", "linear", "mlp"] = "none"
    """What maps the student's features to the teacher's width in training: nothing, a linear layer, or two with a ReLU
    between (after ProFeAT). Needed for a teacher of another width."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.distance == "kl" and self.num_prototypes > setting.data_size:
            message = f"{self.num_prototypes} clusters of {setting.data_size} images; give {setting.data_size} or fewer"
            raise ConfigError([("method.num_prototypes", message)])

    @property
    def begins_at_minimum(self) -> bool:
        return self.teacher is None and self.projector == "none"


class FrozenNetwork(nn.Module):
    """A network of pixels in [0, 1] -> features [B, D], without gradients and always in evaluation mode.

    size: the side in pixels that images are resized to before; None leaves them.
    """

    def __init__(self, network: nn.Module, size: int | None = None) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.size = size

    def train(self, mode: bool = True) -> FrozenNetwork:
        return super().train(False)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.size not in (None, pixels.shape[-1]):
            pixels = F.interpolate(pixels, self.size, mode="bicubic", antialias=True).clamp(0, 1)
        features: Tensor = self.network(pixels)
        return features.to(torch.promote_types(features.dtype, torch.float32))


def frozen(teacher: str | None, backbone: nn.Module, setting: Setting) -> tuple[FrozenNetwork, int]:
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
    remedy = "give --start BACKBONE, or --method.teacher BACKBONE"
    return [
        f"the teacher is the network as it begins, with random weights, which teach nothing; {remedy}"
    ]


class Teacher(Method[ViewTargets], config=TeacherConfig):
    """L = d(g(f(x)), t(x_clean)): f the student, g its projector, t the frozen teacher, d a distance.

    Of an adversarial view the teacher sees the clean one (FARE: Schlarmann et al., ICML 2024, equation 3; DeACL: Zhang
    et al., ECCV 2022, equation 3; ProFeAT: Addepalli et al., 2024); a mixed view is to have both images' features by
    area. The teacher is a part of each checkpoint, so that a resumed run has the one it began with.
    """

    encoder: Encoder
    prototypes: Tensor | None

    def __init__(self, config: TeacherConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        self._begins = setting.begins_with
        self.teacher, width = frozen(config.teacher, backbone, setting)
        own = num_features(backbone, len(setting.mean))
        if config.projector == "none" and width != own:
            message = f"the teacher has {width} features and the student {own}; give method.projector linear or mlp"
            raise ConfigError([("method.projector", message)])
        head = (
            nn.Identity()
            if config.projector == "none"
            else _PROJECTORS[config.projector](own, width)
        )
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        self.prototypes = (
            nn.Buffer(torch.zeros(config.num_prototypes, width))
            if config.distance == "kl"
            else None
        )

    def notes(self) -> list[str]:
        return teacher_notes(self.config.teacher, self._begins)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """The student's features [V, B, D], projected; not normalised."""
        embedding = self.encoder.project(crops, branch)
        return embedding.to(torch.promote_types(embedding.dtype, torch.float32))

    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Find the prototypes of kl, once, since the teacher stays. Raises ConfigError for too few images."""
        if epoch or self.prototypes is None:
            return {}
        rows = torch.cat(
            [self.prototypes[:0], *(unit(self.teacher(batch.crops[0])) for batch in data.images())]
        )
        try:
            found = spherical_kmeans(
                rows, len(self.prototypes), data.stream.child("prototypes").generator()
            )
        except ValueError as error:
            raise ConfigError([("method.num_prototypes", str(error))]) from None
        self.prototypes.copy_(found.centroids)
        return {"prototypes/objective": float(found.objective)}

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> ViewTargets:
        return ViewTargets(torch.stack([self.teacher(crop) for crop in batch.crops]))

    def loss(self, embedding: Tensor, labels: ViewTargets) -> Tensor:
        targets = labels.targets[: len(embedding)]
        if self.config.distance == "cosine":
            return 1 - (unit(embedding) * unit(targets)).sum(-1)
        if self.prototypes is not None:
            own, taught = (
                (unit(rows) @ self.prototypes.T / self.config.temperature)
                for rows in (embedding, targets)
            )
            return F.kl_div(
                own.log_softmax(-1), taught.log_softmax(-1), reduction="none", log_target=True
            ).sum(-1)
        scale = targets.square().sum(-1).clamp_min(torch.finfo(targets.dtype).tiny)
        return (embedding - targets).square().sum(-1) / scale

    def correct(self, embedding: Tensor, labels: ViewTargets) -> Tensor:
        """Whether the teacher's features of the own image are nearer, by angle, than those of others of the batch."""
        return ViewTargets(unit(labels.targets)).nearest_is_own(unit(embedding))

    def directions(self, embedding: Tensor) -> Tensor:
        """Relative to the mean of the batch: features after a ReLU all lie in one corner of the sphere."""
        return unit(embedding - embedding.mean(1, keepdim=True))
