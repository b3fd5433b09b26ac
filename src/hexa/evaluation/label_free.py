"""What features are worth, as far as that can be measured without labels; `docs/your-own-images.md` says how far."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hexa.ops.kmeans import spherical_kmeans
from hexa.runtime.random import Stream

#: Neighbours that are compared.
NEIGHBOURS = 10
#: Images per cluster, and the largest number of clusters.
_PER_CLUSTER = 20
_MOST_CLUSTERS = 50


@torch.no_grad()
def label_free(images: Tensor, first: Tensor, second: Tensor, seed: int = 0) -> dict[str, float]:
    """Measures of features [N, D] of N images and of two random views of each, all of which are better when higher.

    Features are centred on the mean of `images` and brought to unit length: x of an image, a and b of its views.

        rank         exp(−Σ p log p), p = σ / Σ σ of the singular values σ of x     (RankMe, Garrido et al. 2023)
        alignment    −mean ‖a − b‖²                                                  (Wang & Isola 2020)
        uniformity   −log mean exp(−2 ‖x_i − x_j‖²) over i ≠ j                       (the same)
        neighbours   the share of the 10 images nearest to a, but its own, that are among those nearest to b, in percent
        clusters     the adjusted Rand index of clusters of all a and clusters of all b, in percent
    """
    mean = images.float().mean(0)
    x, a, b = (
        functional.normalize(features.float() - mean, dim=1) for features in (images, first, second)
    )
    values = torch.linalg.svdvals(x)
    return {
        "rank": torch.special.entr(values / values.sum().clamp_min(torch.finfo(values.dtype).tiny))
        .sum()
        .exp()
        .item(),
        "alignment": -(a - b).square().sum(1).mean().item(),
        "uniformity": -torch.pdist(x).square().mul(-2).exp().mean().log().item()
        if len(x) > 1
        else 0.0,
        "neighbours": 100 * _shared_neighbours(x, a, b),
        "clusters": 100 * _agreement(a, b, seed),
    }


def _shared_neighbours(x: Tensor, a: Tensor, b: Tensor) -> float:
    """The share of the nearest images, but the own one, that two views have in common."""
    k = min(NEIGHBOURS, len(x) - 1)
    if k < 1:
        return 0.0
    own = torch.eye(len(x), dtype=torch.bool, device=x.device)
    first, second = ((view @ x.T).masked_fill(own, -2).topk(k).indices for view in (a, b))
    return float((first[:, :, None] == second[:, None, :]).any(2).sum(1).double().mean()) / k


def _agreement(a: Tensor, b: Tensor, seed: int) -> float:
    """The adjusted Rand index of two clusterings that begin at different images."""
    from sklearn.metrics import adjusted_rand_score

    num_clusters = min(_MOST_CLUSTERS, len(a) // _PER_CLUSTER)
    if num_clusters < 2:
        return 0.0
    stream = Stream(seed).child("label-free clusters")
    assigned = []
    for number, view in enumerate((a, b)):
        generator = stream.child("view", number).generator(view.device)
        assigned.append(
            spherical_kmeans(view, num_clusters, generator, precision="fp32").assignments.cpu()
        )
    return float(adjusted_rand_score(*assigned))
