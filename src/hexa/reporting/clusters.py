"""Which images a trained backbone finds similar, as a gallery that a report can take apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hexa import experiment as experiments
from hexa.config import UserError
from hexa.data import open_source
from hexa.reporting.gallery import MID_GREY, Column, Gallery
from hexa.reporting.plots.neighbours import Embedded, described, grouped
from hexa.weights.pretrained import load_backbone

NUM_IMAGES, NUM_CLUSTERS, NUM_SHOWN = 500, 8, 8


def clusters(folder: Path | str, data: str | None, out: Path | str) -> Path:
    """Write a PNG of clusters that the backbone of a run makes of images; returns `out`.

    At most 500 images, drawn by the run's seed from `data`, the run's own source if None, are embedded and clustered
    with K = 8. A row shows a cluster, the largest first: its eight most typical images; below the first stand the
    number of images and, where there are labels, the most frequent class and its share.
    Raises UserError for a run without backbone.safetensors, and a missing source.
    """
    folder = Path(folder)
    if not (folder / "backbone.safetensors").is_file():
        raise UserError(f"{folder}: has no backbone.safetensors yet; 'hexa resume {folder}' trains it to the end")
    fields = experiments.fields_of(folder / "config.yaml")  # which needs no file that its method came from
    seed = fields.get("seed", 0)
    if not isinstance(seed, int):
        raise UserError(f"{folder / 'config.yaml'}: seed: must be an integer, got {seed!r}")
    training = fields.get("training")
    limit = training.get("max_image_pixels") if isinstance(training, dict) else None
    split = "train" if data is None else None
    backbone = load_backbone(folder)
    source = open_source(str(fields.get("data")) if data is None else data, split, limit, len(backbone.mean))
    embedded = Embedded.of(backbone, source, limit=NUM_IMAGES, seed=seed)
    members_of = grouped(embedded, min(NUM_CLUSTERS, len(embedded.features)), seed)
    rows = [embedded.tiles(members[:NUM_SHOWN].tolist()) for members in members_of]
    blank = np.full((embedded.size, embedded.size, 3), MID_GREY, np.uint8)
    columns = []
    for place in range(NUM_SHOWN):
        title = "most typical" if place == 0 else f"{place + 1}."
        tiles = np.stack([row[place] if place < len(row) else blank for row in rows])
        remarks = [described(embedded, members).replace("\n", ", ") if place == 0 else "" for members in members_of]
        columns.append(Column(title, tiles, tuple(remarks)))
    return Gallery(tuple(columns)).save(Path(out))
