"""Spherical k-means against a loop written down plainly in fp64, against faiss, and over two processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from hexa.ops.kmeans import Clusters, spherical_kmeans
from hexa.runtime import processes
from tests.distributed.together import run_together

K = 12
#: Of the rows of `clouds`, those of the first process; not half.
FIRST = 130


def clouds(count: int = 300, dim: int = 16, seed: int = 0) -> Tensor:
    """Unit rows around 20 directions, fp64."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, dim, generator=generator, dtype=torch.float64)
    chosen = torch.randint(20, (count,), generator=generator)
    noise = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return normalize(centres[chosen] + 0.7 * noise)


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def first(rows: Tensor, seed: int = 5, count: int = K) -> Tensor:
    """What the documentation says of the start: rank 0's random order of all rows."""
    order = torch.randperm(len(rows), generator=seeded(seed))
    return rows[order[:count]]


def naive(rows: Tensor, centroids: Tensor, iterations: int) -> tuple[Tensor, list[int], float]:
    """F7, a row and a cluster at a time."""
    centroids = [c.clone() for c in centroids]

    def nearest() -> list[int]:
        numbers = range(len(centroids))
        return [max(numbers, key=lambda k: float(row @ centroids[k])) for row in rows]

    for _ in range(iterations):
        found = nearest()
        for k in range(len(centroids)):
            members = [row for row, a in zip(rows, found, strict=True) if a == k]
            if members:
                mean = torch.stack(members).mean(0)
                centroids[k] = mean / mean.norm()
    found = nearest()
    cosines = [float(row @ centroids[a]) for row, a in zip(rows, found, strict=True)]
    objective = sum(cosines) / len(rows)
    return torch.stack(centroids), found, objective


@pytest.mark.parametrize("iterations", [0, 3, None])
def test_it_does_what_a_plain_loop_does(iterations: int | None) -> None:
    """From the same rows, after exactly that many updates, by default ten; more or fewer give other centroids."""
    # without structure: still moving after ten
    rows = normalize(torch.randn(200, 8, dtype=torch.float64))
    options = {} if iterations is None else {"iterations": iterations}
    found = spherical_kmeans(rows, K, seeded(), **options)
    updates = 10 if iterations is None else iterations
    centroids, assignments, objective = naive(rows, first(rows), updates)
    torch.testing.assert_close(found.centroids, centroids, atol=1e-12, rtol=0)
    assert found.assignments.tolist() == assignments
    assert found.counts.tolist() == [assignments.count(k) for k in range(K)]
    assert found.objective.item() == pytest.approx(objective, abs=1e-12)


def test_an_empty_cluster_keeps_its_centroid() -> None:
    """Of two equal first centroids the lower number takes all rows; the other stays, and does not become NaN."""
    points = [
        [1.0, 0.0],
        [0.8, 0.6],
        [1.0, 0.0],
        [0.8, -0.6],
        [1.0, 0.0],
    ]
    rows = torch.tensor(points, dtype=torch.float64)
    found = spherical_kmeans(rows, 5, seeded(), iterations=10)
    empty = found.counts == 0
    assert empty.sum() == 2
    assert found.centroids[empty].tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert found.objective == 1


def test_rows_that_cancel_leave_their_centroid_where_it_was() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    found = spherical_kmeans(rows, 1, seeded(), precision="fp32")
    start = first(rows, count=1)
    assert torch.equal(found.centroids, start)


@pytest.mark.parametrize("count", [1, 64, 65])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_centroids_are_unit_rows_and_each_row_has_its_nearest(count: int, precision: Any) -> None:
    rows = clouds(700).float()
    found = spherical_kmeans(rows, count, seeded(), precision=precision, iterations=4)
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(count))
    cosine = rows @ found.centroids.T
    own = cosine.gather(1, found.assignments[:, None])[:, 0]
    torch.testing.assert_close(own, cosine.max(1).values)
    torch.testing.assert_close(found.objective, own.mean())
    counts = torch.bincount(found.assignments, minlength=count)
    assert torch.equal(found.counts, counts)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_is_deterministic_from_its_seed(precision: Any) -> None:
    rows = clouds(2000).float()
    one = spherical_kmeans(rows, 50, seeded(), precision=precision)
    again = spherical_kmeans(rows, 50, seeded(), precision=precision)
    other = spherical_kmeans(rows, 50, seeded(6), precision=precision)
    assert torch.equal(one.centroids, again.centroids)
    assert torch.equal(one.assignments, again.assignments)
    assert not torch.equal(one.centroids, other.centroids)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_that_take_no_part_may_hold_anything(precision: Any) -> None:
    """They get −100, and the others what they get alone."""
    rows = clouds().float()
    valid = torch.rand(len(rows)) < 0.7
    holes = torch.where(valid[:, None], rows, torch.nan)
    found = spherical_kmeans(holes, K, seeded(), valid=valid, precision=precision)
    alone = spherical_kmeans(rows[valid], K, seeded(), precision=precision)
    assert (found.assignments[~valid] == -100).all()
    assert torch.equal(found.assignments[valid], alone.assignments)
    torch.testing.assert_close(found.centroids, alone.centroids)
    assert torch.equal(found.counts, alone.counts)
    torch.testing.assert_close(found.objective, alone.objective)


@pytest.mark.parametrize("width", [1.0, 0.05])
def test_rounding_to_bf16_costs_nothing(width: float) -> None:
    """Nor in a narrow cone, whose cosines all round to 1: there plain rounding loses a tenth and more of the spread."""
    axis = torch.tensor([1.0] + [0.0] * 31)
    rows = normalize(axis + width * clouds(3000, 32).float())
    exact = spherical_kmeans(rows, 150, seeded(), precision="fp32")
    rounded = spherical_kmeans(rows, 150, seeded(), precision="bf16")
    assert rounded.objective.dtype == torch.float32
    ratio = (1 - rounded.objective) / (1 - exact.objective)
    assert ratio == pytest.approx(1, abs=0.02)


def test_it_is_no_worse_than_faiss() -> None:
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
    start = first(rows, count=100)
    theirs.train(rows.numpy(), init_centroids=start.numpy())
    cosines = rows @ torch.from_numpy(theirs.centroids).T
    reached = cosines.max(1).values.mean()
    for precision in ("fp32", "bf16"):
        found = spherical_kmeans(rows, 100, seeded(), precision=precision).objective
        assert found > reached - 5e-4


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
    try:
        spherical_kmeans(rows[part], 301, seeded())
    except ValueError as error:
        results["error"] = str(error)  # type: ignore[assignment]
    return {k: v if isinstance(v, str) else vars(v) for k, v in results.items()}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return run_together(2, work)


@pytest.mark.parametrize("case", ["all", "other seed", "none here", "many"])
def test_two_processes_with_uneven_shards_equal_one(two: list[dict[str, Any]], case: str) -> None:
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
