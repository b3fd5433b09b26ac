"""Spherical k-means as a pure function, for rows in one process or sharded over several (F7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hexa.runtime import processes
from hexa.runtime.precision import at_least_fp32, has_native_bf16

#: Assignment of an excluded row; cross-entropy ignores it.
UNASSIGNED = -100

#: Number of rows whose similarities are in memory at a time; 4096 no longer fit a CPU's cache.
_CHUNK = 512
#: Columns per vectorised maximum; with 16 or 32 PyTorch falls back to a loop over scalars.
_WIDTH = 64
#: Maximum number of rows in one sum; longer sums are split, for accuracy and an even load.
_PIECE = 1024


@dataclass(frozen=True)
class Clusters:
    """The result of `spherical_kmeans`; the same on every process except for `assignments`."""

    centroids: Tensor
    """[K, D], unit rows, fp32 (fp64 for fp64 rows)."""
    assignments: Tensor
    """int64 [n], the nearest centroid of each row of this process; −100 for excluded rows."""
    objective: Tensor
    """Mean cosine of rows to their centroid over all processes, a scalar; higher is better."""
    counts: Tensor
    """int64 [K], number of rows in each cluster over all processes."""


@torch.no_grad()
def spherical_kmeans(
    rows: Tensor,
    num_clusters: int,
    generator: torch.Generator,
    *,
    iterations: int = 10,
    valid: Tensor | None = None,
) -> Clusters:
    """Cluster unit rows by cosine similarity: `iterations` × (E, M), then one more E (F7).

        E:  a_i = argmax_k e_i·c_k        M:  c_k = s_k / ‖s_k‖ with s_k = Σ_{i: a_i = k} e_i

    The first centroids are K distinct rows. A centroid without rows, or whose rows cancel, does not
    move.

    rows: [n, D], unit length, of this process; other processes may have more, fewer or none. fp64
    rows are clustered in fp64, others in fp32; but on CPUs that multiply bf16 in hardware, all
    E-steps except the last round rows, centroids and similarities to bf16.
    valid: bool [n], rows to cluster; the values of other rows do not matter.
    generator: in the same state on every process.

    The same arguments give the same bits on one machine, on CPU and CUDA: there are no atomic
    additions. If the same rows are spread over another number of processes, the first centroids are
    the same and the sums differ only by rounding.

    Raises ValueError, on all processes, if they have fewer than K valid rows in total.
    """
    with torch.autocast(rows.device.type, enabled=False):
        rows = at_least_fp32(rows.detach()).contiguous()
        shard = _Shard(rows, valid)
        if num_clusters > shard.total:
            raise ValueError(
                f"{num_clusters} clusters for {shard.total} rows; use at most {shard.total}"
            )
        centroids = _first_centroids(shard, num_clusters, generator)
        work = rows.dtype
        # a GPU clusters all of ImageNet in a second in fp32, so bf16 would save nothing
        if work == torch.float32 and rows.device.type == "cpu" and has_native_bf16(rows.device):
            work = torch.bfloat16
        for _ in range(iterations):
            nearest = _assign(rows, centroids, work)[0]
            sums = processes.all_reduce_sum(_sums(shard, nearest, num_clusters))  # [K, D]
            # the normalised mean is the normalised sum, so counts stay local; 0 / 0 is discarded
            length = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
            centroids = torch.where(length > 0, sums / length, centroids)
        nearest, cosine = _assign(rows, centroids, rows.dtype)
        counts = processes.all_reduce_sum(_by_cluster(shard, nearest, num_clusters)[1].diff())
        if shard.valid is not None:
            nearest = nearest.where(shard.valid, UNASSIGNED)
            cosine = cosine.where(shard.valid, 0)
        objective = processes.all_reduce_sum(cosine.double().sum()) / shard.total
        return Clusters(centroids, nearest, objective.to(rows.dtype), counts)


def memory_note(
    held: str,
    vectors: int,
    dim: int,
) -> str:
    """Return a line for users: the memory of `vectors` of `dim` fp32 numbers."""
    megabytes = vectors * dim * torch.float32.itemsize / 1e6
    return f"{held} × {dim} per process, {megabytes:,.1f} MB"


class _Shard:
    """This process's rows, a mask of the valid ones, and their position among the rows of all
    processes."""

    def __init__(
        self,
        rows: Tensor,
        valid: Tensor | None,
    ) -> None:
        self.rows = rows  # [n, D]
        self.valid = None if valid is None else valid.to(rows.device)  # [n]
        self.count = len(rows) if self.valid is None else int(self.valid.sum())
        counts = processes.all_gather(torch.tensor([self.count], device=rows.device)).tolist()
        self.before = sum(counts[: processes.rank()])
        self.total = sum(counts)


def _first_centroids(
    shard: _Shard,
    num_clusters: int,
    generator: torch.Generator,
) -> Tensor:
    """Return [K, D]: distinct random rows of all processes.

    The original draws from the rows of rank 0 only. Here rank 0 draws from all rows in rank order.
    The result therefore does not depend on the number of processes, no rank needs K rows, and every
    image can be drawn.
    """
    rows = shard.rows
    order = torch.randperm(shard.total, generator=generator, device=generator.device)
    drawn = order[:num_clusters].to(rows.device)
    drawn = processes.all_reduce_sum(drawn if processes.is_main() else torch.zeros_like(drawn))
    place = drawn - shard.before
    here = (place >= 0) & (place < shard.count)
    chosen = place[here]
    if shard.valid is not None:
        chosen = shard.valid.nonzero().squeeze(1)[chosen]
    centroids = rows.new_zeros(num_clusters, rows.shape[1])
    centroids[here] = rows[chosen]
    return functional.normalize(processes.all_reduce_sum(centroids), dim=1)


def _assign(rows: Tensor, centroids: Tensor, work: torch.dtype) -> tuple[Tensor, Tensor]:
    """E-step: return the nearest centroid [K, D] of each row [n, D], int64 [n], and its cosine [n].

    Features of a network often form a narrow cone, whose cosines bf16 cannot distinguish. In bf16,
    deviations from the mean m of the centroids are used instead: e·c = (e − m)·(c − m) + m·c + a
    constant per row, which the returned cosine omits.
    """
    # copies of the last centroid pad the last block; if a copy wins, it counts as the last centroid
    last = len(centroids) - 1
    width = -(-len(centroids) // _WIDTH) * _WIDTH
    filled = centroids[torch.arange(width, device=rows.device).clamp(max=last)]
    mean = centroids.mean(0)
    offset = filled @ mean
    offset = (offset - offset.mean()).to(work)
    deviations = (filled - mean).to(work)
    parts = []
    for part in torch.split(rows, _CHUNK):
        if work == rows.dtype:
            score = part @ filled.T
        else:
            score = torch.addmm(offset, (part - mean).to(work), deviations.T)
        parts.append(_row_maximum(score))
    cosine, nearest = (torch.cat(found) for found in zip(*parts, strict=True))
    return nearest.clamp_(max=last), cosine.to(rows.dtype)


def _row_maximum(score: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of each row and its column, [R, columns] -> [R], [R].

    PyTorch's `max` with indices is not vectorised on a CPU. Here the vectorised `amax` finds the
    residue of the column number, and only the few columns with this residue are searched again.
    """
    blocks = score.view(len(score), score.shape[1] // _WIDTH, _WIDTH)  # [R, columns / width, width]
    value, residue = blocks.amax(1).max(1)
    candidates = blocks.gather(2, residue[:, None, None].expand(-1, blocks.shape[1], 1)).squeeze(2)
    return value, candidates.argmax(1).mul_(_WIDTH).add_(residue)


def _by_cluster(
    shard: _Shard,
    nearest: Tensor,
    num_clusters: int,
) -> tuple[Tensor, Tensor]:
    """Return the valid rows ordered by cluster [count], and the first position of each cluster in
    that order [K + 1]."""
    key = nearest if shard.valid is None else nearest.where(shard.valid, num_clusters)
    ordered, order = key.sort(stable=True)
    every = torch.arange(num_clusters + 1, device=key.device)
    return order[: shard.count], torch.searchsorted(ordered, every)


def _sums(
    shard: _Shard,
    nearest: Tensor,
    num_clusters: int,
) -> Tensor:
    """M-step: return the sum of each cluster's rows of this process, [K, D], added in a fixed
    order.

    `index_add_` on a GPU adds atomically, in any order. Here one thread sums a bag of sorted rows
    without copying them; large clusters are split into bags of at most 1024 rows.
    """
    order, starts = _by_cluster(shard, nearest, num_clusters)
    pieces = torch.arange(0, shard.count, _PIECE, device=order.device)
    cuts = torch.cat([starts, pieces]).sort().values
    parts = functional.embedding_bag(order, shard.rows, cuts, mode="sum", include_last_offset=True)
    whole = torch.arange(len(parts), device=order.device)
    bags = torch.searchsorted(cuts, starts)
    return functional.embedding_bag(whole, parts, bags, mode="sum", include_last_offset=True)
