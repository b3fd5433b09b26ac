"""A few labels and many images as a method of the contract: a pseudo-label of an unlabelled image is a class.

With B_l labelled images ahead of B_u = μ·B_l unlabelled ones in a batch, z the scores of a view and p = softmax(z):

    L = 1/B_l Σ_labelled CE(y, z(weak))  +  λ_u · 1/B_u Σ_unlabelled m · CE(q, z(strong)),   m = 1[max p(weak) ≥ τ]

The first sum is the clean term. The second is the term of a hard example, made of the weak views; q is the class that
the weak view is most likely of (pseudo-labels, FixMatch), or its sharpened p (UDA), or p itself (VAT).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.core import Batch, Branch, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.encoder import Encoder
from hexa.nn.momentum import follow

Strong = Literal["randaugment", "weak"]


class Rule(NamedTuple):
    """The rule of a learner: the pseudo-label of an unlabelled image, when it counts, and its views.

    ratio: μ. threshold: τ. temperature: T of the sharpening softmax(z / T); 0 takes the most likely class. strong: the
    strong views. ramp: how long λ_u grows, as a share of the steps. entropy: weight of the entropy of the weak views'
    p. virtual: VAT's views stand in for strong ones. rotates: the pseudo-label is a quarter turn. apart: labelled and
    unlabelled images have batch statistics of their own, and running ones are of labelled images alone.
    """

    ratio: int
    threshold: float = 0.0
    temperature: float = 0.0
    strong: Strong = "weak"
    ramp: float = 0.0
    entropy: float = 0.0
    virtual: bool = False
    rotates: bool = False
    apart: bool = False

    def guess(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """q [B, C] and m [B] of scores z [B, C]."""
        weight = (scores.softmax(1).amax(1) >= self.threshold).to(scores.dtype)
        if self.temperature == 0:
            return F.one_hot(scores.argmax(1), scores.shape[1]).to(scores.dtype), weight
        return (scores / self.temperature).softmax(1), weight


@dataclass(frozen=True, eq=False)
class Guesses(PseudoLabels):
    """target: [B, C], a distribution over the classes. weight: [B]. labelled: bool [B], whether the class is known."""

    target: Tensor
    weight: Tensor
    labelled: Tensor

    def __getitem__(self, index: Index) -> Guesses:
        return Guesses(self.target[index], self.weight[index], self.labelled[index])


class Learner(Method[Guesses]):
    """L as above: `clean_loss` is that of the labelled images, `loss`, of hard examples, that of the unlabelled ones.

    Either is multiplied by the share of its images in a batch, inverted, so that the mean over a batch is the mean over
    them; the hard example of a labelled image counts 0. What is scored is a slow copy of the network,
    θ′ ← m·θ′ + (1 − m)·θ with m = min(momentum, (1 + k) / (10 + k)) after step k, so that it means something in short
    trainings; its batch statistics are those of the network.
    """

    labels_from_embedding = True

    def __init__(
        self,
        rule: Rule,
        backbone: nn.Module,
        head: nn.Linear,
        classes: Tensor,
        setting: Setting,
        momentum: float,
    ) -> None:
        """head: features -> scores. classes: int64 [N], that of every labelled image, and −1 of all others."""
        super().__init__()
        self.rule = rule
        self.momentum = momentum
        self.encoder, self.twin = Encoder.with_twin(backbone, head, setting)
        self.classes = nn.Buffer(classes)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """The scores, [V, B, C]."""
        count = len(crops[0]) // (1 + self.rule.ratio) if self.rule.apart else len(crops[0])
        scores: Tensor = self.encoder.project(tuple(crop[:count] for crop in crops), branch)
        if self.rule.apart:
            unlabelled = tuple(crop[count:] for crop in crops)
            scores = torch.cat(
                [scores, self.encoder.project(unlabelled, replace(branch, update=False))], 1
            )
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> Guesses:
        assert embedding is not None
        target, weight = self.rule.guess(embedding[0])
        labelled = torch.arange(len(batch), device=weight.device) * (1 + self.rule.ratio) < len(
            batch
        )
        known = F.one_hot(self.classes[batch.index[labelled]], target.shape[1]).to(target.dtype)
        return Guesses(
            torch.cat([known, target[len(known) :]]), weight.masked_fill(labelled, 1.0), labelled
        )

    def clean_loss(self, embedding: Tensor, labels: Guesses) -> Tensor:
        loss = cross_entropy(embedding, labels.target) * self._of_labelled(labels)
        if self.rule.entropy:
            entropy = cross_entropy(embedding, embedding.softmax(-1))
            loss = loss + self.rule.entropy * entropy * self._of_unlabelled(labels)
        return loss

    def loss(self, embedding: Tensor, labels: Guesses) -> Tensor:
        return cross_entropy(embedding, labels.target) * (
            labels.weight * self._of_unlabelled(labels)
        )

    def _of_labelled(self, labels: Guesses) -> Tensor:
        """Factors [B] that make the mean over a batch that over its labelled images."""
        return labels.labelled * (1.0 + self.rule.ratio)

    def _of_unlabelled(self, labels: Guesses) -> Tensor:
        return ~labels.labelled * (1.0 + 1 / self.rule.ratio)

    def directions(self, embedding: Tensor) -> None:
        return None

    def commit(
        self,
        batch: Batch,
        embedding: Tensor,
        labels: Guesses,
    ) -> None:
        follow(self.twin, self.encoder, min(self.momentum, (1 + batch.step) / (10 + batch.step)))
        fast = dict(self.encoder.named_buffers())
        for name, slow in self.twin.named_buffers():
            slow.copy_(fast[name])


class RotationLearner(Learner):
    """S4L (Zhai et al., ICCV 2019): every image in four rotations, each recognised as what it is; no pseudo-class.

        L = 1/(4·B_l) Σ_labelled,r CE(y, z(x_r))  +  λ_u · 1/(4·B) Σ_all,r CE(r, t(x_r))

    z and t are the first C and the last four of the scores; the class is asked of rotated labelled images too, as
    there. λ_u is `weight`. Hard examples are made of these views and have the same loss.
    """

    num_turns = 4

    def __init__(self, *given: Any, weight: float) -> None:
        super().__init__(*given)
        self.weight = weight

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(torch.rot90(batch.crops[0], turns, (2, 3)) for turns in range(self.num_turns))

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> Guesses:
        return super().pseudo_labels(
            batch, None if embedding is None else embedding[..., : -self.num_turns]
        )

    def clean_loss(self, embedding: Tensor, labels: Guesses) -> Tensor:
        scores, turned = embedding.tensor_split((-self.num_turns,), -1)
        turns = torch.eye(self.num_turns, device=turned.device)[: len(turned), None]  # [V, 1, 4]
        loss = cross_entropy(scores, labels.target) * self._of_labelled(labels)
        return loss + self.weight * cross_entropy(turned, turns)

    def loss(self, embedding: Tensor, labels: Guesses) -> Tensor:
        return self.clean_loss(embedding, labels)


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """−Σ_c target_c · log softmax(scores)_c, [V, B], of scores [V, B, C] and distributions [B, C] or [V, B, C]."""
    return -(target * scores.log_softmax(-1)).sum(-1)
