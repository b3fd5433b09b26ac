"""Features as a file, for search, clustering and plots."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hexa.config import whole_characters
from hexa.data import Source, draw_part, open_source
from hexa.data.loading.evaluation_stream import Look
from hexa.evaluation import feature_file
from hexa.evaluation.appearance import Appearance, appearance_of
from hexa.evaluation.features import extract
from hexa.evaluation.request import EmbeddingRequest
from hexa.evaluation.transforms import transform_of
from hexa.nn.feature_maps import last_maps
from hexa.ops.photometric import unit
from hexa.runtime import precision as precisions, targets
from hexa.runtime.files import write_whole
from hexa.runtime.progress import Progress, silent
from hexa.weights.pretrained import Backbone, load_backbone


@dataclass(frozen=True)
class Embedded:
    """What was written: features of N images, and which images could not be read, a line each.

    source: whose images. notes: sentences on them. shape: (D,), or (C, h, w) for dense features. preparation: a sentence on how
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

    out: .npz (arrays `features`, `labels`, `paths`) or .parquet (a list column and two more), with what `hexa search`
    needs beyond that (`feature_file`) unless `bare`. Without #split in `data`, the split train. Images that cannot be
    read are left out. options: those of `EmbeddingRequest`. images, seed: only a part, which `drawn` in the file's
    origin describes. dense: the network's last feature maps [N, C, h, w] as features instead, to .npz, without what
    search needs; all are held in memory. progress: told of the images that are done. Raises UserError.
    """
    request = EmbeddingRequest.from_fields(options)
    out = targets.check(out, (".npz",) if request.dense else (".npz", ".parquet"))
    loaded = load_backbone(backbone, branch=request.branch, **request.given)
    source = open_source(data, max_image_pixels=request.max_image_pixels, channels=len(loaded.mean))
    source = draw_part(source, request.images, request.seed)
    problems: dict[int, str] = {}
    names = np.array([whole_characters(path) for path in source.paths], dtype=object)
    how: dict[str, Any] = {
        "transform": transform_of(loaded),
        "batch_size": request.batch_size,
        "device": precisions.pick_device(request.device),
        "precision": request.precision,
        "num_workers": request.num_workers,
        "problems": problems,
        "tolerance": 1.0,
    }
    forward = None
    if request.dense:
        size = (loaded.image_size, loaded.image_size)
        last = last_maps(loaded.network, str(backbone), size, loaded.network_config.channels)
        forward = lambda images: last(loaded.normalize(images))  # noqa: E731
    tell = functools.partial(progress, "extracting features")
    look = None if request.bare or request.dense else Look(seen)
    features, labels, positions = extract(
        loaded, source, progress=tell, forward=forward, look=look, **how
    )
    write_whole(
        out,
        lambda file: feature_file.write(
            file,
            out.suffix,
            features.numpy(),
            None if labels is None else labels.numpy(),
            names[positions.numpy()].astype(str),
            None if look is None else [look.found[one] for one in positions.tolist()],
            None if look is None else _origin(backbone, loaded, source, request),
        ),
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


def seen(image: Tensor) -> Appearance:
    """The appearance of a decoded image [C, H, W]; of other bands than three the first is shown as grey."""
    three = image if len(image) == 3 else image[:1].expand(3, -1, -1)
    levels = three if three.dtype == torch.uint8 else (255 * unit(three)).round().clamp(0, 255)
    shown = levels.to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return appearance_of(image.numpy(), shown)


def _origin(
    backbone: str | Path | Backbone, loaded: Backbone, source: Source, request: EmbeddingRequest
) -> dict[str, Any]:
    """Where features come from, so that those of another image can be compared with them."""
    return {
        "backbone": None if isinstance(backbone, Backbone) else _lasting(str(backbone)),
        "branch": request.branch,
        "weights": loaded.content_hash(),
        "preparation": loaded.preparation.values(),
        "data": f"{source.name}#{source.split}",
        "drawn": source.facts.get("drawn"),
        "folder": _folder(source),
        "channels": len(loaded.mean),
    }


def _lasting(name: str) -> str:
    """The name of a backbone, with the absolute path if it is one of a file or folder."""
    return name if ":" in name and not os.path.exists(name) else os.path.abspath(name)


def _folder(source: Source) -> str | None:
    """The folder that the source's paths are relative to; None if images are not files of their own."""
    files = list(source.files())
    if len(files) != len(source) or not str(files[0]).endswith(source.paths[0]):
        return None
    return os.path.abspath(str(files[0]).removesuffix(source.paths[0]))
