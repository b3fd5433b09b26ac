"""Protocols of the literature for any backbone: one file a protocol, each needs a backbone and labelled images."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hexa.data import Source
    from hexa.evaluation.protocol import Progress, Task
    from hexa.nn.preparation import Given
    from hexa.nn.pretrained import Backbone

#: Options of every protocol, beside its own.
COMMON = (
    *("preset", "test_data", "holdout", "seed", "out"),
    *("mean", "std", "size", "crop", "interpolation", "aspect"),
    *("device", "precision", "num_workers", "extraction_batch", "max_image_pixels", "cached"),
)


def evaluate(
    protocol: str,
    backbone: str | Path | Backbone,
    data: str,
    *,
    preset: str | None = None,
    test_data: str | None = None,
    holdout: float | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    mean: object = None,
    std: object = None,
    size: object = None,
    crop: object = None,
    interpolation: object = None,
    aspect: str = "crop",
    device: str = "auto",
    precision: str = "auto",
    num_workers: int | None = None,
    extraction_batch: int = 256,
    max_image_pixels: int | None = None,
    cached: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Measure a backbone by a published protocol; the result carries its protocol id, backbone, data, seed, versions.

    Fits on the split `train` of `data` and scores its split `test` (or `test_data`). holdout: score this share of the
    training images instead, drawn class by class from the seed, and fit on the rest: for searches that must not touch
    the test split; the protocol id says so. options: fields of the protocol, deviations from the preset are recorded.
    mean, std, size, crop, interpolation: of the images, instead of what the backbone comes with (`Preparation`); they
    count as deviations, and the protocol id names them. So does aspect: keep has images seen whole and in their own.
    cached: features that another evaluation extracted serve again (HEXA_CACHE/features, at most HEXA_CACHE_GB).
    max_image_pixels: larger images cannot be read; None for `hexa.data.decode.MAX_IMAGE_PIXELS`.
    out: a JSON file. A run folder collects the result in results.json too. Raises UserError; NotWritten, which has the
    result, if a disk fills up meanwhile.

    Processes that `hexa.runtime.processes.initialize` has joined call it alike: each extracts a share of the features,
    the first does the rest, and all return the result.
    """
    from hexa.evaluation import together
    from hexa.runtime import processes

    make_task = partial(
        _task,
        backbone=backbone,
        given={"mean": mean, "std": std, "size": size, "crop": crop, "interpolation": interpolation},
        aspect=aspect,
        data=data,
        test_data=test_data,
        holdout=holdout,
        seed=seed,
        device=device,
        precision=precision,
        num_workers=num_workers,
        extraction_batch=extraction_batch,
        max_image_pixels=max_image_pixels,
        cached=cached,
        chosen=frozenset(options),
        progress=progress,
    )
    if processes.helpers() and not processes.is_main():
        return together.serve(make_task)
    return together.lead(lambda: _measure(protocol, make_task, backbone, aspect, data, preset, holdout, out, options))


def _measure(
    protocol: str,
    make_task: Callable[..., Task],
    backbone: str | Path | Backbone,
    aspect: str,
    data: str,
    preset: str | None,
    holdout: float | None,
    out: Path | str | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """`evaluate` in one process."""
    from hexa.config import UserError, nearest
    from hexa.data.known import known_as
    from hexa.evaluation import results, transforms
    from hexa.evaluation.protocol import protocols
    from hexa.nn.preparation import shown
    from hexa.nn.pretrained import describe
    from hexa.runtime.checkout import commit

    made_by = commit()
    known = protocols()
    if protocol not in known:
        raise UserError(f"unknown protocol '{protocol}'; {nearest(protocol, known)}")
    chosen = known[protocol]
    name, settings, deviations = chosen.options(preset, options, COMMON)
    out = None if out is None else Path(out)
    collected = _collected(backbone)
    note = results.check(out, collected)  # what can't be written is found before the work
    task = make_task(learns=chosen.learns)
    loaded, fit, test, class_names = task.backbone, task.fit, task.test, task.class_names
    if chosen.labels == "one" and fit.classes is None:
        several = ", ".join(name for name, other in known.items() if other.labels == "any")
        raise UserError(f"images of '{data}' show several classes, {protocol} needs one each; measure with {several}")
    if chosen.resizes and len(loaded.mean) != 3:
        raise UserError(f"{protocol} is for images in RGB, and this backbone takes {len(loaded.mean)} channels")
    transforms.check(task, protocol, chosen, settings)
    changed = loaded.deviations | ({"aspect": ["crop", aspect]} if aspect != "crop" else {})
    begin = time.perf_counter()
    outcome = chosen.run(task, settings)
    guessing = 100 / len(class_names)
    if outcome.metrics.get("top1", 100.0) <= 1.1 * guessing:
        remedy = (
            "another preset or learning_rate may suit these features" if protocol == "linear" else "look at the run"
        )
        outcome.notes.append(f"no better than guessing ({guessing:.1f} %): {remedy}")
    used = settings.model_copy(update=outcome.effective)
    published = chosen.presets[name].model_dump(mode="json")
    deviations |= {
        option: [published[option], value]
        for option, value in outcome.effective.items()
        if published[option] not in (None, value)  # none is as published for the data at hand
    }
    deviations |= changed
    identity = chosen.identity(name, used) + (f"-holdout{holdout:g}" if holdout else "")
    identity += "".join(f"-{name}{shown(value)}" for name, (_, value) in changed.items())
    facts, said = describe(loaded), loaded.preparation.said()
    result = {
        "protocol": f"{protocol}/{identity}",
        "preset": name,
        "metrics": outcome.metrics,
        "backbone": str(backbone) if isinstance(backbone, str | Path) else loaded.info.get("spec", "module"),
        "encoder": facts["encoder"],
        "branch": facts["branch"],
        "backbone_facts": facts,
        "data": data,
        "data_facts": {
            part: {
                "source": source.name,
                "split": source.split,
                "images": len(source),
                "fingerprint": source.fingerprint,
                "known_as": known_as(source),
            }
            for part, source in (("fit", fit), ("test", test))
        },
        "transform": outcome.transform or transforms.describe(task.transform, fit, test),
        "options": used.model_dump(mode="json"),
        "deviations": deviations,
        "details": outcome.details,
        "notes": [*([said] if said else []), *task.notes, *outcome.notes, *([note] if note else [])],
        "seed": task.seed,
        "precision": task.precision,
        "versions": results.versions(),
        "commit": made_by,
        "seconds": time.perf_counter() - begin,
    }
    results.keep(result, out, None if note else collected)
    return result


def _task(
    *,
    backbone: str | Path | Backbone,
    given: Given,
    aspect: str,
    data: str,
    test_data: str | None,
    holdout: float | None,
    seed: int,
    device: str,
    precision: str,
    num_workers: int | None,
    extraction_batch: int,
    max_image_pixels: int | None,
    learns: bool = False,
    **rest: Any,
) -> Task:
    """What `evaluate` was asked for, loaded. Raises UserError."""
    from hexa.evaluation.protocol import Task, check_common
    from hexa.evaluation.transforms import transform_of
    from hexa.nn.pretrained import load_backbone
    from hexa.runtime import precision as precisions

    check_common(holdout, precision, num_workers, extraction_batch, rest.get("cached"))
    loaded = load_backbone(backbone, seed, **given)
    where = precisions.pick_device(device)
    how = {"max_image_pixels": max_image_pixels, "channels": len(loaded.mean)}
    fit, test, class_names = _sources(data, test_data, holdout, seed, **how)
    return Task(
        backbone=loaded,
        fit=fit,
        test=test,
        class_names=class_names,
        transform=transform_of(loaded, aspect),
        device=where,
        precision=precisions.resolve(precision, where, loaded if learns else None),  # type: ignore[arg-type]
        num_workers=num_workers,
        extraction_batch=extraction_batch,
        seed=seed,
        **rest,
    )


def _collected(backbone: str | Path | Backbone) -> Path | None:
    """Where a run collects its results."""
    run = Path(backbone) if isinstance(backbone, str | Path) else None
    return run / "results.json" if run is not None and (run / "config.yaml").is_file() else None


def _some(names: Iterable[str]) -> str:
    """The first five of several names."""
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (" …" if ordered[5:] else "")


def _refuse_unlabelled(source: Source) -> None:
    from hexa.config import UserError

    if source.unlabelled:
        none = f"{source.unlabelled:,} have no label, or a negative one"
        raise UserError(f"{source!r}: {none}; an evaluation needs all of them labelled")


def _sources(
    data: str, test_data: str | None, holdout: float | None, seed: int, **how: Any
) -> tuple[Source, Source, list[str]]:
    """Images to fit on and images to score, both labelled with the same classes, and the classes' names."""
    from hexa.config import UserError
    from hexa.data import open_source
    from hexa.evaluation.features import Subset
    from hexa.evaluation.split import stratified_part
    from hexa.runtime.random import Stream

    opened: Callable[..., Source] = partial(open_source, **how)
    fit = opened(data, None if "#" in data else "train")
    _refuse_unlabelled(fit)
    if fit.labels is None:
        raise UserError(
            f"data '{data}' has no labels, which an evaluation needs; give two or more class folders, or a label column"
        )
    if holdout is not None:
        if test_data is not None:
            raise UserError("holdout scores training images, test_data others; give one of the two")
        held = stratified_part(fit.labels, holdout, Stream(seed).child("holdout"))
        if not held.any():
            raise UserError(f"holdout {holdout:g} of {len(fit)} images is none of any class; give a larger share")
        test: Source = Subset(fit, held.nonzero()[0])
        fit = Subset(fit, (~held).nonzero()[0])
    else:
        if test_data is None and "test" not in fit.splits():
            there = ", ".join(fit.splits())
            remedy = "give test images with --test-data SOURCE, or score a part of these with --holdout 0.2"
            raise UserError(f"data '{data}' has no split test (there is: {there}); {remedy}")
        test = opened(test_data or data.partition("#")[0], None if test_data else "test")
        if test_data and "#" not in test_data and "test" in test.splits():
            test = opened(test_data, "test")
    _refuse_unlabelled(test)
    if test.labels is None:
        raise UserError(f"data '{test_data or data}' has no labels in its split {test.split}")
    assert fit.labels is not None
    if fit.labels.ndim != test.labels.ndim:
        raise UserError(f"{fit!r} and {test!r}: one of them has a class for each image, the other several")
    if (fit.fingerprint, len(fit)) == (test.fingerprint, len(test)):
        raise UserError(f"{fit!r} would be scored on the images it learns from; name other test images")
    if fit.class_names and test.class_names and list(fit.class_names) != list(test.class_names):
        sides = (
            (fit, set(fit.class_names) - set(test.class_names)),
            (test, set(test.class_names) - set(fit.class_names)),
        )
        told = "; ".join(f"only in {source!r}: {_some(names)}" for source, names in sides if names)
        raise UserError(f"data '{data}': the classes of train and test differ ({told or 'in their order'})")
    if fit.labels.ndim == 1 and holdout is None:
        names = fit.class_names or test.class_names
        missing = sorted(set(test.labels.tolist()) - set(fit.labels.tolist()))
        if missing:
            some = ", ".join(str(names[label] if names else label) for label in missing[:5])
            raise UserError(f"data '{data}': no image of its {fit.split} shows {some}, which {test.split} asks for")
    columns = 1 + int(max(fit.labels.max(), test.labels.max())) if fit.labels.ndim == 1 else fit.labels.shape[1]
    named = list(fit.class_names or test.class_names or ())
    return fit, test, [*named, *map(str, range(len(named), columns))][:columns]
