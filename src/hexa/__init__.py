"""Self-supervised visual pre-training with hard examples.

This module has the functions for common tasks. The parts are usable on their own: `hexa.core`, `hexa.methods`,
`hexa.hard_examples` and others. Importing this package is fast, because torch is imported by the first call that needs
it.
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
    """Wrap a public function so that gradients work even if the caller is in inference mode."""

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

    recipe: a name from `hexa recipes`, "file.py:function", or an Experiment. data: a source such as "digits" or
    "folder:photos" (default: set by the recipe). epochs: number of passes over the data (default: set by the recipe).
    out: run folder (default: "runs/RECIPE"). start: initial weights (a run folder, a file or "timm:NAME"); their
    network, normalisation and image size are used. fields: further fields of the experiment by dotted path, such as
    `pretrain("digits-moco-v2", **{"method.temperature": 0.1})`.

    Raises ValueError for an invalid field, source or folder before any file is written.
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
    """Continue training a backbone on your own images within a time limit, and measure whether it helped.

    backbone: initial weights, as for `start` of `pretrain`. data: training images. labelled: labelled images for the
    evaluation; their labels are never used in training. groups: source of group labels, as in `compare`. time: time
    limit such as "90s", "30m" or "1h30m", or a number of seconds. out: run folder, which also gets the better weights
    for timm; after an interruption, the same call continues. domain: kind of images, such as "aerial", which decides
    the views (default: chosen by the look of the images). plan: print and return the plan without training. fields: as
    in `pretrain`.

    Returns the record of the run: `request`, `plan`, `table` (scores), `verdict`, and `kept`, which is "start" for the
    initial weights or "result" for the trained weights. Raises ValueError.
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
    """Make a backbone robust against attacks on your own images within a time limit, and measure gain and cost.

    strength: radius ε of the attack during training, in units of 1/255. price: allowed loss of clean accuracy, in
    percentage points. The other arguments and the returned record are those of `adapt`. Raises ValueError.
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
    """Return a pre-trained network: images [B, 3, S, S] in [0, 1] -> features [B, D].

    spec: a run folder, a safetensors or checkpoint file, "timm:NAME", or "random:NAME" for an untrained network or
    recipe. The network normalises the pixels. Its attribute `network` is the plain torch network, whose state_dict
    loads into the network of timm or torchvision. given: mean, std, size, crop or interpolation of the images (default:
    those of the backbone). Raises ValueError.
    """
    from hexa.weights.pretrained import load_backbone as load

    return load(named(spec), **given)


@_public
def evaluate(
    protocol: str, backbone: str | Path | Backbone, data: str, **options: Any
) -> dict[str, Any]:
    """Evaluate a backbone on labelled images; return protocol, metrics in percent, seed and other facts.

    protocol: "knn", "linear" or another protocol of `hexa evaluate`. backbone: a spec for `load_backbone`, or a loaded
    backbone. options: options of `hexa.evaluation.evaluate` (preset, seed, holdout, …) and of the protocol (k, …). For a
    run folder, the result is also added to its results.json. Raises ValueError.
    """
    from hexa.evaluation import evaluate as run
    from hexa.evaluation.request import EvaluationRequest

    seed = EvaluationRequest.from_fields({"seed": options.get("seed", 0)}).seed
    return run(protocol, named(backbone, seed), str(data), **options)


@_public
def embed(backbone: str | Path | Backbone, data: str, out: str | Path, **options: Any) -> Path:
    """Write the features of every image to `out` and return its path.

    The file, .npz or .parquet, has features [N, D] float32, labels [N] and paths [N]. options: fields of
    `hexa.evaluation.request.EmbeddingRequest`, among them dense (write the last feature maps [N, C, h, w], .npz only) and
    mean, std, size, crop, interpolation (as for `load_backbone`).
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
    """Compare two backbones or more on images; return verdict, best, backbones with scores, pairs with differences.

    backbones: specs for `load_backbone`, or loaded backbones; differences are from the first. labelled: source
    of labelled images for the scores (default: `data`). out: folder for compare.html and compare.json (default: write
    nothing). time: time limit to read images and extract features, such as "90s" or "10m". options: images (number of
    labelled images), groups ("FILE.csv" with columns path and group, "column:NAME" or "key:NAME"), size, seed, device,
    precision, num_workers, max_image_pixels, as in `hexa compare`; seconds (a number that replaces time).
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
    """Return the untrained network of a recipe for random:RECIPE or random:FILE.py:FUNCTION, and any other spec as it is.

    seed: seed of the random weights. The evaluation itself knows networks, but no recipes.
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
