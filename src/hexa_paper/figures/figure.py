"""`hexa figure KIND …`: one of the figures that show a run, its views or its backbone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from hexa.config import UserError, nearest
from hexa.data import open_source
from hexa.reporting.pictures import Gallery
from hexa.reporting.plots.clusters import EmbeddedImages, class_of, clusters
from hexa.reporting.style import save
from hexa.run.visualize import Look, is_known, own_images
from hexa.runtime.progress import Progress, silent
from hexa.weights.pretrained import Backbone, load_backbone
from hexa_paper.figures.view_space import embed_views, view_space

Target = Path | str | Backbone

#: The figure of views, which needs a method: a run, or a recipe with random weights.
VIEW_SPACE = "view-space"
#: Figures of features, which any backbone gives: the function that makes the gallery, and what to say under it.
OF_FEATURES: dict[str, tuple[Callable[..., Gallery], str, str]] = {
    "clusters": (
        clusters,
        "Spherical k-means on the features of {:,} images; the most typical first.",
        "Percent: the share of the most frequent class, which the backbone never saw.",
    ),
}


def figure(
    kind: str,
    target: Target,
    data: str | None,
    out: Path | str,
    *,
    seed: int = 0,
    opens_own: bool = True,
    progress: Progress = silent,
) -> Path:
    """Write a figure as PNG or SVG, by the ending of `out`, and return its path.

    kind: view-space of a run's folder or a recipe's name; clusters of any backbone.
    data: a source; None for the run's own images. opens_own: see Look.at. progress: told of stages. Raises UserError.
    """
    if kind in OF_FEATURES:
        return save(_of_features(kind, target, data, opens_own, seed, progress), out)
    if kind != VIEW_SPACE:
        raise UserError(f"unknown figure '{kind}'; {nearest(kind, [VIEW_SPACE, *OF_FEATURES])}")
    if isinstance(target, Backbone):
        remedy = "give a run or a recipe, or take clusters"
        raise UserError(f"{kind} is a figure of a method; {remedy}")
    progress("opening the images", 0, 0)
    look = Look.at(target, data, opens_own)
    progress("making views of them", 0, 0)
    length = f"step {look.step:,}" if look.step else "random weights"
    title = f"view space: {Path(target).name} on {short_name(look.source.name)}, {length}"
    return save(view_space(embed_views(look, seed=seed), title=title), out)


def _of_features(
    kind: str, target: Target, data: str | None, opens_own: bool, seed: int, progress: Progress
) -> Figure:
    backbone = target if isinstance(target, Backbone) else load_backbone(target)
    own = str(backbone.info.get("data") or "")
    if not data and not own:
        raise UserError(
            "a backbone without a run has no images of its own; give some with --data SOURCE"
        )
    if not data and not opens_own and not is_known(own):
        raise own_images(backbone.info.get("spec", target), own)
    source = open_source(data or own, "train", channels=len(backbone.mean))
    embedded = EmbeddedImages.of(
        backbone, source, seed=seed, progress=partial(progress, "extracting features")
    )
    name = backbone.info.get("spec", "a backbone") if isinstance(target, Backbone) else target
    make, remark, of_classes = OF_FEATURES[kind]
    remark = remark.format(len(embedded.features)) + (
        f" {of_classes}" if class_of(embedded.source, 0) else ""
    )
    return make(embedded, seed=seed).draw(
        f"{kind}: {Path(str(name)).name} on {short_name(source.name)}", remark
    )


def short_name(source: str) -> str:
    """The last part of a source's name: cifar10 of parquet:/data/cifar10."""
    return source.rstrip("/").rpartition("/")[2].rpartition(":")[2] or source
