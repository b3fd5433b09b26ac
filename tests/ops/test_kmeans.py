"""Spherical k-means against a loop written down plainly in fp64, against faiss, and over two processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from hexa.ops import kmeans
from hexa.ops.kmeans import Clusters, spherical_kmeans
from hexa.runtime import processes
from tests.distributed.together import run_together

K = 12
#: Of the rows of `clouds`, those of the first process; not half.
FIRST = 130


@pytest.fixture(params=[False, True], ids=["fp32", "bf16"])
def rounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return bool: pretend that the processor multiplies bf16 in hardware."""
    monkeypatch.setattr(kmeans, "has_native_bf16", lambda device: request.param)
    return bool(request.param)


def found_with(monkeypatch: pytest.MonkeyPatch, bf16: bool, rows: Tensor) -> Clusters:
    monkeypatch.setattr(kmeans, "has_native_bf16", lambda device: bf16)
    return spherical_kmeans(rows, 150, seeded())


def clouds(count: int = 300, dim: int = 16) -> Tensor:
    """Unit rows around 20 directions, fp64."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, dim, generator=generator, dtype=torch.float64)
    chosen = torch.randint(20, (count,), generator=generator)
    return normalize(
        centres[chosen] + 0.7 * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    )


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def first(rows: Tensor, count: int = K) -> Tensor:
    """Return the first centroids as documented: rank 0's random order of all rows."""
    return rows[torch.randperm(len(rows), generator=seeded())[:count]]


def naive(rows: Tensor, centroids: Tensor, iterations: int) -> tuple[Tensor, list[int], float]:
    """Compute F7 one row and one cluster at a time."""
    centroids = [c.clone() for c in centroids]

    def nearest() -> list[int]:
        return [
            max(
                range(len(centroids)),
                key=lambda k: float(row @ centroids[k]),
            )
            for row in rows
        ]

    for _ in range(iterations):
        found = nearest()
        for k in range(len(centroids)):
            members = [row for row, a in zip(rows, found, strict=True) if a == k]
            if members:
                mean = torch.stack(members).mean(0)
                centroids[k] = mean / mean.norm()
    found = nearest()
    objective = sum(float(row @ centroids[a]) for row, a in zip(rows, found, strict=True)) / len(
        rows
    )
    return torch.stack(centroids), found, objective


@pytest.mark.parametrize("iterations", [0, 3, None])
def test_kmeans_loop(iterations: int | None) -> None:
    """From the same rows, after exactly that many updates, by default ten; more or fewer give other centroids."""
    rows = normalize(
        torch.randn(200, 8, dtype=torch.float64)
    )  # without structure: still moving after ten
    found = spherical_kmeans(
        rows, K, seeded(), **{} if iterations is None else {"iterations": iterations}
    )
    centroids, assignments, objective = naive(
        rows, first(rows), 10 if iterations is None else iterations
    )
    torch.testing.assert_close(found.centroids, centroids, atol=1e-12, rtol=0)
    assert found.assignments.tolist() == assignments
    assert found.counts.tolist() == [assignments.count(k) for k in range(K)]
    assert found.objective.item() == pytest.approx(objective, abs=1e-12)


def test_kmeans_empty_cluster() -> None:
    """If the first two centroids are equal, the lower index takes all rows; the other does not move
    or become NaN."""
    rows = torch.tensor(
        [
            [1.0, 0.0],
            [0.8, 0.6],
            [1.0, 0.0],
            [0.8, -0.6],
            [1.0, 0.0],
        ],
        dtype=torch.float64,
    )
    found = spherical_kmeans(rows, 5, seeded(), iterations=10)
    empty = found.counts == 0
    assert empty.sum() == 2
    assert torch.equal(
        found.centroids[empty],
        torch.tensor([[1.0, 0.0]] * 2, dtype=torch.float64),
    )
    assert found.objective == 1


def test_kmeans_cancelling_rows() -> None:
    """Rows that cancel leave their centroid where it was."""
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert torch.equal(spherical_kmeans(rows, 1, seeded()).centroids, first(rows, count=1))


@pytest.mark.parametrize("count", [1, 64, 65])
def test_kmeans_nearest_centroids(count: int, rounded: bool) -> None:
    """Centroids are unit rows, and each row has its nearest."""
    rows = clouds(700).float()
    found = spherical_kmeans(rows, count, seeded(), iterations=4)
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(count))
    cosine = rows @ found.centroids.T
    own = cosine.gather(1, found.assignments[:, None])[:, 0]
    torch.testing.assert_close(own, cosine.max(1).values)
    torch.testing.assert_close(found.objective, own.mean())
    assert torch.equal(found.counts, torch.bincount(found.assignments, minlength=count))


def test_kmeans_invalid_rows(rounded: bool) -> None:
    """Invalid rows get −100, and the other rows get the result without them."""
    rows = clouds().float()
    valid = torch.rand(len(rows)) < 0.7
    holes = torch.where(valid[:, None], rows, torch.nan)
    found = spherical_kmeans(holes, K, seeded(), valid=valid)
    alone = spherical_kmeans(rows[valid], K, seeded())
    assert (found.assignments[~valid] == -100).all()
    assert torch.equal(found.assignments[valid], alone.assignments)
    torch.testing.assert_close(found.centroids, alone.centroids)
    assert torch.equal(found.counts, alone.counts)
    torch.testing.assert_close(found.objective, alone.objective)


@pytest.mark.parametrize("width", [1.0, 0.05])
def test_kmeans_bf16_rounding(width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 works also in a narrow cone, whose cosines all round to 1: plain rounding would lose a
    tenth or more of the spread."""
    rows = normalize(torch.tensor([1.0] + [0.0] * 31) + width * clouds(3000, 32).float())
    exact = found_with(monkeypatch, False, rows)
    found = found_with(monkeypatch, True, rows)
    assert found.objective.dtype == torch.float32
    assert (1 - found.objective) / (1 - exact.objective) == pytest.approx(1, abs=0.02)


def test_kmeans_faiss(rounded: bool) -> None:
    """The objective is at least as good as faiss's."""
    faiss = pytest.importorskip("faiss")
    rows = clouds(4000).float()
    theirs = faiss.Kmeans(
        16,
        100,
        niter=10,
        nredo=1,
        spherical=True,
        max_points_per_centroid=10**6,
    )
    theirs.train(rows.numpy(), init_centroids=first(rows, count=100).numpy())
    reached = (rows @ torch.from_numpy(theirs.centroids).T).max(1).values.mean()
    assert spherical_kmeans(rows, 100, seeded()).objective > reached - 5e-4


def work() -> dict[str, Any]:
    rank = processes.rank()
    rows = clouds()
    valid = torch.arange(300) % 9 != 0
    part = slice(None, FIRST) if rank == 0 else slice(FIRST, None)
    results = {
        "all": spherical_kmeans(rows[part], K, seeded(), valid=valid[part]),
        # of rank 1 nothing but its rows is asked for: rank 0's draw decides
        "other seed": spherical_kmeans(rows[part], K, seeded(5 + rank), valid=valid[part]),
        "none here": spherical_kmeans(rows[: 300 * (1 - rank)], K, seeded()),
        # more than either has
        "many": spherical_kmeans(rows[part], 200, seeded()),
    }
    return {name: vars(clusters) for name, clusters in results.items()}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return run_together(2, work)


@pytest.mark.parametrize("case", ["all", "other seed", "none here", "many"])
def test_kmeans_uneven_shards(two: list[dict[str, Any]], case: str) -> None:
    """Two processes with uneven shards equal one."""
    rows = clouds()
    valid = torch.arange(300) % 9 != 0
    one = spherical_kmeans(
        rows,
        200 if case == "many" else K,
        seeded(),
        valid=None if case in ("none here", "many") else valid,
    )
    found = [Clusters(**results[case]) for results in two]
    assert torch.equal(torch.cat([part.assignments for part in found]), one.assignments)
    for part in found:
        torch.testing.assert_close(part.centroids, one.centroids, atol=1e-12, rtol=0)
        torch.testing.assert_close(part.objective, one.objective, atol=1e-12, rtol=0)
        assert torch.equal(part.counts, one.counts)
    assert torch.equal(found[0].centroids, found[1].centroids)
