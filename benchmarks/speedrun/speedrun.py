"""Time to accuracy: seconds of one core from images on disk to a target, by the record of a track or by an attempt.

    OMP_NUM_THREADS=1 python benchmarks/speedrun/speedrun.py TRACK --data SOURCE [--start WEIGHTS] [--out FOLDER]
        [--seeds 0 1 2 3 4] [--recipe RECIPE] [--held-out] [--set FIELD=VALUE ...]

TRACK is a name in tracks.yaml. --set changes a field of the record's recipe and makes the run an attempt of your own.
The rules are on benchmarks/speedrun/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torchvision.io import encode_png

from hexa import recipes
from hexa.comparison.labelled import labels_of
from hexa.config import Config, UserError, nearest
from hexa.data import open_source
from hexa.data.sources.decode import DecodeError
from hexa.evaluation import evaluate
from hexa.evaluation.few_labels import half_width
from hexa.evaluation.split import draw_per_class
from hexa.nn.backbones import outline
from hexa.recipes.experiment import Experiment, override
from hexa.run.run import pretrain
from hexa.run.start import begin_from_weights
from hexa.runtime.files import write_text
from hexa.runtime.lock import locked
from hexa.runtime.packages import processor_name, provenance, version
from hexa.runtime.random import Stream
from hexa.training.journal import METRICS
from hexa.weights.pretrained import Backbone

RESULT = "speedrun.json"
TRACKS = Path(__file__).with_name("tracks.yaml")
#: Fields of every attempt: one process that scores nothing on the way and draws nothing.
_COMMON: dict[str, Any] = {
    **{"monitor.knn_every": 0, "training.report": False, "training.tensorboard": False},
    **{"training.num_workers": 0, "training.device": "cpu"},
}
#: The share of all training images that an attempt is scored on in a search; no label is learned from.
_HELD_OUT = 0.1


class Track(Config):
    """A target and the rules that are its own; those of all tracks are in benchmarks/speedrun/README.md."""

    goal: str
    """The task in a sentence."""
    data: str
    """The images: cifar10 or omniglot, which --data gives."""
    target: float
    """The least mean of `measure` over seeds that counts, in percent."""
    protocol: str
    """The protocol of `hexa evaluate` that measures it, on test images."""
    options: dict[str, Any] = {}
    """Its options."""
    measure: str
    """The name of the metric."""
    not_below: str | None = None
    """A metric that must not be below that of the weights begun from."""
    per_class: int | None = None
    """Images of each class to learn from, without their labels; none: all."""
    test_per_class: int | None = None
    """Images of each class to score; heads are then fitted to the images learned from. none: all, and to all."""
    parameters: int | None = None
    """The most parameters a backbone may have; none: any."""
    starts: bool = False
    """True: training begins from the weights of --start. False: from random weights."""
    recipe: str
    """The recipe of the present record."""
    fields: dict[str, Any] = {}
    """Fields of the recipe that the record sets, by dotted path."""
    seconds: float | None = None
    """Mean seconds of one core of the record's seeds; none: the track has no record yet."""
    result: str | None = None
    """The record's file in benchmarks/speedrun."""


def tracks() -> dict[str, Track]:
    """All tracks by name."""
    return {name: Track(**fields) for name, fields in yaml.safe_load(TRACKS.read_text()).items()}


def track(name: str) -> Track:
    """A track by name. Raises UserError."""
    if name not in (known := tracks()):
        raise UserError(f"unknown track '{name}'; {nearest(name, list(known))}")
    return known[name]


def speedrun(
    name: str,
    data: str,
    out: Path,
    *,
    start: str | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    fields: Mapping[str, Any] | None = None,
    held_out: bool = False,
) -> dict[str, Any]:
    """Carry out a track's record, or an attempt with other fields, once for each seed, on one core.

    data: the images as published, such as parquet:cifar10. start: weights to begin from. fields: changes of the
    record's, `recipe` among them. held_out: score training images instead of test images, as a search must. The result
    is written to out/speedrun.json after each seed; seeds that it has are not run again. Seconds are processor
    time of `pretrain`, from opening the images to the end of training. Raises UserError.
    """
    one, made = track(name), _experiment(name, start, fields or {})
    recipe, changes = attempt(one, fields or {})
    about: dict[str, Any] = {
        "track": name,
        "recipe": recipe,
        "fields": changes,
        "held_out": held_out,
    }
    busy = f"is running a track in {out}; wait until it ends, or give another --out"
    with locked(out / ".lock", busy), _one_core():
        stored = _stored(out, about)
        for seed in seeds:
            if any(row["seed"] == seed for row in stored["rows"]):
                continue
            images, scored = _images(one, data, out, seed, held_out)
            clock, begun = time.perf_counter(), time.process_time()
            run = pretrain(
                override(made, {"data": images, "seed": seed}), _new(out / f"seed-{seed}")
            )
            seconds, wall = time.process_time() - begun, time.perf_counter() - clock
            row: dict[str, Any] = {"seed": seed, "seconds": seconds, "wall_seconds": wall}
            row |= {"metrics": _measured(one, str(run), scored, held_out), "losses": _losses(run)}
            if made.start.weights is not None and one.not_below:
                row["start"] = _measured(one, made.start.weights, scored, held_out)
            row |= provenance() | {"device": processor_name(), "torch": version("torch")}
            stored["rows"].append(row)
            write_text(out / RESULT, json.dumps(stored, indent=1) + "\n")
        return stored


def _experiment(name: str, start: str | None, fields: Mapping[str, Any]) -> Experiment:
    """The experiment of a track, but for data and seed. Raises UserError for what the track forbids."""
    one = track(name)
    if one.starts != (start is not None):
        rule = "given weights: give --start" if one.starts else "random weights: leave --start out"
        raise UserError(f"track {name} begins from {rule}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a track is run on one core; leave out torchrun")
    if own := {"data", "seed"} & set(fields):
        raise UserError(f"--{own.pop()}: the track says it; give --data and --seeds")
    recipe, changes = attempt(one, fields)
    changes = _COMMON | changes | ({} if start is None else {"start.weights": start})
    made = begin_from_weights(override(recipes.get(recipe), changes), changes)
    if (
        one.parameters
        and (count := sum(p.numel() for p in outline(made.network).parameters())) > one.parameters
    ):
        raise UserError(
            f"this track allows {one.parameters:,} parameters, and the backbone has {count:,}"
        )
    return made


def attempt(one: Track, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The recipe, that of the record unless `fields` names another, and the fields of it that are set."""
    recipe = fields.get("recipe", one.recipe)
    return recipe, (one.fields if recipe == one.recipe else {}) | {
        n: v for n, v in fields.items() if n != "recipe"
    }


def _stored(out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The record in `out`, without rows if there is none. Raises UserError if it is that of another attempt."""
    if not (out / RESULT).exists():
        return about | {"rows": []}
    stored = None
    with suppress(ValueError, RecursionError):
        stored = json.loads((out / RESULT).read_text())
    if (
        not isinstance(stored, dict)
        or not isinstance(stored.get("rows"), list)
        or any(stored.get(key) != value for key, value in about.items())
    ):
        raise UserError(f"{out} has another attempt; give another --out")
    return stored


@contextmanager
def _one_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _images(one: Track, data: str, out: Path, seed: int, held_out: bool) -> tuple[str, str]:
    """The images to learn from and those to score, as sources; few of each class are drawn by the seed and written."""
    if one.per_class is None:
        return data, data
    stream, source, fewer = (
        Stream(seed).child("speedrun"),
        open_source(data, "train"),
        one.test_per_class or 0,
    )
    count = one.per_class + fewer * held_out
    drawn = draw_per_class(labels_of(source), count, stream).reshape(-1, count)
    parts = {"train": (source, drawn[:, : one.per_class].ravel())}
    if fewer and held_out:
        parts["test"] = source, drawn[:, one.per_class :].ravel()
    elif fewer:
        test = open_source(data, "test")
        parts["test"] = test, draw_per_class(labels_of(test), fewer, stream.child("test"))
    folder = out / f"images-{seed}"
    for split, (images, rows) in parts.items():
        for row, label in zip(rows, labels_of(images)[rows], strict=True):
            file = folder / split / str(label) / f"{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                file.write_bytes(encode_png(images.decode(int(row))).numpy().tobytes())
            except DecodeError as error:
                raise UserError(
                    f"image {row} of {images!r}: {error}; a track needs the images as published"
                ) from None
    return f"folder:{folder}", f"folder:{folder}" if fewer else data


def _new(folder: Path) -> Path:
    """The folder, or beside one that an interrupted run left, whose time is not that of one go, another."""
    return next(
        one
        for n in itertools.count(1)
        if not (one := folder if n == 1 else Path(f"{folder}-{n}")).exists()
    )


def _measured(one: Track, backbone: str | Backbone, data: str, held_out: bool) -> dict[str, float]:
    options = one.options | (
        {"holdout": _HELD_OUT} if held_out and one.test_per_class is None else {}
    )
    return cast(
        dict[str, float], evaluate(one.protocol, backbone, data, device="cpu", **options)["metrics"]
    )


def _losses(run: Path) -> list[list[float]]:
    """[step, loss] of at most 50 steps."""
    rows = map(json.loads, (run / METRICS).read_text().splitlines())
    losses = [[row["step"], row["loss"]] for row in rows if row["event"] == "train"]
    return losses[:: math.ceil(len(losses) / 50) or 1]


def reached(one: Track, result: Mapping[str, Any]) -> bool:
    """True if the mean of `measure` over seeds reaches the target, and that of `not_below` the start's."""

    def mean(name: str, of: str = "metrics") -> float:
        return statistics.mean(float(row[of][name]) for row in result["rows"])

    kept = one.not_below is None or mean(one.not_below) >= mean(one.not_below, "start")
    return kept and mean(one.measure) >= one.target


def standing(one: Track) -> str:
    """The record of a track in a few words."""
    return "no record yet" if one.seconds is None else f"record {one.seconds:,.0f} s of one core"


def said(one: Track, result: Mapping[str, Any]) -> str:
    """A sentence: target, reached or not, on which images, in how many seconds, and the record."""
    mean = statistics.mean(row["seconds"] for row in result["rows"])
    where = "training images, to search by" if result["held_out"] else "test images"
    verdict = "reached" if reached(one, result) else "not reached"
    return f"{one.measure} of {one.target:g} {verdict} on {where} in {mean:,.0f} s of one core; {standing(one)}"


def shown(one: Track, result: Mapping[str, Any]) -> Iterator[str]:
    """Lines with seconds and metric by seed, and their means with 95 % intervals."""
    pairs = [(row["seconds"], row["metrics"][one.measure]) for row in result["rows"]]
    for row, (seconds, score) in zip(result["rows"], pairs, strict=True):
        yield f"seed {row['seed']}: {seconds:.1f} s, {one.measure} {score:.1f}"
    seconds, score = (_mean(values) for values in zip(*pairs, strict=True))
    yield f"mean: {seconds} s, {one.measure} {score}"


def _mean(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {half_width(values):.1f}" if len(values) > 1 else mean


def main() -> None:
    """One track, or the list of all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("track", nargs="?", help="a name in tracks.yaml; none lists all tracks")
    parser.add_argument("--data", help="the images of the track as published")
    parser.add_argument("--start", help="weights to begin from, in tracks C and D")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--recipe", help="another recipe than the record's")
    parser.add_argument("--held-out", action="store_true", help="score training images")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", dest="changes")
    asked = parser.parse_args()
    if asked.track is None:
        for name, one in tracks().items():
            print(f"{name}: {one.goal}; {standing(one)}")
        return
    if asked.data is None:
        parser.error("--data is missing; give the images of the track, such as parquet:PATH")
    if wrong := [change for change in asked.changes if "=" not in change]:
        parser.error(f"--set {wrong[0]}: write FIELD=VALUE")
    fields = dict(change.split("=", 1) for change in asked.changes)
    if asked.recipe:
        fields["recipe"] = asked.recipe
    out = asked.out or Path(f"runs/speedrun-{asked.track}")
    settings = {"start": asked.start, "seeds": asked.seeds, "held_out": asked.held_out}
    try:
        result = speedrun(asked.track, asked.data, out, fields=fields, **settings)
    except UserError as error:
        sys.exit(f"error: {error}")
    one = track(asked.track)
    print(*shown(one, result), said(one, result), f"result: {out / RESULT}", sep="\n")


if __name__ == "__main__":
    main()
