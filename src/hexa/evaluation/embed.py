"""Features as a file, for search, clustering and plots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Unpack

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from hexa.config import whole_characters
from hexa.data import open_source
from hexa.evaluation.features import extract
from hexa.nn.preparation import Given
from hexa.nn.pretrained import Backbone, load_backbone
from hexa.runtime import precision as precisions
from hexa.runtime import targets
from hexa.runtime.files import write_whole

Array = NDArray[Any]


@dataclass(frozen=True)
class Embedded:
    """What was written: N features of so many numbers, and which images could not be read, a line each.

    preparation: a sentence on how images were prepared, unless the backbone's own file says it.
    """

    path: Path
    num_images: int
    num_features: int
    left_out: tuple[str, ...] = ()
    preparation: str | None = None


def embed(
    backbone: str | Path | Backbone,
    data: str,
    out: Path | str,
    *,
    device: str = "auto",
    precision: precisions.Precision = "auto",
    batch_size: int = 256,
    num_workers: int | None = None,
    max_image_pixels: int | None = None,
    **given: Unpack[Given],
) -> Embedded:
    """Write features [N, D] float32, labels [N] where there are any, and paths [N] of all readable images.

    out: .npz (arrays `features`, `labels`, `paths`) or .parquet (a list column and two more). At once or not at all.
    Without #split in `data`, the split train. Images that cannot be read are left out, those of more than
    `max_image_pixels` among them.
    given: mean, std, size, crop or interpolation instead of the backbone's own. Raises UserError.
    """
    out = targets.check(out, (".npz", ".parquet"))
    loaded = load_backbone(backbone, **given)
    source = open_source(data, max_image_pixels=max_image_pixels, channels=len(loaded.mean))
    where = precisions.pick_device(device)
    problems: dict[int, str] = {}
    features, labels, positions = extract(
        loaded,
        source,
        batch_size=batch_size,
        device=where,
        precision=precision,
        num_workers=num_workers,
        problems=problems,
        tolerance=1.0,
    )
    paths = np.array([whole_characters(source.paths[position]) for position in positions.tolist()])
    known = None if labels is None else labels.numpy()
    write_whole(out, lambda file: _write(file, out.suffix, features.numpy(), known, paths))
    left_out = tuple(f"{source.paths[position]}: {problems[position]}" for position in sorted(problems))
    return Embedded(out, len(features), features.shape[1], left_out, loaded.preparation.said())


def _write(file: BinaryIO, kind: str, features: Array, labels: Array | None, paths: Array) -> None:
    if kind == ".npz":
        arrays = {"features": features, "paths": paths} | ({} if labels is None else {"labels": labels})
        np.savez(file, **arrays)  # type: ignore[arg-type]
        return
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.reshape(-1)), features.shape[1])
    columns = {"features": rows, "paths": pyarrow.array(paths)}
    if labels is not None:
        columns["labels"] = pyarrow.array(labels)
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
