"""Features as a file, for search, clustering and plots."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.parquet
from torch import Tensor

from hexa.config import UserError, whole_characters
from hexa.data import Source, draw_part, open_source
from hexa.evaluation import maps as dense
from hexa.evaluation.features import batches, check_finite, extract, nothing_read
from hexa.evaluation.maps import Array
from hexa.evaluation.request import EmbeddingRequest
from hexa.evaluation.transforms import transform_of
from hexa.nn.feature_maps import last_maps
from hexa.runtime import precision as precisions, targets
from hexa.runtime.files import write_whole
from hexa.runtime.progress import Progress, silent
from hexa.weights.pretrained import Backbone, load_backbone


@dataclass(frozen=True)
class Embedded:
    """What was written: features or maps of N images, and which images could not be read, a line each.

    source: whose images. notes: sentences on them. shape: (D,) for features, (C, h, w) for maps. preparation: a sentence on how
    images were prepared, unless the backbone's own file says it. precision: what the network computed in.
    """

    path: Path
    source: str
    num_images: int
    shape: tuple[int, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    preparation: str | None = None
    precision: str = "fp32"


def embed(
    backbone: str | Path | Backbone,
    data: str,
    out: Path | str,
    *,
    progress: Progress = silent,
    **options: Any,
) -> Embedded:
    """Write features [N, D] float32, labels [N] where there are any, and paths [N] of all readable images, atomically.

    out: .npz (arrays `features`, `labels`, `paths`) or .parquet (a list column and two more). Without #split in `data`,
    the split train. Images that cannot be read are left out. options: those of `EmbeddingRequest`. images, seed: only
    a part, which `data` in the file describes. maps: instead the network's last feature maps [N, C, h, w], to .npy or
    .parquet (`hexa.evaluation.maps.write`). progress: told of the images that are done. Raises UserError.
    """
    request = EmbeddingRequest.from_fields(options)
    out = targets.check(out, (".npy", ".parquet") if request.maps else (".npz", ".parquet"))
    if request.maps_precision != "float32" and not request.maps:
        raise UserError("maps_precision has no effect without maps; features are float32")
    loaded = load_backbone(backbone, branch=request.branch, **request.given)
    source = open_source(data, max_image_pixels=request.max_image_pixels, channels=len(loaded.mean))
    source = draw_part(source, request.images, request.seed)
    problems: dict[int, str] = {}
    names = np.array([whole_characters(path) for path in source.paths], dtype=object)
    # maps of larger images come in smaller batches
    size = loaded.image_size
    smaller = max(1, request.batch_size * 224**2 // max(224, size) ** 2)
    how: dict[str, Any] = {
        "transform": transform_of(loaded, request.aspect),
        "batch_size": smaller if request.maps else request.batch_size,
        "device": precisions.pick_device(request.device),
        "precision": request.precision,
        "num_workers": request.num_workers,
        "problems": problems,
        "tolerance": 1.0,
    }
    if request.maps:
        last, _ = last_maps(
            loaded.network, str(backbone), (size, size), loaded.network_config.channels
        )
        progress("extracting feature maps", 0, 0)
        made = batches(loaded, lambda images: last(loaded.normalize(images)), source, **how)
        num_images, *shape = dense.write(
            out, _parts(source, names, made), len(source), request.maps_precision
        )
    else:
        tell = functools.partial(progress, "extracting features")
        features, labels, positions = extract(loaded, source, progress=tell, **how)
        paths, known = (
            names[positions.numpy()].astype(str),
            None if labels is None else labels.numpy(),
        )
        part = {} if source.drawn is None else {"data": json.dumps(source.facts)}
        write_whole(
            out, lambda file: _write(file, out.suffix, features.numpy(), known, paths, part)
        )
        num_images, *shape = features.shape
    left_out = tuple(
        f"{source.paths[position]}: {problems[position]}" for position in sorted(problems)
    )
    notes = tuple(source.notes(len(problems)))
    told = (
        left_out,
        notes,
        loaded.said(),
        precisions.resolve(request.precision, how["device"]),
    )
    return Embedded(out, source.title, num_images, tuple(shape), *told)


def _parts(
    source: Source, names: Array, made: Iterable[tuple[Tensor, Tensor | None, Tensor]]
) -> Iterator[dense.Part]:
    count = 0
    for maps, labels, positions in made:
        count += len(maps)
        check_finite(maps, source)
        yield (
            maps.numpy(),
            None if labels is None else labels.numpy(),
            names[positions.numpy()].tolist(),
        )
    if not count:
        raise nothing_read(source)


def _write(
    file: BinaryIO,
    kind: str,
    features: Array,
    labels: Array | None,
    paths: Array,
    facts: Mapping[str, str],
) -> None:
    """facts: further texts, arrays of an .npz and metadata of a .parquet."""
    if kind == ".npz":
        further: dict[str, Any] = {} if labels is None else {"labels": labels}
        further |= {name: np.array(text) for name, text in facts.items()}
        np.savez(file, features=features, paths=paths, **further)
        return
    rows = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(features.reshape(-1)), features.shape[1]
    )
    table = dense.columns("features", rows, labels, paths)
    pyarrow.parquet.write_table(table.replace_schema_metadata(facts or None), file)
