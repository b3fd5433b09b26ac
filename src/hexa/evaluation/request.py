"""Options of every evaluation and embedding. The command line makes its options from these classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from hexa.config import Config

if TYPE_CHECKING:
    from hexa.weights.preparation import Given

Precision = Literal["auto", "fp32", "bf16"]


class ImageOptions(Config):
    """Image preparation that differs from the backbone's own."""

    mean: Any = None
    """R,G,B: subtract this mean of each channel, pixels in [0, 1] (default: the backbone's own)"""
    std: Any = None
    """R,G,B: divide by this standard deviation of each channel (default: the backbone's own)"""
    size: Any = None
    """N: resize images to this side in pixels (default: the backbone's own)"""
    crop: Any = None
    """SHARE: crop this share of the shorter side from the centre (default: the backbone's own)"""
    interpolation: Any = None
    """NAME: resize by bilinear or bicubic interpolation (default: the backbone's own)"""

    @property
    def given(self) -> Given:
        """The options as `load_backbone` takes them."""
        return {name: getattr(self, name) for name in ImageOptions.model_fields}  # type: ignore[return-value]


class ExtractionOptions(ImageOptions):
    """Options of the extraction of features."""

    branch: str = "main"
    """NAME: use these batch-norms of a run: main, or aux (trained on adversarial views; only in checkpoints) (default:
    main)"""
    device: str = "auto"
    """NAME: compute on auto, cpu, cuda or cuda:N (default: auto)"""
    precision: Precision = "auto"
    """NAME: compute in auto, fp32 or bf16 (default: auto)"""
    num_workers: int | None = pydantic.Field(default=None, ge=0)
    """N: decode images in N processes (default: chosen for the machine)"""
    max_image_pixels: int | None = pydantic.Field(default=None, gt=0)
    """N: refuse images of more pixels as unreadable (default: 89,478,485)"""
    images: int | None = pydantic.Field(default=None, gt=0)
    """N: use N images, drawn evenly from the classes if there are labels (default: all)"""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)  # scikit-learn takes no more
    """N: draw images and labels by this seed (default: 0)"""


class EvaluationRequest(ExtractionOptions):
    """The options that every protocol has, in addition to its own."""

    preset: str | None = None
    """NAME: use these published settings (default: the first that `hexa evaluate PROTOCOL --help` lists)"""
    test_data: str | None = None
    """SOURCE: score these images (default: the split test of --data)"""
    holdout: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """SHARE: score this share of the training images instead"""
    images: int | None = pydantic.Field(default=None, gt=0)
    """N: learn from N training images, drawn evenly from the classes; all test images are scored (default: all).
    For robust: attack N test images instead"""
    out: Path | None = None
    """FILE: also write the result to this .json file; a run has it in results.json too"""
    extraction_batch: int = pydantic.Field(default=256, gt=0)
    """N: extract the features of N images at a time (default: 256)"""


class EmbeddingRequest(ExtractionOptions):
    """The options of `hexa embed`."""

    dense: bool = False
    """write the last feature maps [N, C, h, w] as features instead, to .npz"""
    bare: bool = False
    """write features, labels and paths alone, without the previews and thumbnails that search uses"""
    batch_size: int = pydantic.Field(default=256, gt=0)
    """N: extract the features of N images at a time (default: 256)"""
