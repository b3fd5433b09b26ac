"""One evaluation from what was asked to the result that is written."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hexa.config import Config, UserError
from hexa.data import Source
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.data.sources.known import known_as
from hexa.data.sources.source import Subset
from hexa.evaluation import protocols, results
from hexa.evaluation.protocol import Outcome, Protocol, Task, deviations, majority_class
from hexa.evaluation.request import EvaluationRequest
from hexa.evaluation.split import fit_and_test
from hexa.runtime import precision as precisions, processes
from hexa.runtime.console import Progress
from hexa.runtime.packages import provenance, versions
from hexa.runtime.processes import from_main, main_first
from hexa.weights.preparation import shown
from hexa.weights.pretrained import Backbone, describe, load_backbone


@dataclass(frozen=True)
class _Asked:
    """An evaluation that was asked for."""

    name: str
    """The protocol's name."""
    protocol: Protocol
    request: EvaluationRequest
    """The options of every protocol."""
    preset: str
    settings: Config
    """The options of this protocol."""
    explicit: frozenset[str]
    """Options of the protocol that were given."""


def _asked(name: str, options: Mapping[str, Any]) -> _Asked:
    """Sort the options into common ones and the protocol's, which go before common ones of that name."""
    protocol = protocols.get(name)
    own = {field for preset in protocol.presets.values() for field in type(preset).model_fields}
    common = EvaluationRequest.model_fields.keys() - own
    given = {option: value for option, value in options.items() if option in common}
    request = EvaluationRequest.from_fields(given)
    changes = {option: value for option, value in options.items() if option not in common}
    preset, settings = protocol.options(request.preset, changes, common)
    return _Asked(name, protocol, request, preset, settings, frozenset(changes))


def measure(
    protocol: str,
    backbone: str | Path | Backbone,
    data: str,
    options: Mapping[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """`hexa.evaluation.evaluate`."""
    made_by = provenance()
    asked = _asked(protocol, options)
    out = asked.request.out
    collected = None
    if isinstance(backbone, str | Path) and (Path(backbone) / "config.yaml").is_file():
        collected = Path(backbone) / "results.json"
    made: Outcome | None = None
    with processes.alone():
        # where the result cannot be written, that is found before the work
        unwritable = from_main(lambda: results.check(out, collected))
        task = main_first(lambda: _task(asked, backbone, data, out or collected, progress))
        begin = time.perf_counter()
        for part in asked.protocol.extracts(asked.settings):
            task.features(part)
    if asked.protocol.together(asked.settings):
        made = asked.protocol.run(task, asked.settings)

    def finish() -> dict[str, Any]:
        outcome = made or asked.protocol.run(task, asked.settings)
        _add_guessing(outcome, task)
        outcome.notes += [unwritable] if unwritable else []
        spec = task.backbone.info.get("spec", "module")
        result = _result(asked, task, outcome) | made_by
        result["backbone"] = str(backbone) if isinstance(backbone, str | Path) else spec
        result["data"] = data
        result["seconds"] = time.perf_counter() - begin
        results.keep(result, out, None if unwritable else collected)
        return result

    with processes.alone():
        return from_main(finish)


def _task(
    asked: _Asked,
    backbone: str | Path | Backbone,
    data: str,
    target: Path | None,
    progress: Progress,
) -> Task:
    """The backbone and the images. Raises UserError for what does not fit together."""
    request = asked.request
    protocol = asked.protocol
    loaded = load_backbone(backbone, request.seed, request.branch, **request.given)
    device = precisions.pick_device(request.device)
    channels = len(loaded.mean)
    fit, test, class_names, notes = fit_and_test(data, request, channels)
    if protocol.labels == "one" and fit.classes is None:
        others = [name for name, other in protocols.every().items() if other.labels == "any"]
        problem = f"data '{data}' is multi-label; {asked.name} needs one label per image"
        raise UserError(f"{problem}, use {', '.join(others)}")
    if protocol.resizes and channels != 3:
        problem = f"{asked.name} needs RGB images, but this backbone takes {channels} channels"
        raise UserError(problem)
    resized = loaded.deviations.keys() & {"size", "crop", "interpolation"}
    if protocol.resizes and resized:
        raise UserError(
            f"{asked.name} resizes images by options of its own; leave out "
            f"{', '.join(sorted(resized))}"
        )
    trained = None if protocol.extracts(asked.settings) else loaded
    return Task(
        backbone=loaded,
        fit=fit,
        test=test,
        class_names=class_names,
        device=device,
        precision=precisions.resolve(request.precision, device, trained),
        num_workers=request.num_workers,
        extraction_batch=request.extraction_batch,
        seed=request.seed,
        target=target,
        chosen=asked.explicit,
        report=progress,
        notes=list(dict.fromkeys([*fit.notes(), *test.notes(), *notes])),
    )


def _add_guessing(outcome: Outcome, task: Task) -> None:
    """Add the share of the most frequent class to accuracies, and note if the best one is that of guessing."""
    labels = task.scored_labels()
    metrics = outcome.metrics
    best = max(
        (metrics[one] for one in metrics if re.fullmatch(r"(top1|mAP)(@\d+)?", one)), default=100
    )
    # the mean precision of any order of the images is the share that shows the class
    guessing = 100 / task.num_classes if labels.ndim == 1 else 100 * float((labels == 1).mean())
    majority = 0.0
    if any(name.startswith("top1") for name in metrics):
        majority = metrics.setdefault("majority_class", majority_class(labels))
    if best <= 1.1 * guessing:
        outcome.notes.append(f"no better than guessing ({guessing:.1f} %): look at the run")
    elif best <= majority:
        name = task.class_names[int(np.bincount(labels).argmax())]
        outcome.notes.append(
            f"the accuracy ({best:.1f} %) is not above the share of the most frequent class, {name} "
            f"({majority:.1f} %), which a constant answer reaches; look at balanced_accuracy "
            f"(a constant answer: {100 / len(np.unique(labels)):.1f} %)"
        )


def _result(asked: _Asked, task: Task, outcome: Outcome) -> dict[str, Any]:
    """The result of an evaluation.

    Its protocol id has every setting that can change a score; precision, seed and images are fields of their own.
    """
    request = asked.request
    used = asked.settings.model_copy(update=outcome.effective)
    changes = {
        option: pair
        for option, pair in deviations(asked.protocol.presets[asked.preset], used).items()
        if option in asked.explicit
        or pair[0] is not None  # none means: as published for the data at hand
    }
    images = dict(task.backbone.deviations)
    if request.branch != "main":
        images["branch"] = ["main", request.branch]
    identity = f"{asked.name}/{asked.protocol.identity(asked.preset, used)}"
    if outcome.grouped:
        identity += "-grouped"
    if request.holdout:
        identity += f"-holdout{request.holdout:g}"
    if task.fit.drawn is not None and task.fit.drawn.images < task.fit.drawn.of:
        identity += f"-{len(task.fit)}-images"
    for name, (_, value) in images.items():
        identity += f"-{name}{shown(value)}"
    facts = describe(task.backbone)
    preparation = task.backbone.said()
    return {
        "protocol": identity,
        "preset": asked.preset,
        "metrics": outcome.metrics,
        "encoder": facts["encoder"],
        "branch": facts["branch"],
        "backbone_facts": facts,
        "data_facts": {"fit": _facts(task.fit), "test": _facts(task.test)},
        "transform": outcome.transform or _transform(task.transform, task.fit, task.test),
        "options": used.model_dump(mode="json"),
        "deviations": changes | images,
        "details": outcome.details,
        "notes": [*([preparation] if preparation else []), *task.notes, *outcome.notes],
        "seed": task.seed,
        "precision": task.precision,
        "versions": {"python": platform.python_version(), **versions()},
    }


def _facts(source: Source) -> dict[str, Any]:
    """Facts of images for the result; `part_of` is the fingerprint of all images that these were drawn from."""
    facts = {**source.facts, "known_as": known_as(source)}
    while isinstance(source, Subset):
        source = source.source
        facts["part_of"] = source.fingerprint
    return facts


def _transform(transform: EvaluationTransform, *sources: Source) -> dict[str, Any]:
    """The transform of images of these sources, for the result.

    resize: "whole", or "shorter side to N, centre S", to which is added that small squares are taken whole if the
    images may differ in size.
    """
    sizes = [source.uniform_size for source in sources]
    whole = [size is not None and transform.takes_whole(*size) for size in sizes]
    resize = f"shorter side to {transform.short}, centre {transform.size}"
    if None in sizes or any(whole):
        resize += f"; squares of at most {transform.size} px whole"
    return {
        "size": transform.size,
        "resize": "whole" if all(whole) else resize,
        "interpolation": f"{transform.interpolation}, antialiased",
    }
