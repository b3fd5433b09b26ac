"""The paper's experiments: which arms are compared, and by what they are measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from hexa import published
from hexa.config import UserError, nearest
from hexa.core.schemes import SCHEMES
from hexa.evaluation.semi.options import PUBLISHED
from hexa.recipes.imagenet import BETAS
from hexa.reporting.tables import counted
from hexa.reproduce.arms import MEAN, METHODS, Arm, Fields, Method, arm_of
from hexa.reproduce.rows import ELSEWHERE, LEARNERS, TABLES, shown

Scale = Literal["small", "full"]


@dataclass(frozen=True)
class Measure:
    """One evaluation of every arm. metrics: those that become columns; empty for all but spreads."""

    title: str
    protocol: str
    options: Fields = field(default_factory=dict)
    metrics: tuple[str, ...] = ("top1",)


@dataclass(frozen=True)
class Study:
    """An experiment of the paper at one scale, with one method.

    lengths: the shares of the epochs at which every arm is trained anew, or, with one_run, at which one run of all
    epochs is measured. equal_time: train every arm for the time of the first one as well. search: look for each arm's
    learning rate; published settings are taken as they are. notes: what it cannot tell, a line each.
    """

    name: str
    method: str
    scale: Scale
    question: str
    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...]
    lengths: tuple[float, ...] = (1.0,)
    one_run: bool = False
    equal_time: bool = True
    search: bool = True
    notes: tuple[str, ...] = ()


# -- the experiments --------------------------------------------------------------------------------------------------

_LOW_SHOT = "Few labels: SVMs on frozen features from k images of each class"
#: Their names, and the question each answers.
EXPERIMENTS = {
    "ablation": "Which hard examples help, alone and together? Schemes i–vi of the ablation",
    "attack-grid": "How far may an attack move the pixels? Radius ε and step η in grey levels",
    "beta-study": "From which Beta distribution is the share drawn that a mixed view keeps?",
    "learning-curves": "Does the gain last as training grows longer?",
    "low-shot-curve": _LOW_SHOT,
    "table1": "Linear classification on frozen features",
    "table2": _LOW_SHOT,
    "table3": "Semi-supervised: the whole network trained on 1 %, 10 % and all labels",
    "table4": "Detection",
    "table5": "Fine-tuning of the whole network",
}
#: The tables that are of VOC07, and the one with a column of it.
OF_VOC, WITH_VOC = ("low-shot-curve", "table2", "table4"), "table1"
#: The method the paper used where it was one alone; all others have both.
_PUBLISHED_WITH = {"attack-grid": "dcluster", "beta-study": "dcluster"}
#: Equal in what they do: one step moves every pixel by min(ε, η) grey levels (REFERENCE §5.2).
GRID = (1, 2, 3)
GRID_NOTE = (
    "With one step every pixel moves by min(ε, η) grey levels: cells of the same minimum are the same algorithm, and "
    "the same runs stand in them. Published were ε and η of 1 and 3, with three of four cells alike: what they "
    "differed by was seed noise."
)
_OTHERS = (
    "--method moco, dcluster, swav and compared make the rows of the paper. A published row only: BigBiGAN, which "
    "predicts no pseudo-label."
)
_NOTES = {
    "attack-grid": (GRID_NOTE,),
    **{
        table: (_OTHERS, f"Supervised: {ELSEWHERE['Supervised'][table]}. Random init: random:resnet50 instead.")
        for table in ("table1", "table2", "table3", "table4", "table5")
    },
}
_NOTES["table3"] += ("Labels are drawn from the seed; --label-lists gives those of the paper, SimCLR's.",)
#: Labelled images in a step of a learner.
_LABELLED = 64
KNN = Measure("k-NN top-1", "knn")
#: As published for CIFAR-10 and CIFAR-100, whatever classifier ImageNet has.
CIFAR = Measure("linear top-1", "linear", {"preset": "cifar"})
PROBE = Measure("linear probe top-1", "probe")
SVM = Measure("SVM mAP", "svm", metrics=("mAP",))


def study(
    name: str,
    *,
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
    method = method or _PUBLISHED_WITH.get(name, "moco")
    asked = ((name, EXPERIMENTS, "experiment"), (method, METHODS, "method"), (scale, ("small", "full"), "scale"))
    for given, known, what in asked:
        if given not in known:
            raise UserError(f"unknown {what} '{given}'; {nearest(given, known)}")
    own, small, curves = METHODS[method], scale == "small", name == "learning-curves"
    source = "digits" if data.partition("#")[0] == "digits" else "cifar"
    if one_run is not None and not curves:
        raise UserError(f"--from: is for learning-curves, {name} has none")
    if name not in TABLES and not own.ablation:
        raise UserError(f"{name}: --method {method} is for tables; give moco or dcluster")
    if small and source not in own.small:
        raise UserError(f"{name}: --method {method} has no small recipe for {source}; give CIFAR-10")
    published_curves = curves and (not small if one_run is None else one_run)
    of_classifiers = own.peers.get(source if small else "full", ()) if published_curves else ()
    return Study(
        name,
        method,
        cast(Scale, scale),
        EXPERIMENTS[name],
        of_classifiers or tuple(_small_arms(name, own, source) if small else _full_arms(name, own)),
        _measures(name, small, own.preset),
        lengths=(0.25, 0.5, 0.75, 1.0) if curves and not of_classifiers else (1.0,),
        one_run=published_curves and not of_classifiers,
        equal_time=small and not curves,
        search=small,
        notes=_NOTES.get(name, ()),
    )


def _small_arms(name: str, method: Method, source: str) -> Iterable[Arm]:
    """On CIFAR-10 with the narrow network, or on the digits."""
    rows, six = method.small[source], method.ablation.get(source, "")
    if name == "ablation":
        return [arm_of(six, number) for number in SCHEMES]
    if name == "attack-grid":
        return _grid(rows[0].recipe, MEAN)
    if name == "beta-study":
        return _betas(six, MEAN)
    if name == "learning-curves":
        return [replace(arm, published=None) for arm in rows[:2]]
    return rows


def _full_arms(name: str, method: Method) -> Iterable[Arm]:
    """The published settings, as the ImageNet recipes have them."""
    if name == "ablation":
        return [Arm(n, scheme.title, method.full_ablation + scheme.modifiers, n) for n, scheme in SCHEMES.items()]
    if name == "attack-grid":
        return _grid(method.full_grid, {"epochs": 40})
    if name == "beta-study":
        return _betas(method.full_ablation, {})
    if name == "learning-curves":
        return [arm for arm in method.full if arm.epochs == 800][:2]
    rows = shown(name)
    # systems that the paper does not have in this table can be compared all the same
    return [arm for arm in method.full if arm.published and published.find(rows, *arm.published)] or method.full


def _grid(recipe: str, changes: Fields) -> list[Arm]:
    attacks = [
        arm_of(*(recipe, "ii", changes), key=f"adv-{moved}", name=f"min(ε, η) = {moved}",
             adversarial={"epsilon": moved, "step_size": moved})
        for moved in GRID
    ]  # fmt: skip
    return [arm_of(recipe, "i", changes), *attacks]


def _betas(recipe: str, changes: Fields) -> list[Arm]:
    mixed = [
        arm_of(*(recipe, "iii", changes), key=f"beta-{alpha}-{beta}", name=f"Beta({alpha}, {beta})",
             cutmix={"alpha": alpha, "beta": beta})
        for alpha, beta in BETAS
    ]  # fmt: skip
    return [arm_of(recipe, "i", changes), *mixed]


def _measures(name: str, small: bool, preset: str) -> tuple[Measure, ...]:
    if name in ("table2", "low-shot-curve"):
        return (Measure("SVM", "low-shot", {"shots": (1, 2, 4, 8, 16, 32)}, metrics=()),)
    if name == "table3":
        shares = ((f"{share} % of the labels", {"percent": share}) for share in (1, 10, 100))
        return tuple(Measure(title, "semi-supervised", options, ("top1", "top5")) for title, options in shares)
    if name == "table4":
        return (Measure("detection", "detect", metrics=("AP", "AP50", "AP75")),)
    if name == "table5":
        return (Measure("fine-tuned top-1", "fine-tune"),)
    if small and name == "table1":
        return (KNN, CIFAR)
    if small and name == "learning-curves":  # its accuracy after every epoch is a figure of its own
        return (KNN, PROBE, Measure("linear top-1, 10 epochs", "linear", {"preset": preset, "epochs": 10}))
    if small:
        return (KNN, PROBE)
    if name in ("ablation", "beta-study"):
        return (Measure("linear top-1, 1 epoch", "linear", {"preset": f"{preset}-ablation"}),)
    return (Measure("linear top-1", "linear", {"preset": preset}),)


def learned(row: str, passes: int, images: int) -> Iterator[Measure]:
    """A learner trained from random weights for a row of table 3, for `passes` passes over the unlabelled images."""
    learner, shares = LEARNERS[row]
    steps = max(1, passes * images // (_LABELLED * PUBLISHED[learner].ratio))
    options = {"learner": learner, "labelled_batch": _LABELLED, "steps": steps}
    for share in shares:
        title = f"{share} % of the labels, {learner}"
        yield Measure(title, "semi-supervised", {"percent": share, **options}, ("top1", "top5"))


def with_lists(chosen: Study, folder: Path) -> Study:
    """Table 3 with the labels of SimCLR's lists, `1percent.txt` and `10percent.txt` of a folder. Raises UserError."""
    if chosen.name != "table3":
        raise UserError(f"--label-lists: is for table3; {chosen.name} draws no labels, leave it out")
    measures = []
    for measure in chosen.measures:
        file = folder / f"{measure.options['percent']}percent.txt"
        if measure.options["percent"] < 100:
            if not file.is_file():
                remedy = "give the folder imagenet_subsets of SimCLR's code"
                raise UserError(f"--label-lists {folder}: there is no {file.name}; {remedy}")
            measure = replace(measure, options={**measure.options, "list_file": str(file)})
        measures.append(measure)
    return replace(chosen, measures=tuple(measures))


#: As in the evidence page's detectors on small images.
_SMALL_BOXES: dict[str, Any] = {
    "batch_size": 4, "warmup_iterations": 30, "shorter_side": (112, 128), "test_shorter_side": 128, "longest_side": 213,
    "anchor_sizes": (8, 16, 32, 64, 128), "test_proposals": 50, "clip_norm": 1.0, "learning_rate": 0.01, "regions": 32,
    "precise_bn": 20,
}  # fmt: skip


def shortened(measure: Measure, passes: int) -> Measure:
    """A measure that trains for no more passes over its training images than the runs it measures, 1 … 20."""
    own = dict(measure.options)
    if measure.protocol == "semi-supervised":
        own["epochs"] = own["score_every"] = min(20, 100 * passes // own["percent"])
    elif measure.protocol == "fine-tune":  # the published rates but the largest and the smallest
        own |= {"epochs": min(20, passes), "score_every": min(20, passes), "learning_rates": (0.001,)}
    elif measure.protocol == "detect":
        own |= {"epochs": min(2, passes), **_SMALL_BOXES}
    elif measure.protocol == "linear" and "epochs" in own:
        own["epochs"] = min(own["epochs"], passes)
        return replace(measure, title=f"linear top-1, {counted(own['epochs'], 'epoch')}", options=own)
    return replace(measure, options=own)
