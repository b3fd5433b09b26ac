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
from hexa.data.sources.decode import unit
from hexa.evaluation import feature_file
from hexa.evaluation.feature_file import Appearance, appearance_of
from hexa.evaluation.features import extract, for_inference
from hexa.evaluation.request import EmbeddingRequest
from hexa.runtime import files, precision as precisions
from hexa.runtime.console import Progress, silent
from hexa.weights.pretrained import Backbone, load_backbone


@dataclass(frozen=True)
class Embedded:
    """The written features of N images, and the images that could not be read."""

    path: Path
    source: str
    """The name of the images."""
    num_images: int
    shape: tuple[int, ...]
    """(D,), or (C, h, w) for dense features."""
    left_out: tuple[str, ...]
    """A line for each image that could not be read."""
    notes: tuple[str, ...]
    """Sentences on the images."""
    preparation: str | None
    """A sentence on how images were prepared, unless the backbone's own file says it."""
    precision: str
    """fp32 or bf16, what the network computed in."""


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
    out = files.check_target(out, (".npz",) if request.dense else (".npz", ".parquet"))
    loaded = load_backbone(backbone, branch=request.branch, **request.given)
    source = open_source(data, max_image_pixels=request.max_image_pixels, channels=len(loaded.mean))
    source = draw_part(source, request.images, request.seed)
    problems: dict[int, str] = {}
    device = precisions.pick_device(request.device)
    how: dict[str, Any] = {
        "batch_size": request.batch_size,
        "device": device,
        "precision": request.precision,
        "num_workers": request.num_workers,
        "problems": problems,
        "tolerance": 1.0,
        "progress": functools.partial(progress, "extracting features"),
    }
    if request.dense:
        from hexa.nn.feature_maps import last_maps

        frozen = for_inference(loaded, device)
        size = (loaded.image_size, loaded.image_size)
        last = last_maps(frozen.network, str(backbone), size, loaded.network_config.channels)
        how["forward"] = lambda images: last(frozen.normalize(images))
    look = None if request.bare or request.dense else Look(seen)
    features, positions = extract(loaded, source, look=look, **how)
    places = positions.tolist()
    appearances = None if look is None else [look.found[place] for place in places]
    origin = None if look is None else _origin(backbone, loaded, source, request)
    content = (
        features.numpy(),
        None if source.labels is None else source.labels[places],
        np.array([whole_characters(source.paths[place]) for place in places]),
        appearances,
        origin,
    )
    files.write_whole(out, lambda file: feature_file.write(file, out.suffix, *content))
    left_out = [f"{source.paths[position]}: {problems[position]}" for position in sorted(problems)]
    return Embedded(
        path=out,
        source=source.title,
        num_images=len(features),
        shape=tuple(features.shape[1:]),
        left_out=tuple(left_out),
        notes=tuple(source.notes(len(problems))),
        preparation=loaded.said(),
        precision=precisions.resolve(request.precision, device),
    )


def seen(image: Tensor) -> Appearance:
    """The appearance of a decoded image [C, H, W]; of other bands than three the first is shown as grey."""
    three = image if len(image) == 3 else image[:1].expand(3, -1, -1)
    levels = three if three.dtype == torch.uint8 else (255 * unit(three)).round().clamp(0, 255)
    return appearance_of(levels.to(torch.uint8).permute(1, 2, 0).contiguous().numpy())


def _origin(
    backbone: str | Path | Backbone, loaded: Backbone, source: Source, request: EmbeddingRequest
) -> dict[str, Any]:
    """The origin of features: backbone, weights and preparation, so that features of other images are comparable."""
    name = None if isinstance(backbone, Backbone) else str(backbone)
    if name is not None and (":" not in name or os.path.exists(name)):
        name = os.path.abspath(name)  # of a file or folder
    return {
        "backbone": name,
        "branch": request.branch,
        "weights": loaded.content_hash(),
        "preparation": loaded.preparation.values(),
        "data": f"{source.name}#{source.split}",
        "drawn": source.facts.get("drawn"),
        "folder": _folder(source),
        "channels": len(loaded.mean),
    }


def _folder(source: Source) -> str | None:
    """The folder that the source's paths are relative to; None if images are not files of their own."""
    files = list(source.files())
    if len(files) != len(source) or not str(files[0]).endswith(source.paths[0]):
        return None
    return os.path.abspath(str(files[0]).removesuffix(source.paths[0]))
