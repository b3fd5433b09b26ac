"""The published files of CIFAR-10-C and the like: one .npy for each corruption, five severities one after another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hexa.config import UserError
from hexa.evaluation.corruptions.kinds import KINDS, NUM_SEVERITIES

#: By kind, [5 · N, H, W, 3].
Arrays = dict[str, NDArray[np.uint8]]


def opened(folder: Path, labels: NDArray[np.int64]) -> Arrays:
    """{kind: uint8 [5 · N, H, W, 3]}, not read yet, of the N test images with these labels, in their order.

    Raises UserError for files that are missing or of other images.
    """
    arrays: Arrays = {}
    for name in ("labels", *KINDS):
        try:
            arrays[name] = np.lib.format.open_memmap(folder / f"{name}.npy", mode="r")
        except (ValueError, OSError, EOFError) as error:
            raise UserError(
                f"official: {folder / name}.npy cannot be read ({error}); give the folder that CIFAR-10-C unpacks to"
            ) from None
    known = arrays.pop("labels")
    if not np.array_equal(known, np.tile(labels, NUM_SEVERITIES)):
        file = folder / "labels.npy"
        raise UserError(
            f"official: {file} holds other labels than the test images have, in their order"
        )
    for kind, images in arrays.items():
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[::3] != (len(known), 3):
            raise UserError(
                f"official: {folder / kind}.npy is {images.dtype} {list(images.shape)}; "
                f"expected uint8 [{len(known)}, H, W, 3]"
            )
    return arrays
