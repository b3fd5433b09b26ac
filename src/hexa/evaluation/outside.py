"""Features of an image that is not in a file of features, made as the file's own were."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hexa.config import UserError
from hexa.data.sources.decode import DecodeError, decode, read, unit
from hexa.evaluation.embed import seen
from hexa.evaluation.feature_file import Appearance, FeatureFile
from hexa.evaluation.features import transform_of
from hexa.weights.pretrained import Backbone, load_backbone

#: The backbones that are loaded because a file of features names them: of these names, or in files. Others may run code.
_FOLLOWED = ("timm:", "random:", "pixels:")


@torch.no_grad()
def features_of(
    image: str, file: FeatureFile, backbone: str | None = None
) -> tuple[NDArray[np.float32], Appearance]:
    """Features [D] and appearance of an image file.

    backbone: by default the one that the file names, if reading it runs no code. Raises UserError if it cannot be
    loaded, is another one, or the image cannot be read.
    """
    origin = file.origin or {}
    loaded = _backbone(file, origin, backbone)
    try:
        decoded = decode(read(image), channels=len(loaded.mean))
    except DecodeError as error:
        raise UserError(
            f"--like {image}: {error}; give an image, or a path in {file.path}"
        ) from None
    pixels = transform_of(loaded)(decoded)
    return loaded(unit(pixels)[None]).float().numpy()[0], seen(decoded)


def _backbone(file: FeatureFile, origin: Mapping[str, Any], given: str | None) -> Backbone:
    """The backbone of the file's features, prepared as for them."""
    named = origin.get("backbone")
    remedy = "name it by --backbone"
    if given is None and not isinstance(named, str):
        raise UserError(f"{file.path}: does not say which backbone made its features; {remedy}")
    name = given or str(named)
    followed = name.startswith(_FOLLOWED) or ":" not in name or Path(name).is_absolute()
    if given is None and not followed:
        raise UserError(f"{file.path}: names {name}, which may run code; if you trust it, {remedy}")
    preparation = origin.get("preparation")
    how = preparation if isinstance(preparation, dict) else {}
    wanted = {key: how.get(key) for key in ("mean", "std", "size", "crop", "interpolation")}
    branch = origin.get("branch")
    try:
        loaded = load_backbone(name, branch=str(branch or "main"), **wanted)  # type: ignore[arg-type]
    except UserError as error:
        hint = "" if given else f" (the backbone of {file.path}; --backbone names another place)"
        raise UserError(f"{error}{hint}") from None
    if origin.get("weights") not in (None, loaded.content_hash()):
        raise UserError(f"{name}: not the weights that made {file.path}; {remedy}, or embed again")
    if loaded.num_features != file.features.shape[1]:
        raise UserError(
            f"{name}: makes {loaded.num_features} features, {file.path} has "
            f"{file.features.shape[1]}; {remedy}"
        )
    return loaded
