"""A method of your own in one file: VICReg, trained with adversarial and cut-mixed views.

VICReg (Bardes et al., 2022, arXiv 2105.04906) needs no negatives and no momentum encoder. It makes the embeddings Z and
Z' [n, d] of two views of n images alike, and keeps every dimension varied and uncorrelated with the others:

    L = λ·s(Z, Z') + μ·[v(Z) + v(Z')] + ν·[c(Z) + c(Z')]

The pseudo-label of a view is the embedding of the other view. Hard examples are compared with this label, too.

Run: python examples/own_method.py
"""

import argparse
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hexa
from hexa import recipes
from hexa.core import Batch, Branch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder
from hexa.recipes.experiment import Experiment, override
from hexa.runtime import processes


class VICRegConfig(EncoderConfig):
    """The fields of VICReg, which are options of the command line, too. The factors are those of the paper."""

    name: Literal["vicreg"] = "vicreg"
    num_views: ClassVar = (2, 2, "VICReg compares two views")
    dim: int = 128
    """Width of the embedding, d."""
    invariance: float = 25.0
    """Factor λ of the distance between the embeddings of two views."""
    variance: float = 25.0
    """Factor μ of the variance term."""
    covariance: float = 1.0
    """Factor ν of the covariance term."""


@dataclass(frozen=True, eq=False)
class OtherView(PseudoLabels):
    """The embedding of the other view of each image, without gradient."""

    embedding: Tensor  # [V, B, D]

    def __getitem__(self, index: Index) -> "OtherView":
        return replace(self, embedding=self.embedding[:, index])


class VICReg(Method[OtherView], config=VICRegConfig):
    """Variance-invariance-covariance regularisation."""

    # Make the pseudo-labels of the clean embedding instead of a pass of their own.
    labels_from_embedding = True

    def __init__(self, config: VICRegConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        width = config.dim
        expander = nn.Sequential(
            nn.Linear(num_features(backbone), width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width, bias=False),
        )
        self.encoder = Encoder.branched(backbone, expander, setting, config.bn_groups)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """Return embeddings [V, B, D] whose lengths are not normalised, in fp32 or better."""
        rows = self.encoder.project(crops, branch)
        return rows.to(torch.promote_types(rows.dtype, torch.float32))

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> OtherView:
        return OtherView(embedding.flip(0))

    def clean_loss(self, embedding: Tensor, labels: OtherView) -> Tensor:
        # Back-propagate through both views.
        return self._loss(embedding, embedding.flip(0))

    def loss(self, embedding: Tensor, labels: OtherView) -> Tensor:
        return self._loss(embedding, labels.embedding[: len(embedding)])

    def _loss(self, embedding: Tensor, other: Tensor) -> Tensor:
        """Return the loss of each view and image, [V, B]; the mean over two views is L."""
        # Average over dimensions, as algorithm 1 of the paper does; equation 5 has the sum.
        distance = (embedding - other).square().mean(-1)  # [V, B]
        # Measure variance and covariance on the images of all processes.
        rows = processes.all_gather_with_gradient(embedding.transpose(0, 1)).transpose(0, 1)
        spread = self.config.variance * variance_term(rows)
        redundancy = self.config.covariance * covariance_term(rows)
        # L has the sum over the two views, and the mean halves it.
        regularisation = 2 * (spread + redundancy)  # [V]
        return self.config.invariance * distance + regularisation[:, None]


def variance_term(rows: Tensor) -> Tensor:
    """v(Z) = 1/d · Σ_j max(0, 1 − √(Var(z_j) + 1e-4)) of each view, [V, n, d] -> [V] (equation 1)."""
    deviation = (rows.var(1) + 1e-4).sqrt()
    return F.relu(1 - deviation).mean(-1)


def covariance_term(rows: Tensor) -> Tensor:
    """c(Z) = 1/d · Σ_{i≠j} C(Z)_ij² of each view, [V, n, d] -> [V] (equations 3 and 4)."""
    centred = rows - rows.mean(1, keepdim=True)
    covariance = centred.mT @ centred / (rows.shape[1] - 1)  # [V, d, d]
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    squares = covariance.square().sum((-2, -1)) - diagonal.square().sum(-1)
    return squares / rows.shape[-1]


def digits() -> Experiment:
    """Return the recipe: VICReg on the embedded digits, with adversarial and cut-mixed views."""
    changes = {
        "network.widths": (16, 32, 64),
        "method": {"name": "vicreg"},
        "hard_examples": {"adversarial": {"kind": "adversarial"}, "cutmix": {"kind": "cutmix"}},
        "optimizer": {"name": "adamw", "learning_rate": 0.002},
        "epochs": 8,
    }
    return override(recipes.get("digits-moco-v2"), changes)


def main() -> None:
    parser = argparse.ArgumentParser(description="VICReg with hard examples on digits")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the images (default: 8)")
    parser.add_argument("--out", default="runs/vicreg", help="folder of the run")
    options = parser.parse_args()
    recipe = f"{__file__}:digits"
    before = hexa.evaluate("knn", f"random:{recipe}", "digits")
    print(f"k-NN of random features: {before['metrics']['top1']:.1f} %")
    run = hexa.pretrain(recipe, epochs=options.epochs, out=options.out)
    after = hexa.evaluate("knn", run, "digits")
    print(f"k-NN of trained features: {after['metrics']['top1']:.1f} %")


if __name__ == "__main__":
    main()
