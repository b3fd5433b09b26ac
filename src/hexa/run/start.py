"""Adapts an experiment to its initial weights: network, normalisation, image size."""

from __future__ import annotations

from collections.abc import Collection

from hexa.config import UserError, field_error
from hexa.nn import backbones
from hexa.nn.backbones import takes_option
from hexa.nn.image_size import is_fixed, network_at, rounded
from hexa.recipes.experiment import Experiment, override
from hexa.weights import start

#: Optimizer fields for networks with few convolutions, for which Muon is unsuitable.
_BY_ADAMW = {"optimizer.name": "adamw", "optimizer.learning_rate": 3e-4}
#: Factor of the learning rate from each block to the block before it (as in the fine-tuning of BEiT; Bao et al., 2022).
_BY_STAGE = {"start.layer_decay": 0.75}


def begin_from_weights(experiment: Experiment, given: Collection[str] = ()) -> Experiment:
    """Return the experiment with network, normalisation, image size and digest of `start.weights`.

    given: dotted paths of fields that the user set; these fields override those of the weights. Crops of other sizes
    (multi-crop) keep their proportion to the first crops. A network with few convolutions is trained by AdamW instead
    of Muon. A vision transformer, with or without initial weights, is built for the sizes of the views. An experiment
    with a recorded digest is returned unchanged. Raises UserError for unreadable weights and for weights of another
    network.
    """
    config = experiment.start
    if config.sha256 is not None:
        return experiment
    if config.weights is None:
        return _for_views(experiment, given)
    backbone = start.of(config)
    theirs = backbone.network_config
    for name in ("name", "stem"):
        own = getattr(theirs, name)
        if f"network.{name}" in given and getattr(experiment.network, name) != own:
            raise field_error(
                f"network.{name}", f"the weights {config.weights} have {own}; leave out this field"
            )
    stages = start.count_stages(backbone.network)
    if (config.trainable_stages or 0) > stages:
        raise field_error(
            "start.trainable_stages",
            f"must be at most {stages}, the number of stages of {theirs.name}, or none for all; got {config.trainable_stages}",
        )
    network = theirs.model_dump(mode="json") | {"mean": backbone.mean, "std": backbone.std}
    views = experiment.views
    size = views.size if "views.size" in given else backbone.image_size
    changes = {f"network.{name}": value for name, value in network.items()}
    changes |= {
        "views.size": size,
        "views.extra_crops": tuple(crop.sized(size / views.size) for crop in views.extra_crops),
        "start.sha256": backbone.content_hash(),
        "start.crop": backbone.preparation.crop,
        "start.interpolation": backbone.preparation.interpolation,
    }
    is_muon = experiment.optimizer.name == "muon" and "optimizer.name" not in given
    if is_muon and not start.convolves(backbone.network):
        changes |= _BY_ADAMW
        if stages > 1:
            changes |= _BY_STAGE
    changes = {path: value for path, value in changes.items() if path not in given}
    if "views.test_scale" in given:
        changes["views.test_scale"] = views.test_scale
    return _for_views(override(experiment, changes), given)


def _for_views(experiment: Experiment, given: Collection[str]) -> Experiment:
    """Return the experiment with a vision transformer that accepts the sizes of its views.

    Extra crops of a recipe are rounded to multiples of the patch size. Raises ConfigError.
    """
    network = experiment.network
    views = experiment.views
    if any(path.startswith("network.options") for path in given) or not is_fixed(network):
        return experiment
    try:
        options = dict(network_at(network, views.size).options)
    except UserError as error:
        raise field_error("views.size", str(error)) from None
    outline = backbones.outline(network)
    crops = views.extra_crops
    if "views.extra_crops" not in given:
        crops = tuple(
            crop.model_copy(update={"size": crop.size and rounded(outline, crop.size)})
            for crop in crops
        )
    sizes = {views.size, views.test_size, *(crop.size or views.size for crop in crops)}
    if len(sizes) > 1 and takes_option(network, "dynamic_img_size"):
        options["dynamic_img_size"] = True
    return override(experiment, {"network.options": options, "views.extra_crops": crops})
