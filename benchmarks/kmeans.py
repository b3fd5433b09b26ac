"""Spherical k-means beside faiss and scikit-learn, in one run on the same cores, from the same first centroids.

    pip install faiss-cpu
    python benchmarks/kmeans.py --result benchmarks/DATE-kmeans.json

Unit rows [200,000, 128], K = 3000, 10 iterations on all rows; once around 2000 directions of unequal weight, once
uniform on the sphere. Arms take turns; seconds of every round are kept. The objective is the mean cosine of the rows to
the nearest final centroid, computed here in fp32 for all. hexa's time includes the draw and an 11th, final assignment,
which faiss does not make. scikit-learn clusters by Euclidean distance (its centroids are normalised afterwards). Only
hexa and faiss get more than one round. On a machine that does other things as well, compare `cpu_seconds` at
--threads 1: with more threads they include the waiting of threads for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

IMAGENET = 1_281_167


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=3000)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--result", type=Path)
    return parser.parse_args()


given = arguments()
os.environ["OMP_NUM_THREADS"] = str(given.threads)  # before the libraries read it

import faiss  # noqa: E402
import numpy as np  # noqa: E402
import sklearn  # noqa: E402
import torch  # noqa: E402
from sklearn.cluster import KMeans, MiniBatchKMeans  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.functional import normalize  # noqa: E402

from hexa.ops.kmeans import spherical_kmeans  # noqa: E402
from hexa.runtime.packages import provenance  # noqa: E402

K, ITERATIONS = given.clusters, given.iterations


def structured(generator: torch.Generator) -> Tensor:
    """Rows around 2000 directions of unequal weight and width."""
    directions = normalize(torch.randn(2000, given.dim, generator=generator))
    weight = torch.rand(2000, generator=generator) ** 2
    chosen = torch.multinomial(weight, given.rows, True, generator=generator)
    width = (0.5 + torch.rand(given.rows, 1, generator=generator)) / given.dim**0.5
    return normalize(
        directions[chosen] + width * torch.randn(given.rows, given.dim, generator=generator)
    )


def uniform(generator: torch.Generator) -> Tensor:
    """Rows without structure."""
    return normalize(torch.randn(given.rows, given.dim, generator=generator))


def seed() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def by_hexa(rows: Tensor) -> Tensor:
    return spherical_kmeans(rows, K, seed(), iterations=ITERATIONS).centroids


def by_faiss(rows: Tensor, first: Tensor) -> Tensor:
    kmeans = faiss.Kmeans(
        given.dim,
        K,
        niter=ITERATIONS,
        nredo=1,
        spherical=True,
        max_points_per_centroid=10**9,
        min_points_per_centroid=1,
    )
    kmeans.train(rows.numpy(), init_centroids=first.numpy())
    return torch.from_numpy(kmeans.centroids.copy()).view(K, -1)


def by_plain_torch(rows: Tensor, first: Tensor) -> Tensor:
    """As one would write it down: chunks of 8192 rows, max with indices, index_add_."""
    centroids = first
    for _ in range(ITERATIONS):
        nearest = torch.cat([(part @ centroids.T).max(1).indices for part in rows.split(8192)])
        sums = torch.zeros_like(centroids).index_add_(0, nearest, rows)
        filled = torch.bincount(nearest, minlength=K) > 0
        centroids = torch.where(filled[:, None], normalize(sums), centroids)
    torch.cat([(part @ centroids.T).max(1).indices for part in rows.split(8192)])
    return centroids


def by_sklearn(rows: Tensor, first: Tensor) -> Tensor:
    kmeans = KMeans(
        K, init=first.numpy(), n_init=1, max_iter=ITERATIONS, tol=0.0, algorithm="lloyd"
    ).fit(rows.numpy())
    return normalize(torch.from_numpy(np.asarray(kmeans.cluster_centers_)))


def by_minibatches(rows: Tensor, first: Tensor) -> Tensor:
    """As many rows seen as in one pass over the data, not ten."""
    kmeans = MiniBatchKMeans(
        K,
        init=first.numpy(),
        n_init=1,
        max_iter=1,
        batch_size=4096,
        compute_labels=False,
        reassignment_ratio=0.0,
    ).fit(rows.numpy())
    return normalize(torch.from_numpy(np.asarray(kmeans.cluster_centers_)))


def objective(rows: Tensor, centroids: Tensor) -> float:
    return float(
        sum((part @ centroids.T).amax(1).double().sum() for part in rows.split(2048)) / len(rows)
    )


def measure(rows: Tensor) -> dict[str, Any]:
    first = normalize(rows[torch.randperm(len(rows), generator=seed())[:K]])
    arms: dict[str, Callable[[], Tensor]] = {
        "hexa": lambda: by_hexa(rows),
        "faiss": lambda: by_faiss(rows, first),
    }
    once: dict[str, Callable[[], Tensor]] = {
        "plain torch, fp32": lambda: by_plain_torch(rows, first),
        "scikit-learn KMeans": lambda: by_sklearn(rows, first),
        "scikit-learn MiniBatchKMeans, one pass": lambda: by_minibatches(rows, first),
    }
    result: dict[str, Any] = {
        name: {"seconds": [], "cpu_seconds": [], "cores_used_by_others": []} for name in arms | once
    }
    for round_ in range(given.rounds):
        for name, arm in (arms | (once if round_ == 0 else {})).items():
            began, own, busy = time.perf_counter(), time.process_time(), busy_seconds()
            centroids = arm()
            seconds = time.perf_counter() - began
            result[name]["seconds"].append(round(seconds, 2))
            result[name]["cpu_seconds"].append(round(time.process_time() - own, 2))
            result[name]["cores_used_by_others"].append(round((busy_seconds() - busy) / seconds, 2))
            result[name]["mean_cosine"] = round(objective(rows, centroids), 6)
            print(f"{name}: {result[name]}", flush=True)
    for values in result.values():
        for kind in ("seconds", "cpu_seconds"):
            values[f"median_{kind}"] = round(statistics.median(values[kind]), 2)
    return result


def busy_seconds() -> float:
    """Processor time that others than this process have used, where /proc tells; to see how quiet the machine was."""
    try:
        fields = [
            int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
        ]
    except OSError:
        return 0.0
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK") - time.process_time()


def main() -> None:
    code = provenance()
    torch.set_num_threads(given.threads)
    faiss.omp_set_num_threads(given.threads)
    warm = uniform(seed())[:6000]
    spherical_kmeans(warm, 300, seed())
    faiss.Kmeans(given.dim, 100, niter=1, spherical=True).train(warm.numpy())
    results = {
        make.__name__: measure(make(torch.Generator().manual_seed(0)))
        for make in (structured, uniform)
    }
    # one thread never waits for another: its processor time is what a quiet machine would take
    kind = "cpu_seconds" if given.threads == 1 else "seconds"
    seconds = statistics.median(s for r in results.values() for s in r["hexa"][kind])
    result = {
        "date": date.today().isoformat(),
        **code,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": given.threads,
        },
        "versions": {
            "torch": torch.__version__,
            "faiss": faiss.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "rows": given.rows,
        "dim": given.dim,
        "clusters": K,
        "iterations": ITERATIONS,
        "results": results,
        "imagenet": {
            "what": f"three clusterings of {IMAGENET:,} x {given.dim} rows into {K}, one process of this many threads",
            f"{kind}, extrapolated in proportion to rows, not measured": round(
                3 * seconds * IMAGENET / given.rows, 1
            ),
            "bytes_of_the_rows": IMAGENET * given.dim * 4,
        },
    }
    text = json.dumps(result, indent=2)
    if given.result:
        given.result.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
