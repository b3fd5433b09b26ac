"""The paper's experiments (studies.yaml): which arms are compared, and by what they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hexa.config import nearest
from hexa.data import Source
from hexa.reporting.tables import counted
from hexa.runtime.parsing import read_resource
from hexa_paper import published
from hexa_paper.protocols.semi_supervised import rows_of
from hexa_paper.published import Row
from hexa_paper.request import Request
from hexa_paper.schemes import SCHEMES
from hexa_paper.semi_supervised.options import PUBLISHED
from hexa_paper.storage import refuse

Fields = Mapping[str, Any]
_DATA = read_resource("hexa_paper", "studies.yaml")
METHODS: dict[str, dict[str, Any]] = _DATA["methods"]
EXPERIMENTS: dict[str, dict[str, Any]] = _DATA["experiments"]
#: The published table of each experiment that is one.
TABLES = {
    name: published.TABLES[one["table"] - 1] for name, one in EXPERIMENTS.items() if "table" in one
}
#: Rows of table 3 that learn from a few labels: their learner, and the shares of labels that were published.
LEARNERS: dict[str, tuple[str, list[int]]] = _DATA["learners"]
#: Why a published row has no arm.
ABSENT = _DATA["absent"]
#: The systems of which only another version is here.
VERSIONS = _DATA["versions"]
#: The beginning of the page of all of them, with places for numbers.
HEAD: str = _DATA["head"]
#: The experiments of which `all` consists, with their methods.
PARTS = [tuple(part.split()) for part in _DATA["all"]]
#: The row that HEXA-D of eight crops is compared with. The paper has it with 800 epochs alone.
PLAIN = ("DeepCluster-v2 (8-crop)", 200)
#: At the small scale terms are averaged, so that no arm takes larger steps.
MEAN: Fields = {"objective.reduction": "mean"}
#: Labelled images in a step of a learner.
_LABELLED = 64


@dataclass(frozen=True)
class Arm:
    """One row of a study: a recipe with some fields changed.

    key: a name for folders. scheme: i–vi. epochs: its own length, where arms differ by it. published: the row
    (method, epochs) it stands beside. passes: of the network a step, where the scheme does not tell. teacher: the key
    of the arm whose run is `method.teacher`. branch: the batch-norms it is measured through.
    """

    key: str
    name: str
    recipe: str
    scheme: str
    changes: Fields = field(default_factory=dict)
    epochs: int | None = None
    published: tuple[str, int | None] | None = None
    passes: int | None = None
    teacher: str = ""
    branch: str = "main"


@dataclass(frozen=True)
class Measure:
    """One evaluation of every arm.

    title: the name of its column.
    protocol, options: as of `hexa evaluate`.
    metrics: those that become columns; empty for all but spreads.
    source: the labelled images; a plan adds them.
    holdout: the share of the training images that is scored instead of the test images; None for the test images.
    epochs: of the run that is measured after them; None at the end.
    """

    title: str
    protocol: str
    options: Fields = field(default_factory=dict)
    metrics: Sequence[str] = ("top1",)
    source: str = ""
    holdout: float | None = None
    epochs: int | None = None


@dataclass(frozen=True)
class Study:
    """An experiment of the paper at one scale, with one method.

    lengths: the shares of the epochs at which every arm is trained anew, or, with one_run, at which one run of all
    epochs is measured. equal_time: train every arm for the time of the first one as well. search: look for each arm's
    learning rate; published settings are taken unchanged. notes: what it cannot tell, a line each.
    """

    name: str
    method: str
    scale: str
    question: str
    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...]
    lengths: tuple[float, ...] = (1.0,)
    one_run: bool = False
    equal_time: bool = True
    search: bool = True
    notes: tuple[str, ...] = ()


# -- arms and measures ------------------------------------------------------------------------------------------------


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
    return Arm(
        key or scheme,
        name or own.title,
        recipe,
        scheme,
        changes,
        published=(row[0], row[1]) if row else None,
    )


def _small(
    key: str, name: str, recipe: str, scheme: str, row: Sequence[Any] = (), more: Fields = MEAN
) -> Arm:
    return _variant(recipe, {**MEAN, **more}, scheme, key, name, row)


def arms_of(method: str, place: str) -> tuple[Arm, ...]:
    """The rows of a method. place: cifar, digits or full; these with -classifiers are those of learning curves."""
    rows = METHODS[method].get(place, ())
    if not place.startswith("full"):
        return tuple(_small(*row) for row in rows)
    return tuple(
        Arm(recipe, f"{of}, {n} epochs", recipe, scheme, {}, n, (of, n))
        for recipe, scheme, of, n in rows
    )


def _arms(name: str, method: str, place: str) -> tuple[Arm, ...]:
    given = EXPERIMENTS[name]
    rows = arms_of(method, place)
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
    if name not in TABLES:  # learning curves
        return tuple(
            arm if full else replace(arm, published=None)
            for arm in rows
            if arm.epochs in (None, 800)
        )[:2]
    # systems that the paper does not have in this table can be compared all the same
    there = [arm for arm in rows if arm.published and published.find(shown(name), *arm.published)]
    return tuple(there) if full and there else rows


def measure(name: str, preset: str = "") -> Measure:
    """The evaluation of this name in studies.yaml. preset: of the method's linear classifiers."""
    one = Measure(**_DATA["measures"][name])
    own = (
        {"preset": str(one.options["preset"]).replace("PRESET", preset)}
        if "preset" in one.options
        else {}
    )
    return replace(one, options={**one.options, **own})


KNN, PROBE, CIFAR, SVM = map(measure, ("knn", "probe", "cifar", "svm"))


def study(
    name: str,
    method: str | None = None,
    scale: str = "small",
    data: str = "cifar10",
    one_run: bool | None = None,
) -> Study:
    """The experiment `name`. one_run: learning curves as published, the default at the full scale.

    These measure one run at several epochs (MoCo-v2), and follow the training of a classifier (DeepCluster-v2); else
    each length is a run of its own. Raises UserError for an unknown name, method or scale, and what does not go
    together.
    """
    given = method
    method = given or EXPERIMENTS.get(name, {}).get("method", "moco")
    asked = (
        (name, EXPERIMENTS, "experiment"),
        (method, METHODS, "method"),
        (scale, ("small", "full"), "scale"),
    )
    if "arms" in EXPERIMENTS.get(name, {}):
        refuse(
            given or one_run is not None,
            f"{name}: has arms of several methods; leave out --method and --from",
        )
        refuse(scale not in asked[2][1], f"unknown scale '{scale}'; {nearest(scale, asked[2][1])}")
        return _leaderboard(name, scale)
    for value, known, what in asked:
        refuse(value not in known, f"unknown {what} '{value}'; {nearest(value, known)}")
    own = METHODS[method]
    experiment = EXPERIMENTS[name]
    small = scale == "small"
    curves = name == "learning-curves"
    place = "full" if not small else "digits" if data.partition("#")[0] == "digits" else "cifar"
    refuse(one_run is not None and not curves, f"--from: is for learning-curves, {name} has none")
    in_tables_alone = name not in TABLES and "ablation" not in own
    refuse(in_tables_alone, f"{name}: --method {method} is for tables; give moco or dcluster")
    refuse(
        place not in own,
        f"{name}: --method {method} has no small recipe for {place}; give CIFAR-10",
    )
    published_curves = curves and (not small if one_run is None else one_run)
    classifiers = arms_of(method, f"{place}-classifiers") if published_curves else ()
    notes = _DATA["note_of_tables"] if "given" in experiment else []
    return Study(
        name,
        method,
        scale,
        experiment["question"],
        classifiers or _arms(name, method, place),
        tuple(measure(one, own["preset"]) for one in experiment[scale]),
        lengths=(0.25, 0.5, 0.75, 1.0) if curves and not classifiers else (1.0,),
        one_run=published_curves and not classifiers,
        equal_time=small and not curves,
        search=small,
        notes=tuple(
            note.replace("SUPERVISED", evaluated("Supervised", name))
            for note in [*notes, *experiment.get("notes", [])]
        ),
    )


def _leaderboard(name: str, scale: str) -> Study:
    """An experiment whose arms have methods and settings of their own."""
    one = EXPERIMENTS[name]
    small = scale == "small"
    arms = [
        Arm(**{**arm, "published": tuple(arm["published"]) if "published" in arm else None})
        for arm in one["arms"]
    ]
    if small:
        arms = [replace(arm, recipe=f"{arm.recipe}+small", epochs=None) for arm in arms]
    measures = tuple(map(measure, one[scale]))
    notes = tuple(one["notes"])
    alone: Fields = {"equal_time": False, "search": False, "notes": notes}
    return Study(name, one["method"], scale, one["question"], tuple(arms), measures, **alone)


# -- the rows of published tables -------------------------------------------------------------------------------------


def shown(table: str) -> list[Row]:
    """The published rows of a table, and before HEXA-D of eight crops its baseline, which the paper does not print."""
    rows: list[Row] = []
    for row in TABLES[table].rows:
        if (row.method, row.epochs) == ("HEXA-D (8-crop)", 200):
            rows.append(Row(*PLAIN, (None,) * len(row.values)))
        rows.append(row)
    return rows


def evaluated(row: str, table: str) -> str:
    """The commands that make all columns of a published row without an arm; empty if there are none."""
    commands = _DATA["evaluated"].get(row, {}).get(table, [])
    remark = ""
    if row in LEARNERS:
        learner, shares = LEARNERS[row]
        remark = _DATA["learned"]["remark"]
        given = _DATA["learned"]["command"].replace("LEARNER", learner)
        commands = [given.replace("SHARE", str(share)) for share in shares]
    return "; ".join(f"`hexa evaluate {command}`" for command in commands) + remark


# -- measures that depend on what was asked for -----------------------------------------------------------------------


def learned(row: str, passes: int, request: Request) -> Iterator[Measure]:
    """A learner trained from random weights for a row of table 3, for `passes` passes over the unlabelled images."""
    learner, shares = LEARNERS[row]
    steps = max(1, passes * request.num_images // (_LABELLED * PUBLISHED[learner].ratio))
    for share in shares:
        options = {
            "percent": share,
            "learner": learner,
            "labelled_batch": _LABELLED,
            "steps": steps,
        }
        title = f"{share} % of the labels, {learner}"
        source = request.targets[0].source
        yield Measure(title, "semi-supervised", options, ("top1", "top5"), source)


def with_lists(chosen: Study, folder: Path, images: Source | None = None) -> Study:
    """Table 3 with the labels of SimCLR's lists, `1percent.txt` and `10percent.txt` of a folder.

    images: that are learned from, if they are here. Raises UserError, also for lists of others.
    """
    refuse(
        chosen.name != "table3",
        f"--label-lists: is for table3; {chosen.name} draws no labels, leave it out",
    )
    measures = []
    remedy = "give the folder imagenet_subsets of SimCLR's code"
    for one in chosen.measures:
        file = folder / f"{one.options['percent']}percent.txt"
        if one.options["percent"] < 100:
            refuse(not file.is_file(), f"--label-lists {folder}: there is no {file.name}; {remedy}")
            if images is not None:
                rows_of(images, file)
            one = replace(one, options={**one.options, "list_file": str(file)})
        measures.append(one)
    return replace(chosen, measures=tuple(measures))


def shortened(one: Measure, passes: int) -> Measure:
    """A measure that trains for no more passes over its training images than the runs it measures, 1 … 20."""
    short = _DATA["shortened"].get(one.protocol)
    if short is None or (one.protocol == "linear" and "epochs" not in one.options):
        return one
    length = min(
        one.options.get("epochs", short["most"]), 100 * passes // one.options.get("percent", 100)
    )
    own = {**one.options, **dict.fromkeys(short["fields"], length), **short.get("options", {})}
    return replace(
        one,
        title=short.get("title", one.title).replace("LENGTH", counted(length, "epoch")),
        options=own,
    )
