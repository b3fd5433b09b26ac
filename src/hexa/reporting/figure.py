"""`hexa figure KIND …`: one of the figures that show a run, its views or its backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from hexa.config import UserError, nearest
from hexa.data import open_source
from hexa.experiment import Experiment
from hexa.reporting import plots
from hexa.reporting.gallery import gallery
from hexa.reporting.visualize import Look
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone, load_backbone

Target = Path | str | Experiment
_BATCH = 64


def hard_examples(target: Target, data: str | None, seed: int) -> Figure:
    """The views of some images and every hard example made of them."""
    look = Look.at(target, data)
    batch = look.batch(max(6, min(look.experiment.batch_size, _BATCH)), Stream(seed).child("visualize"))
    remark = (
        "Below a view: its loss through the batch-norms it is trained through; |δ|, the mean change in grey levels; λ, "
        "the share of itself that it keeps."
    )
    return plots.hard_examples(
        gallery(look.objective(), batch, 6), title=_named("hard examples", target, look), remark=remark
    )


def view_space(target: Target, data: str | None, seed: int) -> Figure:
    """Clean, adversarial and mixed views in two dimensions."""
    look = Look.at(target, data)
    return plots.view_space(plots.embed_views(look, seed=seed), title=_named("view space", target, look))


def confusion(target: Target, data: str | None, seed: int) -> Figure:
    """How many pseudo-labels an attack moves views away from."""
    look = Look.at(target, data)
    found = plots.confusion(look, num_images=min(look.experiment.batch_size, 4 * _BATCH), seed=seed)
    return plots.confusion_curves(found, title=_named("pseudo-labels under attack", target, look))


#: Figures of views, which need a method: a run, or a recipe with random weights.
OF_VIEWS: dict[str, Callable[[Target, str | None, int], Figure]] = {
    "hard-examples": hard_examples,
    "view-space": view_space,
    "confusion": confusion,
}
#: Figures of features, which any backbone gives.
OF_FEATURES: dict[str, Callable[..., Figure]] = {
    "neighbours": plots.nearest_neighbours,
    "clusters": plots.clusters,
}


def figure(kind: str, target: Target | Backbone, data: str | None, out: Path | str, *, seed: int = 0) -> Path:
    """Write a figure as PNG or SVG, by the ending of `out`, and return its path.

    kind: hard-examples, view-space or confusion of a run's folder, a recipe's name or an experiment; neighbours or
    clusters of any backbone. data: a source; None for the run's own images. Raises UserError.
    """
    known = {**OF_VIEWS, **OF_FEATURES}
    if kind not in known:
        raise UserError(f"unknown figure '{kind}'; {nearest(kind, known)}")
    if kind in OF_VIEWS:
        if isinstance(target, Backbone):
            raise UserError(f"{kind} is a figure of a method; give a run or a recipe, or take neighbours or clusters")
        return plots.save(OF_VIEWS[kind](target, data, seed), out)
    if isinstance(target, Experiment):
        raise UserError(f"{kind} is a figure of a trained backbone; give a run, a file or a name")
    backbone = target if isinstance(target, Backbone) else load_backbone(target)
    data = data or backbone.info.get("data")
    if not data:
        raise UserError("a backbone without a run has no images of its own; give some with --data SOURCE")
    source = open_source(str(data), None if "#" in str(data) else "train", channels=len(backbone.mean))
    embedded = plots.Embedded.of(backbone, source, seed=seed)
    name = target if isinstance(target, str | Path) else backbone.info.get("spec", "a backbone")
    heading = {"neighbours": "nearest neighbours", "clusters": "clusters"}[kind]
    title = f"{heading}: {Path(str(name)).name} on {short_name(source.name)}"
    return plots.save(OF_FEATURES[kind](embedded, seed=seed, title=title), out)


def _named(what: str, target: Target, look: Look) -> str:
    name = look.experiment.recipe if isinstance(target, Experiment) else Path(str(target)).name
    length = f"step {look.step:,}" if look.step else "random weights"
    return f"{what}: {name} on {short_name(look.source.name)}, {length}"


def short_name(source: str) -> str:
    """The last part of a source's name: cifar10 of parquet:/data/cifar10."""
    return source.rstrip("/").rpartition("/")[2].rpartition(":")[2] or source
