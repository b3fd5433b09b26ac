"""Measures of a backbone that need no labels; none of them tells which of two is better (docs/compare.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hexa.evaluation.label_free import NEIGHBOURS, label_free
from hexa.evaluation.protocols.knn import knn_classify
from hexa.ops.kmeans import spherical_kmeans
from hexa.runtime.random import Stream

#: The measures, and which way is good, where one is.
ARROWS = {
    **dict.fromkeys(("neighbours", "clusters", "alignment", "uniformity"), "↑"),
    **dict.fromkeys(("rank", "LiDAR", "alpha"), ""),
    "learnability": "↑",
    "dimension": "",
    "mixing": "↑",
}


#: Rows of similarities that are held at a time.
_CHUNK = 512


@dataclass(frozen=True)
class Passes:
    """Features [N, D] of N images, of two random views of each, and of each cut-mixed with a partner."""

    images: Tensor
    """[N, D], of the images."""
    first: Tensor
    """[N, D], of a random view of each."""
    second: Tensor
    """[N, D], of another view of each."""
    mixed: Tensor
    """[N, D], of each cut-mixed with its partner."""
    partners: Tensor
    """int64 [N], the row of the partner."""
    shares: Tensor
    """float [N], λ: how much of the mixed image is the image's own."""


@torch.no_grad()
def measures(passes: Passes, seed: int = 0) -> dict[str, float]:
    """Those of `label_free`, and more; x, a, b, m are features of images, views and mixtures.

    All are centred on the mean of the images and brought to unit length first, which the papers do not do.

    LiDAR        exp(−Σ p log p), p the shares of the eigenvalues of Σw^−½ Σb Σw^−½, of the features of views between
                 and within images                                            (Thilak et al. 2023)
    alpha        −slope of log eigenvalue by log index of the covariance of x (α-ReQ, Agrawal et al. 2022)
    learnability the accuracy in percent of k-NN on clusters of x, CL         (CLID, Lu et al. 2023)
    dimension    the intrinsic dimension of x by two nearest neighbours, ID   (CLID; TwoNN, Facco et al. 2017)
    mixing       the correlation in percent of λ with cos(m, x) − cos(m, x_partner): whether what is between two
                 images lies between their features
    """
    mean = passes.images.mean(0)
    every = (passes.images, passes.first, passes.second, passes.mixed)
    x, a, b, m = (functional.normalize(one.float() - mean, dim=1) for one in every)
    lean = (m * x).sum(1) - (m * x[passes.partners]).sum(1)
    return label_free(passes.images, passes.first, passes.second, seed) | {
        "LiDAR": _lidar(a, b),
        "alpha": _alpha(x),
        "learnability": 100 * _learnability(x, seed),
        "dimension": _dimension(x),
        "mixing": 100
        * float(torch.corrcoef(torch.stack([lean, passes.shares.float()]))[0, 1].nan_to_num()),
    }


def _lidar(a: Tensor, b: Tensor, ridge: float = 1e-4) -> float:
    """With the two views of an image as its class; ridge: δ of Σw + δI."""
    centre = (a + b).double() / 2
    half = (a - b).double() / 2
    within = 2 * half.T @ half / len(half)
    values, vectors = torch.linalg.eigh(within + ridge * torch.eye(len(within), dtype=within.dtype))
    root = vectors * values.clamp_min(ridge).rsqrt()
    found = torch.linalg.eigvalsh(root.T @ torch.cov(centre.T) @ root).clamp_min(0)
    return float(torch.special.entr(found / found.sum().clamp_min(1e-30)).sum().exp())


def _alpha(x: Tensor) -> float:
    """Over the eigenvalues from the tenth to the half of them; fewer where there are not as many, 0 for under three."""
    values = torch.linalg.svdvals(x.double()).square()
    values = values[values > values[0] * 1e-9]
    if len(values) < 3:
        return 0.0
    kept = values[min(10, len(values) // 4) : max(len(values) // 2, 3)]
    index = torch.arange(1, len(kept) + 1, dtype=torch.float64) + min(10, len(values) // 4)
    return -float(np.polyfit(index.log().numpy(), kept.log().numpy(), 1)[0])


def _learnability(x: Tensor, seed: int) -> float:
    """The share of images whose cluster is that of most of their nearest neighbours."""
    stream = Stream(seed).child("learnability")
    clusters = max(2, round(len(x) ** 0.5))
    found = spherical_kmeans(x, clusters, stream.generator(x.device), precision="fp32").assignments
    order = torch.randperm(len(x), generator=stream.child("order").generator())
    half = len(x) // 2
    right = 0
    for fit, test in ((order[:half], order[half:]), (order[half:], order[:half])):
        votes = knn_classify(x[fit], found[fit], x[test], NEIGHBOURS, num_classes=clusters)
        right += int((votes.argmax(1) == found[test]).sum())
    return right / len(x)


def _dimension(x: Tensor) -> float:
    """The maximum-likelihood estimate N / Σ log(r₂ / r₁) of the distances to the two nearest images; 0 if all agree."""
    near = torch.cdist(x, x).fill_diagonal_(torch.inf).topk(2, largest=False).values.clamp_min(1e-6)
    total = float((near[:, 1] / near[:, 0]).log().sum())
    return len(x) / total if total else 0.0


@torch.no_grad()
def neighbours(features: Tensor, k: int = NEIGHBOURS, rows: Tensor | None = None) -> Tensor:
    """The k images most similar to each of these rows, or to all, itself left out: int64 [n, k].

    By cosine of centred features [N, D]; the similarities are made in chunks.
    """
    x = functional.normalize(features.float() - features.float().mean(0), dim=1)
    rows = torch.arange(len(x)) if rows is None else rows
    similar = (
        (x[part] @ x.T).scatter_(1, part[:, None], -2.0) for part in torch.split(rows, _CHUNK)
    )
    return torch.cat([one.topk(min(k, len(x) - 1)).indices for one in similar])


def kept(reference: Tensor, other: Tensor, rows: Tensor | None = None) -> Tensor:
    """The share of the nearest of these rows, or of all, that survives from features [N, D] to others [N, D'];
    float [n]."""
    a, b = (neighbours(one, rows=rows) for one in (reference, other))
    return (a[:, :, None] == b[:, None, :]).any(2).double().mean(1)
