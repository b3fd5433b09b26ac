"""One evaluation from what was asked to the result that is written."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hexa.config import Config, UserError
from hexa.data import Source
from hexa.data.sources.known import known_as
from hexa.evaluation import protocols, results, transforms
from hexa.evaluation.collective import from_main, main_first
from hexa.evaluation.features import extract_part
from hexa.evaluation.protocol import Outcome, Protocol, Task, deviations, majority_class
from hexa.evaluation.request import EvaluationRequest
from hexa.evaluation.split import fit_and_test
from hexa.runtime import precision as precisions, processes
from hexa.runtime.packages import provenance
from hexa.runtime.progress import Progress
from hexa.weights.preparation import shown
from hexa.weights.pretrained import Backbone, describe, load_backbone


class _Asked(NamedTuple):
    """An evaluation that was asked for: the options of every protocol, and those of this one."""

    protocol: str
    chosen: Protocol
    request: EvaluationRequest
    preset: str
    settings: Config
    explicit: frozenset[str]
    """Options of the protocol that were given."""


def measure(
    protocol: str,
    backbone: str | Path | Backbone,
    data: str,
    options: Mapping[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """`hexa.evaluation.evaluate`."""
    made_by = provenance()
    chosen = protocols.get(protocol)
    # an option of a protocol's own goes before the common one of that name
    own = {name for preset in chosen.presets.values() for name in type(preset).model_fields}
    common = EvaluationRequest.model_fields.keys() - own
    request = EvaluationRequest.from_fields(
        {name: value for name, value in options.items() if name in common}
    )
    settings = {name: value for name, value in options.items() if name not in common}
    asked = _Asked(
        protocol,
        chosen,
        request,
        *chosen.options(request.preset, settings, common),
        frozenset(settings),
    )
    run = Path(backbone) if isinstance(backbone, str | Path) else None
    collected = (
        run / "results.json" if run is not None and (run / "config.yaml").is_file() else None
    )
    with processes.alone():
        # where the result cannot be written, that is found before the work
        note = from_main(lambda: results.check(asked.request.out, collected))
        task = main_first(
            lambda: _load(asked, backbone, data, asked.request.out or collected, progress)
        )
        begin = time.perf_counter()
        for part in asked.chosen.extracts(asked.settings):
            extract_part(task, part)

        def finish() -> dict[str, Any]:
            outcome = asked.chosen.run(task, asked.settings)
            _judge(outcome, task, protocol)
            if note:
                outcome.notes.append(note)
            spec = (
                str(backbone)
                if isinstance(backbone, str | Path)
                else task.backbone.info.get("spec", "module")
            )
            result = (
                _result(asked, task, outcome, spec, data)
                | made_by
                | {"seconds": time.perf_counter() - begin}
            )
            results.keep(result, asked.request.out, None if note else collected)
            return result

        return from_main(finish)


def _load(
    asked: _Asked,
    backbone: str | Path | Backbone,
    data: str,
    target: Path | None,
    progress: Progress,
) -> Task:
    """The backbone and the images. Raises UserError for what does not fit together."""
    request = asked.request
    chosen = asked.chosen
    loaded = load_backbone(backbone, request.seed, request.branch, **request.given)
    device = precisions.pick_device(request.device)
    channels = len(loaded.mean)
    fit, test, class_names = fit_and_test(data, request, channels)
    if chosen.labels == "one" and fit.classes is None:
        several = ", ".join(
            name for name, other in protocols.every().items() if other.labels == "any"
        )
        raise UserError(
            f"data '{data}' is multi-label; {asked.protocol} needs one label per image, use {several}"
        )
    if chosen.resizes and channels != 3:
        raise UserError(
            f"{asked.protocol} needs RGB images, but this backbone takes {channels} channels"
        )
    task = Task(
        backbone=loaded,
        fit=fit,
        test=test,
        class_names=class_names,
        transform=transforms.transform_of(loaded, request.aspect),
        device=device,
        precision=precisions.resolve(
            request.precision, device, None if chosen.extracts(asked.settings) else loaded
        ),
        num_workers=request.num_workers,
        extraction_batch=request.extraction_batch,
        seed=request.seed,
        target=target,
        chosen=asked.explicit,
        report=progress,
        notes=list(dict.fromkeys([*fit.notes(), *test.notes()])),
    )
    transforms.check(task, asked.protocol, chosen, asked.settings)
    return task


def _judge(outcome: Outcome, task: Task, protocol: str) -> None:
    """Add the share of the most frequent class to accuracies, and note if the best one is that of guessing."""
    labels = task.test.labels
    assert labels is not None, "a task has labelled sources"
    scores = [
        value for name, value in outcome.metrics.items() if re.fullmatch(r"(top1|mAP)(@\d+)?", name)
    ]
    best = max(scores, default=100.0)
    # the mean precision of any order of the images is the share that shows the class
    guessing = 100 / task.num_classes if labels.ndim == 1 else 100 * float((labels == 1).mean())
    majority = 0.0
    if any(name.startswith("top1") for name in outcome.metrics):
        read = task.extracted.get("test")
        seen = labels if read is None else read[1].numpy()
        majority = outcome.metrics.setdefault("majority_class", majority_class(seen))
    if best <= 1.1 * guessing:
        remedy = (
            "try another preset or learning_rate" if protocol == "linear" else "look at the run"
        )
        outcome.notes.append(f"no better than guessing ({guessing:.1f} %): {remedy}")
    elif best <= majority:
        name = task.class_names[int(np.bincount(labels).argmax())]
        outcome.notes.append(
            f"the accuracy ({best:.1f} %) is not above the share of the most frequent class, {name} "
            f"({majority:.1f} %), which a constant answer reaches; look at balanced_accuracy "
            f"(a constant answer: {guessing:.1f} %)"
        )


def _result(
    asked: _Asked, task: Task, outcome: Outcome, backbone: str, data: str
) -> dict[str, Any]:
    """What was measured and how; all that can move a score is in the protocol id."""
    request = asked.request
    chosen = asked.chosen
    used = asked.settings.model_copy(update=outcome.effective)
    changes = {
        option: pair
        for option, pair in deviations(chosen.presets[asked.preset], used).items()
        if option in asked.explicit
        or pair[0] is not None  # none means: as published for the data at hand
    }
    aspect = {"aspect": ["crop", request.aspect]} if request.aspect != "crop" else {}
    branch = {"branch": ["main", request.branch]} if request.branch != "main" else {}
    images = task.backbone.deviations | aspect | branch
    identity = chosen.identity(asked.preset, used) + (
        f"-holdout{request.holdout:g}" if request.holdout else ""
    )
    if task.fit.drawn is not None and task.fit.drawn.images < task.fit.drawn.of:
        identity += f"-{len(task.fit)}-images"
    identity += "".join(f"-{name}{shown(value)}" for name, (_, value) in images.items())
    facts = describe(task.backbone)
    preparation = task.backbone.said()
    return {
        "protocol": f"{asked.protocol}/{identity}",
        "preset": asked.preset,
        "metrics": outcome.metrics,
        "backbone": backbone,
        "encoder": facts["encoder"],
        "branch": facts["branch"],
        "backbone_facts": facts,
        "data": data,
        "data_facts": {"fit": _facts(task.fit), "test": _facts(task.test)},
        "transform": outcome.transform or transforms.describe(task.transform, task.fit, task.test),
        "options": used.model_dump(mode="json"),
        "deviations": changes | images,
        "details": outcome.details,
        "notes": [*([preparation] if preparation else []), *task.notes, *outcome.notes],
        "seed": task.seed,
        "precision": task.precision,
        "versions": results.versions(),
    }


def _facts(source: Source) -> dict[str, Any]:
    return {**source.facts, "known_as": known_as(source)}
