"""The paper's experiments (studies.yaml): their arms, and the evaluations of every arm."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hexa.config import nearest
from hexa.data import open_source
from hexa.reporting.tables import counted
from hexa.runtime.parsing import read_resource
from hexa_paper import published
from hexa_paper.protocols.semi_supervised import rows_of
from hexa_paper.published import Row
from hexa_paper.request import Request, refuse
from hexa_paper.schemes import SCHEMES

Fields = Mapping[str, Any]
_DATA = read_resource("hexa_paper", "studies.yaml")
METHODS: dict[str, dict[str, Any]] = _DATA["methods"]
EXPERIMENTS: dict[str, dict[str, Any]] = _DATA["experiments"]
#: The published table of each experiment that is one.
TABLES = {
    name: published.TABLES[one["table"] - 1] for name, one in EXPERIMENTS.items() if "table" in one
}
#: Systems of which only another version is here.
VERSIONS: dict[str, str] = _DATA["versions"]
#: The experiments of which `all` consists, with their methods.
PARTS: list[tuple[str, str]] = [tuple(part.split()) for part in _DATA["all"]]
#: The baseline of HEXA-D with eight crops. The paper prints it for 800 epochs only.
PLAIN = ("DeepCluster-v2 (8-crop)", 200)
#: At the small scale the terms are averaged, so that no arm takes larger steps.
MEAN: Fields = {"objective.reduction": "mean"}
#: The published row of random weights.
_UNTRAINED_ROWS = {"table5": ("Random init", None)}


def digest(decisive: object, digits: int = 8) -> str:
    """A hash of something that JSON can hold."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:digits]


@dataclass(frozen=True)
class Measure:
    """One evaluation of every arm."""

    title: str
    """The name of its column."""
    protocol: str
    """The name of a protocol of `hexa evaluate`."""
    options: Fields = field(default_factory=dict)
    """The protocol's options."""
    metrics: Sequence[str] = ("top1",)
    """The metrics that become columns; empty for all but spreads and last epochs."""
    source: str = ""
    """The labelled images; a plan adds them."""
    holdout: float | None = None
    """The share of the training images that is scored; None scores the test images."""
    epochs: int | None = None
    """The epoch of the checkpoint that is measured; None measures the end of the run."""

    @property
    def key(self) -> str:
        """The name of its result in a file, which differs for other options."""
        after = "" if self.epochs is None else f" after {counted(self.epochs, 'epoch')}"
        decisive = [self.protocol, dict(self.options), self.holdout]
        return f"{self.title} on {self.source}{after}, {digest(decisive, 6)}"


@dataclass(frozen=True)
class Arm:
    """One row of a study: a recipe with some fields changed."""

    key: str
    """A name for files and programs."""
    name: str
    """The name in tables."""
    recipe: str
    scheme: str = "i"
    """The scheme of the ablation, i–vi."""
    changes: Fields = field(default_factory=dict)
    """Fields of the recipe that differ."""
    epochs: int | None = None
    """Its own length, if arms differ by it; 0 is an arm that is not trained."""
    published: tuple[str, int | None] | None = None
    """The published row next to it: method, epochs."""
    teacher: str = ""
    """The key of the arm whose run is `method.teacher`."""
    branch: str = "main"
    """The batch-norms it is measured through."""


@dataclass(frozen=True)
class Study:
    """An experiment of the paper at one scale, with one method."""

    name: str
    method: str
    scale: str
    question: str
    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...]
    lengths: tuple[float, ...] = (1.0,)
    """The shares of its epochs after which every run is measured."""
    passes: tuple[float, float] = (3, 3)
    """Forward passes (a backward pass is two) of a clean step and of a further term, for each view."""
    equal_time: bool = False
    """True if every arm is also trained for the time of the first arm."""
    search: bool = True
    """True if the learning rate of each arm is searched; published settings are taken unchanged."""
    notes: tuple[str, ...] = ()
    """Limits of the study, a line each."""


# -- arms -------------------------------------------------------------------------------------------------------------


def _variant(
    recipe: str,
    changes: Fields,
    scheme: str,
    key: str = "",
    name: str = "",
    row: Sequence[Any] = (),
    **hard: Fields,
) -> Arm:
    """A scheme of a recipe. hard: fields of its hard examples that differ from the published ones."""
    own = SCHEMES[scheme]
    examples = {
        kind: {**fields, **hard.get(kind, {})} for kind, fields in own.hard_examples.items()
    }
    changes = {**changes, "hard_examples": examples}
    place = (row[0], row[1]) if row else None
    return Arm(key or scheme, name or own.title, recipe, scheme, changes, published=place)


def _small(
    key: str, name: str, recipe: str, scheme: str, row: Sequence[Any] = (), more: Fields = MEAN
) -> Arm:
    return _variant(recipe, {**MEAN, **more}, scheme, key, name, row)


def arms_of(method: str, place: str) -> tuple[Arm, ...]:
    """The rows of a method. place: cifar, digits or full; with -classifiers those of learning curves."""
    rows = METHODS[method].get(place, ())
    if not place.startswith("full"):
        return tuple(_small(*row) for row in rows)
    return tuple(
        Arm(recipe, f"{of}, {epochs} epochs", recipe, scheme, {}, epochs, (of, epochs))
        for recipe, scheme, of, epochs in rows
    )


def _arms(name: str, method: str, place: str) -> tuple[Arm, ...]:
    given = EXPERIMENTS[name]
    full = place == "full"
    if "variants" in given:
        recipe = METHODS[method][given["of"]][place]
        if full and given.get("modified"):
            return tuple(
                Arm(number, one.title, recipe + one.modifiers, number)
                for number, one in SCHEMES.items()
            )
        changes = given.get("changes", {}) if full else MEAN
        return tuple(_variant(recipe, changes, **variant) for variant in given["variants"])
    rows = arms_of(method, place)
    if name not in TABLES:  # learning curves compare the plain method and the adversarial one
        rows = tuple(arm for arm in rows if arm.epochs in (None, 800))[:2]
        return rows if full else tuple(replace(arm, published=None) for arm in rows)
    # systems that the paper does not have in this table can be compared all the same
    there = [arm for arm in rows if arm.published and published.find(shown(name), *arm.published)]
    if full:
        return tuple(there) or rows
    row = _UNTRAINED_ROWS.get(name)
    return (*rows, replace(rows[0], key="random", name="random weights", epochs=0, published=row))


# -- evaluations ------------------------------------------------------------------------------------------------------


def measure(name: str, preset: str = "") -> Measure:
    """The evaluation of this name in studies.yaml. preset: of the method's linear classifiers."""
    one = Measure(**_DATA["measures"][name])
    if "preset" not in one.options:
        return one
    own = str(one.options["preset"]).replace("PRESET", preset)
    return replace(one, options={**one.options, "preset": own})


KNN, PROBE, CIFAR, SVM = map(measure, ("knn", "probe", "cifar", "svm"))


def _shortened(one: Measure, passes: int) -> Measure:
    """An evaluation that trains for at most as many passes over its images as the runs it measures, 1 … 20."""
    short = _DATA["shortened"].get(one.protocol)
    if short is None or (one.protocol == "linear" and "epochs" not in one.options):
        return one
    most = one.options.get("epochs", short["most"])
    length = min(most, 100 * passes // one.options.get("percent", 100))
    own = {**one.options, **dict.fromkeys(short["fields"], length), **short.get("options", {})}
    title = short.get("title", one.title).replace("LENGTH", counted(length, "epoch"))
    return replace(one, title=title, options=own)


# -- studies ----------------------------------------------------------------------------------------------------------


def study(
    name: str, method: str | None = None, scale: str = "small", data: str = "cifar10"
) -> Study:
    """The experiment `name`. Raises UserError for an unknown name, method or scale, and what does not go together."""
    asked = [(name, EXPERIMENTS, "experiment"), (scale, ("small", "full"), "scale")]
    experiment = EXPERIMENTS.get(name, {})
    own_arms = "arms" in experiment
    refuse(own_arms and method, f"{name}: has arms of several methods; leave out --method")
    method = method or experiment.get("method", "moco")
    if not own_arms:
        asked.append((method, METHODS, "method"))
    for value, known, what in asked:
        refuse(value not in known, f"unknown {what} '{value}'; {nearest(value, known)}")
    if own_arms:
        return _of_several_methods(name, scale)
    own = METHODS[method]
    small = scale == "small"
    curves = name == "learning-curves"
    digits = data.partition("#")[0] == "digits"
    place = "full" if not small else "digits" if digits else "cifar"
    in_tables_alone = name not in TABLES and "ablation" not in own
    refuse(in_tables_alone, f"{name}: --method {method} is for tables; give moco or dcluster")
    missing = place not in own
    refuse(missing, f"{name}: --method {method} has no small recipe for {place}; give CIFAR-10")
    classifiers = arms_of(method, f"{place}-classifiers") if curves else ()
    notes = list(experiment.get("notes", ()))
    if "given" in experiment:
        notes = _DATA["note_of_tables"] + notes
    return Study(
        name,
        method,
        scale,
        experiment["question"],
        classifiers or _arms(name, method, place),
        tuple(measure(one, own["preset"]) for one in experiment[scale]),
        lengths=(0.25, 0.5, 0.75, 1.0) if curves and not classifiers else (1.0,),
        passes=tuple(own.get("passes", (3, 3))),
        equal_time="passes" in own and small and not curves,
        search=small,
        notes=tuple(notes),
    )


def _of_several_methods(name: str, scale: str) -> Study:
    """An experiment whose arms have methods and settings of their own."""
    one = EXPERIMENTS[name]
    arms = []
    for given in one["arms"]:
        row = given.get("published")
        arm = Arm(**given | {"published": row and tuple(row)})
        if scale == "small":
            arm = replace(arm, recipe=f"{arm.recipe}+small", epochs=None)
        arms.append(arm)
    measures = tuple(map(measure, one[scale]))
    notes = tuple(one["notes"])
    question = one["question"]
    method = one["method"]
    return Study(name, method, scale, question, tuple(arms), measures, search=False, notes=notes)


def listed(chosen: Study, request: Request, source: str) -> Study:
    """Table 3 with the labels of SimCLR's lists for a source, of which `request` names the folder. Raises UserError."""
    draws = f"{chosen.name} draws no labels, leave it out"
    refuse(chosen.name != "table3", f"--label-lists: is for table3; {draws}")
    folder = Path(str(request.label_lists))
    here = request.images(source).num_images > 0
    measures = []
    for one in chosen.measures:
        percent = one.options["percent"]
        file = folder / f"{percent}percent.txt"
        if percent < 100:
            remedy = "give the folder imagenet_subsets of SimCLR's code"
            refuse(not file.is_file(), f"--label-lists {folder}: has no {file.name}; {remedy}")
            if here:
                rows_of(open_source(source, "train"), file)  # raises for a list of other images
            one = replace(one, options={**one.options, "list_file": str(file)})
        measures.append(one)
    return replace(chosen, measures=tuple(measures))


def shortened(chosen: Study, passes: int) -> Study:
    """A study whose evaluations train for at most as many passes over their images as its runs."""
    measures = [_shortened(one, passes) for one in chosen.measures]
    return replace(chosen, measures=tuple(measures))


# -- the rows of published tables -------------------------------------------------------------------------------------


def shown(table: str) -> list[Row]:
    """The published rows of a table, and before HEXA-D of eight crops its baseline, which the paper does not print."""
    rows: list[Row] = []
    for row in TABLES[table].rows:
        if (row.method, row.epochs) == ("HEXA-D (8-crop)", 200):
            rows.append(Row(*PLAIN, (None,) * len(row.values)))
        rows.append(row)
    return rows


def command_of(table: str, row: Row) -> str:
    """The command that makes a published row at the full scale, or pre-trains its network; else why there is none."""
    commands = _DATA["commands"].get(row.method, {}).get(table)
    if row.epochs is None and commands:
        return "; ".join(f"`hexa {command}`" for command in commands)
    method = VERSIONS.get(row.method, row.method)
    for arm in (arm for name in METHODS for arm in arms_of(name, "full")):
        assert arm.published is not None, "arms of the full scale have rows"
        other = arm.published == (method, row.epochs) and method != row.method
        if other or published.find(shown(table), *arm.published) == row:
            remark = published.REMARKS.get(arm.recipe, "") if table == "table1" else ""
            if other:
                remark = f"{method}, which the study leaves out"
            command = f"`hexa pretrain {arm.recipe} --data folder:PATH/imagenet`"
            return f"{command} ({remark})" if remark else command
    return str(_DATA["absent"].get(row.method, "no recipe"))
