"""`hexa figure KIND …`: one of the figures that show a run, its views or its backbone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from hexa.config import UserError, nearest
from hexa.data import open_source
from hexa.reporting.gallery import class_of
from hexa.reporting.style import save
from hexa.run.visualize import Look, is_known, own_images
from hexa.runtime.console import Progress, silent
from hexa.weights.pretrained import Backbone, load_backbone
from hexa_paper.figures.clusters import EmbeddedImages, clusters
from hexa_paper.figures.view_space import embed_views, view_space

Target = Path | str | Backbone

#: The figure of views, which needs a method: a run, or a recipe with random weights.
VIEW_SPACE = "view-space"
#: The figure of features, which any backbone gives.
CLUSTERS = "clusters"


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
    if kind == CLUSTERS:
        return save(_of_features(target, data, opens_own, seed, progress), out)
    if kind != VIEW_SPACE:
        raise UserError(f"unknown figure '{kind}'; {nearest(kind, [VIEW_SPACE, CLUSTERS])}")
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
    target: Target, data: str | None, opens_own: bool, seed: int, progress: Progress
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
    count = len(embedded.features)
    remark = f"Spherical k-means on the features of {count:,} images; the most typical first."
    if class_of(embedded.source, 0):
        remark += " Percent: the share of the most frequent class, which the backbone never saw."
    title = f"{CLUSTERS}: {Path(str(name)).name} on {short_name(source.name)}"
    return clusters(embedded, seed=seed).draw(title, remark)


def short_name(source: str) -> str:
    """The last part of a source's name: cifar10 of parquet:/data/cifar10."""
    return source.rstrip("/").rpartition("/")[2].rpartition(":")[2] or source
