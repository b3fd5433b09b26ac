"""Faster R-CNN that starts from the backbone, on VOC: AP, AP50, AP75. Presets `moco`: C4, everything fine-tuned,
24,000 steps; `appendix`: a feature pyramid on the frozen backbone, 15 epochs.

F28, D24. `moco` is MoCo's R50-C4 for Detectron2, with whose numbers the paper compares; an extra batch-norm
follows the box head's last stage. `appendix` is the R50-FPN of the paper's appendix; where that is silent (warm-up,
image sizes, rule of the precision) it is as `moco`, else as Detectron2.

Built from torchvision's parts, this differs from Detectron2 in the following:

- one process: batch-norms see the whole batch, which is what SyncBN over several gives;
- the box losses are smooth L1 with β = 1/9, not L1; the proposals' are means over the anchors that were drawn, where
  Detectron2 divides by 256 per image;
- all images of a batch have one orientation, not only those of one GPU; they are padded to the network's stride;
- images are resized by torch's antialiased bilinear interpolation, not PIL's (at most 1/255 apart);
- boxes of equal scores are counted together, not in the order in which they are met.
"""

from __future__ import annotations

import copy
import json
import signal

import numpy as np

from hexa.config import UserError, some
from hexa.data import Source
from hexa.data.sources.source import Subset
from hexa.data.sources.voc import LISTS, VOCSource
from hexa.evaluation.average_precision import Values
from hexa.evaluation.protocol import Outcome, Protocol, Task, named_changes
from hexa.reporting.tables import counted
from hexa.runtime import paths
from hexa.runtime.random import Stream, global_draws
from hexa_paper.detection.boxes import fingerprint_of_boxes
from hexa_paper.detection.detector import Detector
from hexa_paper.detection.images import Joined, TrainingBatches, batches, boxes_of
from hexa_paper.detection.options import DetectOptions
from hexa_paper.detection.precision import OVERLAPS, RULES, precisions
from hexa_paper.detection.scoring import find
from hexa_paper.detection.state import kept_state
from hexa_paper.detection.training import Training


def run(task: Task, options: DetectOptions) -> Outcome:
    """AP, AP50 and AP75 in percent, means over the classes; AP is that over IoU 0.50, 0.55, …, 0.95 too.

    Difficult objects are learnt like others and are not scored.
    """
    fit, with_2012 = _training_images(task.fit, options)
    truth = boxes_of(task.test)
    boxes = boxes_of(fit)
    kept = [position for position, one in enumerate(boxes) if len(one.boxes)]
    if not kept or not any(len(one.boxes) for one in truth):
        raise UserError(
            f"{fit!r} and {task.test!r}: both must show objects, but one of them shows none"
        )
    boxes = [boxes[position] for position in kept]
    fit = Subset(fit, np.array(kept))
    iterations = options.iterations
    if {"iterations", "epochs"} <= task.chosen and None not in (options.iterations, options.epochs):
        raise UserError("detect: iterations and epochs exclude each other; give one of them")
    if iterations is None or (options.epochs is not None and "iterations" not in task.chosen):
        if options.epochs is None:
            raise UserError("detect: give iterations or epochs")
        iterations = max(1, int(options.epochs * len(fit) / options.batch_size))
    resolved = {"iterations": iterations, "epochs": None, "with_2012": with_2012}
    used = options.model_copy(update=resolved)

    stream = Stream(task.seed).child("detect")
    with global_draws(stream.child("new layers")):
        detector = Detector(copy.deepcopy(task.backbone), used, task.num_classes, task.precision)
    detector.to(task.device)
    wide = [one.size[1] > one.size[0] for one in boxes]
    order = batches(wide, used.batch_size, iterations + used.precise_bn, stream.child("order"))
    data = TrainingBatches(fit, boxes, order, used.shorter_side, used.longest_side, stream)
    # what changes no weight may differ between two sessions
    part = json.dumps(
        used.model_dump(mode="json", exclude={"save_every", "ap", "test_shorter_side"})
    )
    with kept_state(task, fit, fingerprint_of_boxes(boxes), part) as state:
        training = Training(task, detector, data, used, state)
        try:
            training.run()
            detected = find(task, detector, used.test_shorter_side, used.longest_side, state)
        except KeyboardInterrupt:
            if training.iteration < training.total:  # in a hurry, and not saved
                raise
            raise state.interrupted(signal.SIGINT, training.iteration) from None
        state.forget()

    seen = [truth[position] for position in detected]
    tables = {
        rule: 100 * precisions(list(detected.values()), seen, task.num_classes, rule)
        for rule in RULES
    }
    shown = np.isfinite(tables[used.ap][:, 0])
    figures = {rule: _metrics(table[shown]) for rule, table in tables.items()}
    metrics = figures.pop(used.ap)
    of_classes = zip(task.class_names, tables[used.ap][:, 0].tolist(), strict=True)
    details = {
        "AP50_of_classes": {name: value for name, value in of_classes if not np.isnan(value)},
        "training_images": len(fit),
        "training_fingerprint": fit.fingerprint,
        "boxes_fingerprints": {
            "fit": fingerprint_of_boxes(boxes),
            "test": fingerprint_of_boxes(truth),
        },
        "loss": training.curve,
        "other_rules": figures,
    }
    notes = []
    if options.with_2012 and not with_2012:
        notes.append(f"trained on {len(fit):,} images without VOC2012, which is not next to them")
    if not shown.all():
        absent = some(
            name for name, there in zip(task.class_names, shown, strict=True) if not there
        )
        notes.append(f"the test images show no {absent}: left out of the means")
    if training.problems:
        notes.append(
            f"{counted(len(training.problems), 'unreadable training image')} replaced by others"
        )
    if training.resumed:
        notes.append(f"continued from iteration {training.resumed:,} of an earlier attempt")
    sides = {"shorter_side": used.test_shorter_side, "longest_side": used.longest_side}
    return Outcome(
        metrics, details, notes, resolved, sides | {"interpolation": "bilinear, antialiased"}
    )


def _training_images(fit: Source, options: DetectOptions) -> tuple[Source, bool]:
    """The task's images, VOC2007's together with those of VOC2012 if they are there; and whether they are."""
    base = fit.source if isinstance(fit, Subset) else fit
    if (
        options.with_2012
        and fit.drawn is None
        and isinstance(base, VOCSource)
        and base.root.name == "VOC2007"
    ):
        later = _trainval_of_2012(base)
        if later is not None:
            if later.class_names != base.class_names:
                raise UserError(
                    f"{later!r} has other classes than {base!r}; leave it out with --with_2012 false"
                )
            return Joined([fit, later]), True
    return fit, False


def _trainval_of_2012(base: VOCSource) -> VOCSource | None:
    """The images of VOC2012 in the same VOCdevkit; None if there are none."""
    root = base.root.with_name("VOC2012")
    if not (root / LISTS).is_dir():
        return None
    links = ",links=follow" if paths.parts(base.name).follows_links else ""
    source = VOCSource(str(root), "trainval", f"voc:{root}{links}")
    source.max_image_pixels = base.max_image_pixels
    return source


def _metrics(table: Values) -> dict[str, float]:
    fifty, seventy_five = (
        float(table[:, OVERLAPS.index(overlap)].mean()) for overlap in (0.5, 0.75)
    )
    return {"AP": float(table.mean()), "AP50": fifty, "AP75": seventy_five}


def _identity(preset: str, options: DetectOptions) -> str:
    """The length, and the options that differ from the preset's, but for those that change no figure."""
    changed = named_changes(
        PROTOCOL.presets[preset], options, ("iterations", "epochs", "save_every")
    )
    length = (
        f"{options.iterations}it" if options.iterations is not None else f"{options.epochs:g}ep"
    )
    return f"{preset}-{length}{changed}"


PROTOCOL = Protocol(
    run=run,
    presets={
        "moco": DetectOptions(),
        "appendix": DetectOptions(
            kind="fpn",
            frozen=True,
            iterations=None,
            epochs=15,
            batch_size=8,
            learning_rate=0.05,
            decay_at=(12 / 15,),
            precise_bn=0,
        ),
    },
    identity=_identity,
    labels="any",
    extracts=lambda options: (),
    resizes=True,
)
