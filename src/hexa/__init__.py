"""Self-supervised visual pre-training with hard examples.

The short way. Every part is usable alone as well: `hexa.core`, `hexa.methods`, `hexa.hard_examples`, ….
Importing this package is quick: torch is imported by the first call that needs it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Unpack

    from hexa.recipes.experiment import Experiment
    from hexa.weights.preparation import Given
    from hexa.weights.pretrained import Backbone

__version__ = "0.2.0.dev0"
__all__ = [
    "__version__",
    "adapt",
    "compare",
    "embed",
    "evaluate",
    "harden",
    "load_backbone",
    "pretrain",
]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _public(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Make gradients possible whatever the caller's mode."""

    @functools.wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        import torch

        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return called


@_public
def pretrain(
    recipe: str | Experiment,
    data: str | None = None,
    epochs: int | None = None,
    out: str | Path | None = None,
    start: str | Path | None = None,
    **fields: Any,
) -> Path:
    """Pre-train a backbone without labels and return the run folder.

    `recipe` is a name that `hexa recipes` lists, `file.py:function`, or an Experiment. `data` is a source such as
    "digits" or "folder:photos"; `out` the run folder, "runs/RECIPE" if not given; `start` the weights to begin from, a
    run, a file or "timm:NAME", whose network, normalisation and image size are taken over.
    Further fields of the experiment are given by their dotted path:
    `pretrain("digits-moco-v2", **{"method.temperature": 0.1})`.

    Raises ValueError for an invalid field, source or folder, before anything is written.
    """
    from hexa.recipes.experiment import override
    from hexa.recipes.plugins import experiment_of
    from hexa.run.run import pretrain as train
    from hexa.run.start import begin_from_weights

    experiment = experiment_of(recipe) if isinstance(recipe, str) else recipe
    changes = {
        "data": data,
        "epochs": epochs,
        "start.weights": None if start is None else str(start),
    }
    changes = {name: value for name, value in changes.items() if value is not None} | fields
    return train(begin_from_weights(override(experiment, changes), changes), out)


@_public
def adapt(
    backbone: str | Path,
    data: str,
    *,
    labelled: str | None = None,
    groups: str | None = None,
    time: str | float = "30m",
    out: str | Path = "runs/adapt",
    domain: str | None = None,
    plan: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """Train a backbone further on your own images within a time, and say whether it helped.

    `backbone` is whatever `pretrain` may start from, `data` the images to learn from, `labelled` images to judge by,
    whose labels are never trained on; `groups`, which of these were taken together, as in `compare`; `time` as "90s",
    "30m" or "1h30m", or in seconds. `out` becomes a run folder that also holds the better of start and result for timm,
    and the same call continues it if it was interrupted. domain: the kind of images, such as "aerial", which decides
    the views; by their look if None. plan: print and return the plan, train nothing. fields as in `pretrain`.

    Returns what the run keeps of it: `request`, `plan`, `table` (both sides' scores), `verdict`, and `kept`, the side
    that won. Raises ValueError.
    """
    from pathlib import Path

    from hexa.adaptation.command import adapt as run
    from hexa.adaptation.request import AdaptRequest
    from hexa.runtime.parsing import seconds_of

    request = AdaptRequest(
        str(backbone),
        str(data),
        labelled=labelled,
        seconds=seconds_of(time),
        domain=domain,
        fields=fields,
        groups=groups,
    )
    return run(request, Path(out), only_plan=plan)


@_public
def harden(
    backbone: str | Path,
    data: str,
    *,
    labelled: str | None = None,
    groups: str | None = None,
    time: str | float = "30m",
    strength: float = 4.0,
    price: float = 2.0,
    out: str | Path = "runs/harden",
    domain: str | None = None,
    plan: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """Make a backbone robust against attacks on your own images within a time, and say what it gained and cost.

    strength: the radius of the attack in training, in grey levels of 255. price: points of clean accuracy, by the
    labels, that may be lost. The rest, and what is returned, as of `adapt`. Raises ValueError.
    """
    from pathlib import Path

    from hexa.adaptation.command import adapt as run
    from hexa.adaptation.harden import HardenRequest
    from hexa.runtime.parsing import seconds_of

    request = HardenRequest(
        str(backbone),
        str(data),
        labelled=labelled,
        seconds=seconds_of(time),
        domain=domain,
        fields=fields,
        groups=groups,
        strength=strength,
        price=price,
    )
    return run(request, Path(out), only_plan=plan)


@_public
def load_backbone(spec: str | Path, **given: Unpack[Given]) -> Backbone:
    """The pre-trained network of a run folder, a file, or a name: images [B, 3, S, S] in [0, 1] -> features [B, D].

    `spec` is a run folder, a safetensors or checkpoint file, "timm:NAME", or "random:NAME" for a recipe or a network
    with untrained weights. Pixels are normalised inside. The state_dict is that of `.network`, the plain torch network,
    and loads into timm's or torchvision's. given: mean, std, size, crop or interpolation of the images, instead of what
    the backbone comes with.
    Raises ValueError.
    """
    from hexa.weights.pretrained import load_backbone as load

    return load(named(spec), **given)


@_public
def evaluate(
    protocol: str, backbone: str | Path | Backbone, data: str, **options: Any
) -> dict[str, Any]:
    """Evaluate a backbone on labelled images: "knn" or "linear" -> results with protocol, metrics in percent, seed ….

    `backbone` is anything `load_backbone` takes, or what it returned. options: those of `hexa.evaluation.evaluate`
    (preset, seed, holdout, …) and those of the protocol (k, …). Results for a run folder are added to its results.json.
    Raises ValueError.
    """
    from hexa.evaluation import evaluate as run
    from hexa.evaluation.request import EvaluationRequest

    seed = EvaluationRequest.from_fields({"seed": options.get("seed", 0)}).seed
    return run(protocol, named(backbone, seed), str(data), **options)


@_public
def embed(backbone: str | Path | Backbone, data: str, out: str | Path, **options: Any) -> Path:
    """Write the features of every image to `out`, .npz or .parquet: features [N, D] float32, labels [N], paths [N].

    options: `hexa.evaluation.request.EmbeddingRequest`. dense: the last feature maps [N, C, h, w] as features instead,
    to .npz. mean, std, size, crop, interpolation: as for `load_backbone`.
    """
    from hexa.evaluation.embed import embed as run

    return run(named(backbone), str(data), out, **options).path


@_public
def compare(
    backbones: Sequence[str | Path | Backbone],
    data: str,
    labelled: str | None = None,
    out: str | Path | None = None,
    *,
    time: str | float = "10m",
    **options: Any,
) -> dict[str, Any]:
    """Compare two backbones or more on images -> verdict, best, backbones with their scores, pairs with differences.

    backbones: each is anything `load_backbone` takes; the first is what the others are compared with. labelled: images
    to judge by, those of `data` if None and they have labels. out: a folder for compare.html and compare.json. time: to
    read images and extract features, as "90s" or "10m". options: images (compare on that many), groups ("FILE.csv" with
    columns path and group, "column:NAME" or "key:NAME"), size, seed, device, precision, num_workers, max_image_pixels: those
    of `hexa compare`; seconds, instead of time.
    """
    from pathlib import Path

    from hexa.comparison.compare import CompareRequest, compare as run
    from hexa.comparison.page import write
    from hexa.config import UserError, nearest
    from hexa.runtime.parsing import seconds_of

    if isinstance(backbones, str | Path):
        raise UserError(f"compare: backbones must be a list, got '{backbones}'")
    options = {"seconds": seconds_of(time), **options}
    known = {"time", *CompareRequest.__dataclass_fields__}
    for name in options.keys() - known:
        raise UserError(f"compare: unknown option '{name}'; {nearest(name, known)}")
    request = CompareRequest(
        backbones=tuple(map(named, backbones)), data=data, labelled=labelled, **options
    )
    found = run(request)
    if out is not None:
        write(found, request, Path(out))
    return found.record


def named(spec: str | Path | Backbone, seed: int = 0) -> str | Path | Backbone:
    """`spec` as it is, unless it is random:RECIPE or random:FILE.py:FUNCTION: that untrained network, from this seed.

    The evaluation knows networks, not recipes; this is where the two meet.
    """
    kind, _, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if kind != "random":
        return spec
    from hexa.recipes import listing, plugins

    if name.partition("+")[0] not in listing.names() and not plugins.is_plugin(name):
        return spec
    from hexa.weights.pretrained import random_backbone

    experiment = plugins.experiment_of(name)
    backbone = random_backbone(experiment.network, experiment.views.test_size, seed)
    backbone.info["spec"] = spec
    return backbone
