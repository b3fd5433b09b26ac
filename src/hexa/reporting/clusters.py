"""What a trained backbone holds for alike: clusters of its features, a row a cluster, its most typical images."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hexa import experiment as experiments
from hexa.config import UserError
from hexa.data import Source, open_source
from hexa.data.views import evaluation_transform
from hexa.evaluation.features import Subset, extract
from hexa.nn.pretrained import load_backbone
from hexa.ops.kmeans import spherical_kmeans
from hexa.reporting.gallery import MID_GREY, Column, Gallery
from hexa.runtime.random import Stream
from hexa.training.assembly import Machine

NUM_IMAGES, NUM_CLUSTERS, NUM_SHOWN = 500, 8, 8


def clusters(folder: Path | str, data: str | None, out: Path | str) -> Path:
    """Write a PNG of clusters that the backbone of a run makes of images; returns `out`.

    At most 500 images, drawn by the run's seed from `data`, the run's own source if None, are embedded and clustered by
    spherical k-means (REFERENCE §4.4) with K = 8. A row shows a cluster, the largest first: the eight images nearest to
    its centroid, each with its cosine; below the first stand the number of images and, where there are labels, the
    most frequent class and its share.
    Raises UserError: a run without backbone.safetensors, a source that is not there.
    """
    folder = Path(folder)
    if not (folder / "backbone.safetensors").is_file():
        raise UserError(f"{folder}: has no backbone.safetensors yet; 'hexa resume {folder}' trains it to the end")
    experiment = experiments.load(folder / "config.yaml")
    source = open_source(data or experiment.data, "train" if data is None else None)
    stream = Stream(experiment.seed).child("clusters")
    order = torch.randperm(len(source), generator=stream.child("images").generator())[:NUM_IMAGES]
    chosen = Subset(source, order.sort().values.numpy())
    features, labels, positions = extract(
        load_backbone(folder), chosen, device=Machine.of(experiment).device, num_workers=0, tolerance=1.0
    )
    unit = nn.functional.normalize(features, dim=1)
    found = spherical_kmeans(unit, min(NUM_CLUSTERS, len(unit)), stream.child("centroids").generator())
    shown: list[tuple[Tensor, Tensor]] = []  # per cluster: rows of its images, the most typical first; their cosines
    for cluster in found.counts.argsort(descending=True, stable=True).tolist():
        cosines = unit @ found.centroids[cluster]
        ranked = cosines.argsort(descending=True, stable=True)
        members = ranked[found.assignments[ranked] == cluster]
        if len(members):
            shown.append((members, cosines[members]))
    names = _class_names(chosen, labels)
    transform = evaluation_transform(experiment.views.size)
    columns = []
    for place in range(NUM_SHOWN):
        tiles, captions = [], []
        for members, cosines in shown:
            there = place < len(members)
            tiles.append(
                transform(chosen.decode(int(positions[members[place]]))).permute(1, 2, 0).numpy()
                if there
                else np.full((experiment.views.size, experiment.views.size, 3), MID_GREY, np.uint8)
            )
            remark = _about(members, names) if place == 0 else ""
            captions.append(" · ".join(filter(None, [f"{cosines[place]:.2f}", remark])) if there else "")
        title = "most typical" if place == 0 else f"{place + 1}."
        columns.append(Column(title, np.stack(tiles), tuple(captions)))
    return Gallery(tuple(columns)).save(Path(out))


def _class_names(source: Source, labels: Tensor | None) -> list[str]:
    """The class of every row; empty where images have none, or several."""
    if labels is None or labels.ndim != 1:
        return []
    return [source.class_names[label] if source.class_names else str(label) for label in labels.tolist()]


def _about(members: Tensor, names: list[str]) -> str:
    """How many images a cluster has, and how pure it is."""
    said = f"{len(members)} images"
    if names:
        name, count = Counter(names[row] for row in members.tolist()).most_common(1)[0]
        said += f", {100 * count / len(members):.0f} % {name}"
    return said
