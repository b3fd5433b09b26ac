"""Prototypical contrast as pure functions: the loss, its temperatures, and the choice of prototypes
to compare with.

Li et al., Prototypical Contrastive Learning of Unsupervised Representations, ICLR 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hexa.ops.kmeans import UNASSIGNED
from hexa.runtime import processes
from hexa.runtime.precision import at_least_fp32

#: Number of rows whose distances are in memory at a time.
_CHUNK = 65536
#: Lower bound of concentrations, as a share of τ; only clusters of identical images reach it.
_LOWEST = 0.01


def proto_nce(query: Tensor, prototypes: Tensor, concentrations: Tensor, targets: Tensor) -> Tensor:
    """ProtoNCE of one clustering, in fp32 or better.

        ℓ = −log [ exp(q·c_s/φ_s) / Σ_j exp(q·c_j/φ_j) ]

    query: [..., D], unit rows.
    prototypes c: [M, D], unit rows.
    concentrations φ: [M].
    targets s: int64 [...], indices into the prototypes, or −100 for none.
    Returns [...], 0 without a target. Only the query receives a gradient.
    """
    with torch.autocast(query.device.type, enabled=False):
        rows = at_least_fp32(query).flatten(0, -2)
        scaled = prototypes.detach() / concentrations.detach()[:, None]
        losses = functional.cross_entropy(
            rows @ scaled.to(rows.dtype).T,
            targets.flatten(),
            ignore_index=UNASSIGNED,
            reduction="none",
        )
        return losses.view(targets.shape)


@torch.no_grad()
def concentrations(
    rows: Tensor, centroids: Tensor, assignments: Tensor, temperature: float
) -> Tensor:
    """Return the concentration of each cluster, its temperature φ, [K].

        φ_k = Σ_{i: a_i = k} ‖v_i − c_k‖ / (n_k · ln(n_k + 10))

    Clusters with at most one row get the largest value of the others. Values are then clipped to
    their 10th and 90th percentiles, scaled to a mean of τ, and raised to at least τ / 100 (not in
    the published code). Distances are to the unit centroid; the published code uses the
    unnormalised mean of the rows.

    rows: [n, D], unit length, of this process; other processes may have more or fewer.
    centroids: [K, D].
    assignments: int64 [n].
    temperature: τ.
    The result is the same on every process, and bit-identical from call to call.
    """
    count = len(centroids)
    pairs = zip(torch.split(rows, _CHUNK), torch.split(assignments, _CHUNK), strict=True)
    parts = [torch.linalg.vector_norm(part - centroids[own], dim=1) for part, own in pairs]
    distances = torch.cat(parts)
    cluster = assignments.cpu()  # a GPU adds in an undefined order
    total = torch.bincount(cluster, distances.double().cpu(), count).double()
    sizes = torch.bincount(cluster, minlength=count).double()
    total, sizes = processes.all_reduce_sum(torch.stack([total, sizes]).to(rows.device))
    several = sizes > 1
    phi = torch.where(several, total / (sizes * (sizes + 10).log()), 0)
    phi = torch.where(several, phi, phi.max())
    phi = phi.clamp(*phi.quantile(phi.new_tensor([0.1, 0.9])))
    mean = phi.mean()
    scaled = torch.where(mean > 0, temperature * phi / mean, temperature)
    return scaled.clamp_min(_LOWEST * temperature).to(centroids.dtype)


@torch.no_grad()
def compare(
    own: Tensor,
    everyone: Tensor,
    num_prototypes: int,
    num_compared: int,
    order: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the prototypes that a batch is compared with, and the index of each image's positive
    among them.

    They are the positives of all images and random others, `num_compared` in total; all prototypes
    if there are no more. All are distinct, so an image's positive is never among its negatives.

    own: int64 [B], clusters of the images, −100 for none.
    everyone: [W·B], clusters of all processes' images, with at most `num_compared` distinct values.
    order: a random permutation of the prototypes, [K], the same on every process.
    Returns indices of prototypes [M], and for each image the index of its positive among them [B],
    −100 for none.
    """
    if num_prototypes <= num_compared:
        return torch.arange(num_prototypes, device=own.device), own
    first = order.new_zeros(num_prototypes + 1)  # the last entry is for images without a cluster
    first.index_fill_(0, torch.where(everyone >= 0, everyone, num_prototypes), num_prototypes)
    compared = (order + first[:-1]).topk(num_compared).indices
    numbers = torch.arange(num_compared, device=own.device)
    place = torch.empty_like(order).index_copy_(0, compared, numbers)
    return compared, torch.where(own >= 0, place[own.clamp_min(0)], UNASSIGNED)
