"""Prototypical contrast as pure functions: its loss, its temperatures, and the prototypes that a batch is compared to.

Li et al., Prototypical Contrastive Learning of Unsupervised Representations, ICLR 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hexa.ops.kmeans import UNASSIGNED
from hexa.runtime import processes

#: Rows whose distances are alive at a time.
_CHUNK = 65536
#: No concentration is below this share of the temperature: a tenth of the clusters may hold copies of one image.
_LOWEST = 0.01


def proto_nce(query: Tensor, prototypes: Tensor, concentrations: Tensor, targets: Tensor) -> Tensor:
    """ProtoNCE of one clustering, in fp32 at least.

        ℓ = −log [ exp(q·c_s/φ_s) / Σ_j exp(q·c_j/φ_j) ]

    query: [..., D], unit rows. prototypes c: [M, D], unit rows, s among them. concentrations φ: [M]. targets s:
    int64 [...], −100 where there is none. Returns [...], 0 where there is no target. Only the query gets a gradient.
    """
    with torch.autocast(query.device.type, enabled=False):
        dtype = torch.promote_types(query.dtype, torch.float32)
        scaled = (prototypes.detach() / concentrations.detach()[:, None]).to(dtype)
        scores = query.to(dtype).flatten(0, -2) @ scaled.T
        losses = functional.cross_entropy(scores, targets.flatten(), ignore_index=UNASSIGNED, reduction="none")
        return losses.view(targets.shape)


@torch.no_grad()
def concentrations(rows: Tensor, centroids: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """How concentrated each cluster is: its temperature φ, [K].

        φ_k = Σ_{i: a_i = k} ‖v_i − c_k‖ / (n_k · ln(n_k + 10))

    A cluster of one row or none gets the largest of the others. Then values are clipped to between their 10th and 90th
    percentile and scaled to a mean of τ; at least τ / 100 (published: without), which only copies of an image would
    fall below. Distances are to the unit centroid; the published code's are to the mean of the rows, unscaled.

    rows: [n, D], unit length, those of this process; others may hold more or fewer. centroids: [K, D]. assignments:
    int64 [n]. temperature: τ. The same on every process. Sums are added in the order of the rows, so they are the same
    bits every time.
    """
    count = len(centroids)
    pairs = zip(torch.split(rows, _CHUNK), torch.split(assignments, _CHUNK), strict=True)
    distances = torch.cat([torch.linalg.vector_norm(part - centroids[own], dim=1) for part, own in pairs])
    cluster = assignments.cpu()  # adding up on a GPU would be in any order
    total = torch.bincount(cluster, distances.double().cpu(), count).double()
    sizes = torch.bincount(cluster, minlength=count).double()
    total, sizes = processes.all_reduce_sum(torch.stack([total, sizes]).to(rows.device))
    several = sizes > 1
    found = torch.where(several, total / (sizes * (sizes + 10).log()), 0)
    found = torch.where(several, found, found.max())
    found = found.clamp(*found.quantile(found.new_tensor([0.1, 0.9])))
    mean = found.mean()
    scaled = torch.where(mean > 0, temperature * found / mean, temperature)
    return scaled.clamp_min(_LOWEST * temperature).to(centroids.dtype)


@torch.no_grad()
def compare(
    own: Tensor, everyone: Tensor, num_prototypes: int, num_compared: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The prototypes that the images of a batch are told apart by, and which of these is each image's.

    The positives of all images, and random others up to `num_compared`; all prototypes if there are no more. None
    comes twice, so an image's positive is never among its negatives.

    own: int64 [B], the clusters of the images, −100 for none. everyone: [W·B], those of all processes, of which there
    are at most `num_compared` different ones. generator: on their device, in the same state on every process.
    Returns the numbers of prototypes [M], and for each image the place of its own among them [B], −100 for none.
    """
    if num_prototypes <= num_compared:
        return torch.arange(num_prototypes, device=own.device), own
    order = torch.randperm(num_prototypes, generator=generator, device=own.device)
    first = order.new_zeros(num_prototypes + 1)  # the last takes what has no cluster, so nothing need be counted
    first.index_fill_(0, torch.where(everyone >= 0, everyone, num_prototypes), num_prototypes)
    compared = (order + first[:-1]).topk(num_compared).indices
    place = torch.empty_like(order).index_copy_(0, compared, torch.arange(num_compared, device=own.device))
    return compared, torch.where(own >= 0, place[own.clamp_min(0)], UNASSIGNED)
