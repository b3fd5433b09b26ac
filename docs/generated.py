"""The generated parts of the documentation, between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.

Recipes come from the code, numbers from the result files in benchmarks/. A test compares; `python -m docs.generated`
writes all parts again. Tables outside of the markers, and numbers in sentences, are typed.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pydantic
import yaml
from rich.console import Console

from hexa import recipes
from hexa.cli import fields
from hexa.config import choices
from hexa.core import HardExample, MethodConfig
from hexa.data.views.config import ViewsConfig
from hexa.evaluation import protocols
from hexa.evaluation.few_labels import half_width
from hexa.hard_examples import Adversarial, CutMix
from hexa.methods.teacher import TeacherConfig
from hexa.recipes.modifiers import MODIFIERS
from hexa.reporting.tables import counted, format_duration, mean_std
from hexa.runtime.parsing import read_resource
from hexa.training.schedules import ScheduleConfig
from hexa_paper import loop, published
from hexa_paper.request import Request
from hexa_paper.semi_supervised.options import SemiSupervisedOptions
from hexa_paper.studies import (
    EXPERIMENTS,
    KNN,
    METHODS,
    PROBE,
    TABLES,
    command_of,
    measure,
    shown as published_rows,
)
from hexa_paper.tables import EPOCHS, TIME, TOLERANCE, Cell, markdown_table
from tests.test_imports import FLOORS

Choice = TypeVar("Choice", bound=pydantic.BaseModel)
ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
#: The pre-registered test of the paper's claim.
CLAIM = ROOT / "benchmarks" / "claim"
BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of (?P=name) -->)",
    re.DOTALL,
)

#: Names of image sets on pages, where they differ from the names in result files.
TITLES = {"smiles": "faces", "omniglot": "handwritten characters", "cifar10": "CIFAR-10"}
MOCO = "2026-11-21-moco-cifar10-small-20-epochs.json"
DCLUSTER = "2026-11-21-dcluster-cifar10-small-20-epochs.json"
SIMCLR = "2026-11-21-simclr-cifar10-small-4-epochs.json"
ABLATION = "2026-11-21-ablation-moco/result.json"
EVERY = [
    "2026-11-21-every-method-cifar10-small.json",
    "2026-11-22-cpc-cifar10-small.json",
]
PROTOCOLS = "2026-11-22-protocols.json"
DETECTION = "2026-11-21-detect-voc07-subset.json"
PAPER = "2026-11-23-paper-small/result.json"
#: The newest count.
EQUAL_TIME = "2026-11-22-equal-time.json"
ROBUST = "2026-11-25-robust-digits.json"
HARDENED_APGD = "2026-11-28-harden-apgd.json"
PHOTOGRAPHS = "2026-11-28-harden-photographs.json"
HARDENED = "2026-11-25-harden-muon.json"
HARDENED_ADAMW = "2026-11-25-harden-contrast.json"
HARDENED_PLAIN = "2026-11-25-harden-five-seeds.json"
HARDENED_BEFORE = "2026-11-24-harden-five-seeds.json"
HARDENED_GROWING = "2026-11-25-harden-growing.json"
#: Held-out images of one seed.
HARDENED_BY = "2026-11-24-harden-search.json"
HARDENED_SCORES = {
    "k-NN": "knn",
    "linear probe": "probe",
    "PGD, ε = 1": "robust@1",
    "PGD, ε = 2": "robust@2",
    "PGD, ε = 4": "robust@4",
}
SMALL_RECIPES = "2026-11-27-small-recipes.json"
SEMI = "2026-11-23-semi-supervised-digits.json"
HANDS = ("2026-11-27-adapt-sets-drawn.json",)
FEW_IMAGES = "2026-11-23-few-images.json"
SCRATCH = "2026-11-28-robust-scratch.json"
COVERAGE = "2026-11-29-coverage.json"
#: The rows of images in groups, by the factor that they have now.
GROUPED = "2026-11-29-coverage-groups.json"
#: Their arms, by what they are called on the page. ε and α₁ are 1 where nothing else is said.
FEW_IMAGES_ARMS = {
    "plain": "MoCo-v2",
    "+split": "split: half clean, half cut-mixed",
    "+cutmix": "+ cut-mixed",
    "+adversarial": "+ adversarial",
    "ε = ½": "+ adversarial, ε = ½",
    "ε = 2": "+ adversarial, ε = 2",
    "+adversarial+late": "+ adversarial, from half-way",
    "late, ε = 2": "+ adversarial, from half-way, ε = 2",
    "from ¾": "+ adversarial, from three quarters",
    "ramp": "+ adversarial, ε rising from 0",
    "α₁ = ½": "+ adversarial, α₁ = ½",
    "α₁ = 2": "+ adversarial, α₁ = 2",
    "SimCLR": "SimCLR",
    "SimCLR+adversarial": "SimCLR + adversarial",
}
FEW_IMAGES_UNDER_ATTACK = {
    "clean": ("robust", "top1"),
    **{f"ε = {epsilon}": ("robust", f"robust@{epsilon}") for epsilon in (1, 2, 4, 8)},
    "k-NN, clean": ("knn", "top1"),
}
#: MoCo-v2 for 200 epochs of ImageNet (Chen et al., 2020, table 3): hours of V100 GPUs, and forward passes of an image.
V100_HOURS = 424
V100_PASSES = 800
#: Recipes with published settings.
SETTINGS = (
    "imagenet-moco-v1-200",
    "imagenet-moco-v2-200",
    "cifar10-moco-v2",
    "imagenet-simclr",
    "cifar10-simclr",
    "imagenet-deepcluster-v2-200",
    "imagenet-deepcluster-v2-8crop-200",
    "imagenet-swav-b256-200",
    "imagenet-swav-200",
    "imagenet-byol-800",
    "imagenet-simsiam",
    "imagenet-dino",
)
#: Fields of their methods, and what the page calls them.
MEMORY = {
    "temperature": "τ",
    "queue_size": "K",
    "momentum": "m",
    "num_prototypes": "prototypes",
    "bn_groups": "G",
}
#: Its arms, by what they are called on the page.
ROBUST_ARMS = {
    "plain": "MoCo-v2",
    "longer": "MoCo-v2, longer",
    "adversarial": "HEXA-MoCo: ε = 1 from half-way, α₁ = 1",
}
COSTS = {
    "MoCo-v2, narrow, fp32": "2026-11-22-schemes-cifar10-small-fp32.json",
    "MoCo-v2, narrow, bf16": "2026-11-22-schemes-cifar10-small.json",
}
ARMS = {
    "plain": "plain",
    "+adv": "+ adversarial",
    "+cmx": "+ cut-mixed",
    "+adv+cmx": "+ adversarial + cut-mixed",
    "split": "split: half clean, half cut-mixed, one pass",
}


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / name).read_text())
    return found


def table(rows: Iterable[Iterable[str]], *header: str) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# -- from the code --------------------------------------------------------------------------------------------------


def recipe_table() -> str:
    """A line for each recipe. A recipe whose docstring says "not run here" has settings of publications alone."""
    rows = [
        (
            f"`{one['name']}`",
            one["method"],
            " + ".join(one["hard_examples"]) or "–",
            f"`{one['data']}`",
            str(one["epochs"]),
            str(one["batch_size"]),
            "not run here"
            if re.search("not (yet )?run here", one["expected"], re.I)
            else "run here",
        )
        for one in recipes.describe()
    ]
    return table(rows, "recipe", "method", "hard examples", "data", "epochs", "batch", "status")


def modifier_table() -> str:
    """The modifiers of recipes."""
    return table(
        [(f"`+{name}`", text) for name, text in MODIFIERS.items()], "modifier", "what it adds"
    )


def recipe_list() -> str:
    """Every recipe with what its docstring says, under the first part of its name."""
    parts, family = [], ""
    for one in recipes.describe():
        if one["name"].split("-")[0] != family:
            family = one["name"].split("-")[0]
            parts.append(f"## {family}\n")
        lines = [f"### `{one['name']}`", "", one["summary"], ""]
        lines += [
            f"- {fact}: {_fact(fact, one[fact])}"
            for fact in ("command", "expected", "cost")
            if one.get(fact)
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def hard_example_fields() -> str:
    """The fields of adversarial and of cut-mixed views; those that every kind has are listed once."""
    return field_table("hard_examples", Adversarial(), CutMix())


def teacher_fields() -> str:
    """The fields of the method `teacher`."""
    return field_table("method", TeacherConfig())


def published_settings() -> str:
    """Optimizer, schedule and memory of the recipes whose settings were published."""
    rows = []
    for name in SETTINGS:
        made = recipes.get(name)
        optimizer = made.optimizer
        rate = f"{optimizer.learning_rate:g} at {optimizer.base_batch_size or made.batch_size}"
        method = made.method.model_dump()
        memory = [
            f"{title} {_settings(method[key])}" for key, title in MEMORY.items() if method.get(key)
        ]
        rows.append(
            (
                f"`{name}`",
                f"{made.batch_size:,}",
                f"{optimizer.name}, {rate}",
                f"{optimizer.weight_decay:g}",
                _schedule(made.schedule),
                "; ".join(memory),
            )
        )
    header = ("recipe", "batch", "optimizer, rate at batch", "decay", "schedule (epochs)", "method")
    return table(rows, *header)


def _schedule(schedule: ScheduleConfig) -> str:
    """A schedule in words."""
    if schedule.kind == "steps":
        text = f"× {schedule.gamma:g} at {_settings(schedule.milestones)}"
    else:
        text = f"{schedule.kind} by {schedule.per}"
    if schedule.final_share:
        text += f" to {schedule.final_share:g} of the rate"
    return text + f", warm-up {schedule.warmup_epochs:g}" * bool(schedule.warmup_epochs)


def view_recipes() -> str:
    """The named views: crops, colours, blur; shares of the area, and probabilities in parentheses."""
    rows = []
    for name in read_resource("hexa.data.views", "recipes.yaml"):
        views = ViewsConfig.model_validate({"recipe": name})
        small = [
            f"{crops.count} × {_range(crops.scale or views.scale)}" for crops in views.extra_crops
        ]
        jitter = (views.brightness, views.contrast, views.saturation, views.hue)
        rows.append(
            (
                f"`{name}`",
                "; ".join([_range(views.scale), *small]),
                f"{_settings(jitter)} ({views.jitter_probability:g})",
                f"{views.grayscale_probability:g}",
                f"{_range(views.blur_sigma)} ({views.blur_probability:g})",
            )
        )
    jitter_title = "brightness, contrast, saturation, hue"
    return table(rows, "`views.recipe`", "crops", jitter_title, "grey", "blur σ")


def _range(ends: Sequence[float]) -> str:
    return "–".join(f"{end:g}" for end in ends)


def presets() -> str:
    """The presets of the protocols with all their settings; none and empty ones are left out."""
    rows = []
    for name in protocols.names():
        for preset, options in protocols.get(name).presets.items():
            given = options.model_dump(mode="json").items()
            kept = [f"{key} {_settings(value)}" for key, value in given if value not in (None, [])]
            rows.append((f"`{name} --preset {preset}`", "; ".join(kept)))
    return table(rows, "preset", "settings")


def _settings(value: Any) -> str:
    """A setting; of a long list, its length and ends."""
    if isinstance(value, list | tuple):
        shown = [_settings(one) for one in value]
        return (
            ", ".join(shown) if len(shown) < 9 else f"{len(shown)} from {shown[0]} to {shown[-1]}"
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def learner_options() -> str:
    """The options of `hexa evaluate semi-supervised`."""
    rows = [
        (f"`--{field.path}`", shown(field.value), field.description)
        for field in fields.of_experiment(SemiSupervisedOptions())
    ]
    return table(rows, "option", "default", "meaning")


def shown(value: Any) -> str:
    """The default of a field in a table."""
    return "none" if value is None else json.dumps(value).strip('"')


def field_table(group: str, *configs: pydantic.BaseModel) -> str:
    """The fields of configurations with defaults and meaning; a field that an earlier one has is left out."""
    rows: dict[str, tuple[str, str, str]] = {}
    for config in configs:
        prefix = f"{group}.{config.kind}." if isinstance(config, HardExample) else f"{group}."
        for field in fields.of_experiment(config, prefix):
            name = field.path.rpartition(".")[2]
            if name not in ("kind", "name"):
                rows.setdefault(name, (f"`{field.path}`", shown(field.value), field.description))
    return table(rows.values(), "field", "default", "meaning")


def protocol_table() -> str:
    """Every protocol with the first paragraph of its module."""
    return table(
        ((f"`{name}`", protocols.summary(name)) for name in protocols.names()),
        "protocol",
        "what it does",
    )


def _fact(name: str, text: str) -> str:
    return f"`{text}`" if name == "command" else text


def matrix() -> str:
    """The hard examples that each method takes, and the reasons of refusals."""
    kinds = choices(HardExample, "kind", "hexa.hard_examples")
    kinds = {
        name: kind for name, kind in sorted(kinds.items()) if kind.__module__.startswith("hexa.")
    }
    methods = choices(MethodConfig, "name", "hexa.methods")
    rows, reasons = [], []
    for name, method in sorted(methods.items()):
        if method.__module__.partition(".")[0] in ("hexa", "hexa_paper"):
            refused = [config().refusal(method()) for config in kinds.values()]
            rows.append([name, *("no" if why else "yes" for why in refused)])
            reasons += [f"- {name}: {why}\n" for why in dict.fromkeys(refused) if why]
    return table(rows, "method", *kinds) + "\n" + "".join(reasons)


def method_table() -> str:
    """The methods, by the first sentence of their modules, with the number of views."""
    rows = []
    for name, config in _own(MethodConfig, "name", "hexa.methods").items():
        least, most, _ = config.num_views
        views = (
            str(least)
            if least == most
            else f"{least} and more"
            if most is None
            else f"{least}–{most}"
        )
        rows.append((name, _sentence(config), views))
    return table(rows, "method", "task", "views")


def kind_table() -> str:
    """The kinds of hard examples, by the first sentence of their modules."""
    kinds = _own(HardExample, "kind", "hexa.hard_examples")
    return table(((name, _sentence(kind)) for name, kind in kinds.items()), "kind", "view")


def _own(base: type[Choice], field: str, group: str) -> dict[str, type[Choice]]:
    """The choices of this project by name, without those of other packages."""
    every = sorted(choices(base, field, group).items())
    wings = ("hexa", "hexa_paper")
    return {name: kind for name, kind in every if kind.__module__.partition(".")[0] in wings}


def _sentence(kind: type) -> str:
    """The first paragraph of the module of a class, without numbers of formulas."""
    text = inspect.getdoc(sys.modules[kind.__module__]) or ""
    first = " ".join(text.partition("\n\n")[0].split()).rstrip(".")
    return re.sub(
        r"(; | \()F\d+(, F\d+)*(?=\))\)?", lambda found: ")" * found[0].startswith(";"), first
    )


def usb() -> str:
    """Published errors of semi-supervised learners on CIFAR-10."""
    one = published.FEW_LABELS
    rows = ((f"`{row.method}`", *(f"{value:.2f}" for value in row.values)) for row in one.rows)
    return table(rows, "learner", *(f"{column.partition('@')[2]} labels" for column in one.columns))


# -- from benchmarks ------------------------------------------------------------------------------------------------


def arms(name: str, plain: str) -> str:
    """Arms at equal epochs and at equal time: means over seeds, and changes to the plain arm of the same seed."""
    found = result(name)
    epochs, short = found["epochs"], found["epochs_at_equal_time"]
    rows = []
    for arm in ARMS:
        if arm not in found["rates"]:
            continue
        same = _runs(found, arm, epochs)
        timed = _runs(found, arm, short.get(arm, epochs))
        base = _runs(found, "plain", epochs)
        note = f" ({short[arm]} epochs)" if arm in short else ""
        rows.append(
            (
                plain if arm == "plain" else ARMS[arm],
                f"{found['rates'][arm]:g}",
                _pair(same),
                _change(same, base) if arm != "plain" else "",
                _pair(timed) + note,
                _change(timed, base) if arm != "plain" else "",
            )
        )
    header = (
        "arm",
        "rate",
        f"{epochs} epochs each",
        "change",
        f"the time of {epochs} plain epochs",
        "change",
    )
    return table(rows, *header)


def _runs(found: dict[str, Any], arm: str, epochs: int) -> dict[int, dict[str, float]]:
    return {
        run["seed"]: run for run in found["runs"] if (run["arm"], run["epochs"]) == (arm, epochs)
    }


def _pair(runs: dict[int, dict[str, float]]) -> str:
    return " / ".join(
        mean_std([run[metric] for run in runs.values()]) for metric in ("knn", "probe")
    )


def _change(runs: dict[int, dict[str, float]], base: dict[int, dict[str, float]]) -> str:
    """The paired change, over seeds that both arms have."""
    return _mean_changes(
        [
            [runs[s][m] - base[s][m] for m in ("knn", "probe")]
            for s in sorted(runs.keys() & base.keys())
        ]
    )


def ablation() -> str:
    """The result of `hexa reproduce ablation`: every scheme at equal epochs and at equal time."""
    found = result(ABLATION)["summary"]
    same = {row["key"]: row for row in found if row["comparison"] == EPOCHS}
    timed = {row["key"]: row for row in found if row["comparison"] == TIME}
    base = _by_seed(same["i"])
    rows = []
    for key, row in same.items():
        runs, short = _by_seed(row), _by_seed(timed[key])
        changes = ["" if key == "i" else _change(these, base) for these in (runs, short)]
        if abs(timed[key]["relative_time"] - 1) > TOLERANCE:
            changes[1] = ""  # which is no equal time
        note = "" if key == "i" else f" ({timed[key]['epochs']})"
        rate = f"{row['learning_rate']:g}"
        rows.append(
            (f"{key}: {row['arm']}", rate, _pair(runs), changes[0], _pair(short) + note, changes[1])
        )
    epochs = same["i"]["epochs"]
    header = (
        f"{epochs} epochs each",
        "change",
        f"the time of {epochs} plain epochs (epochs)",
        "change",
    )
    return table(rows, "scheme", "rate", *header)


def _by_seed(row: dict[str, Any]) -> dict[int, dict[str, float]]:
    knn, probe = (row["scores"][measure.title]["values"] for measure in (KNN, PROBE))
    return {
        seed: {"knn": knn[place], "probe": probe[place]} for place, seed in enumerate(row["seeds"])
    }


def every_method() -> str:
    """Each method in a few epochs, plain and with adversarial views, where both were run."""
    found = {
        _today(recipe): row for file in EVERY for recipe, row in result(file)["summary"].items()
    }
    rows = []
    for name, plain in found.items():
        if hard := found.get(f"{name}+adversarial"):
            cells = [
                _scored(plain),
                _scored(hard),
                f"{hard['knn'] - plain['knn']:+.1f}".replace("-", "−"),
            ]
            rows.append((f"`{name}`", str(plain["epochs"]), f"{plain['untrained']:.1f}", *cells))
    return table(rows, "recipe", "epochs", "untrained", "plain", "+ adversarial", "change")


def _today(recipe: str) -> str:
    """Today's name of a recipe; the first results have others."""
    found = re.fullmatch(r"cifar10-small-(hexa-)?(.+)", recipe)
    return f"cifar10-{found[2]}+small{'+adversarial' * bool(found[1])}" if found else recipe


def _scored(one: dict[str, Any]) -> str:
    spread = f" ± {one['std']:.1f}" if one["std"] is not None else ""
    return f"{one['knn']:.1f}{spread} ({len(one['seeds'])})"


def by_protocol() -> str:
    """Backbones by every protocol: the first metric of each. Ids of protocols may have become longer since a row."""
    rows = result(PROTOCOLS)["rows"]
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    ids: dict[tuple[str, str, str], str] = {}
    for row in sorted(rows, key=lambda row: row["data"].startswith("parquet:")):
        metric, value = next(iter(row["metrics"].items()))
        data = "VOC07 subset" if row["data"].startswith("voc:") else "CIFAR-10"
        place = row["asked"], data, metric
        found.setdefault(place, {})[row["backbone"]] = f"{value:.1f}"
        ids[place] = max(ids.get(place, ""), row["protocol"], key=len)
    names = list(dict.fromkeys(row["backbone"] for row in rows))
    lines = [
        (f"`{ids[at]}`", *at[1:], *(values.get(name, "–") for name in names))
        for at, values in found.items()
    ]
    return table(lines, "protocol", "data", "metric", *map(_today, names))


def by_detection() -> str:
    """Networks with random and with trained weights by both presets of `detect`."""
    found: dict[tuple[str, ...], dict[bool, str]] = {}
    for row in result(DETECTION)["rows"]:
        preset, steps = (
            re.search(pattern, row["command"])
            for pattern in (r"--preset (\w+)", r"--iterations (\d+)")
        )
        assert preset is not None
        assert steps is not None
        network, weights = row["backbone"].split(", ")
        scores = " / ".join(f"{row['metrics'][metric]:.2f}" for metric in ("AP", "AP50"))
        found.setdefault((f"`{preset[1]}`", steps[1], network), {})[weights == "random"] = scores
    rows = [(*key, scores[True], scores[False]) for key, scores in found.items()]
    return table(rows, "preset", "steps of 4 images", "network", "random", "trained")


def costs() -> str:
    """Relative cost of a step of each scheme."""
    found = {title: result(name) for title, name in COSTS.items()}
    schemes = list(dict.fromkeys(scheme for one in found.values() for scheme in one["schemes"]))
    rows = []
    for scheme in schemes:
        cells = []
        for one in found.values():
            cost = one["schemes"].get(scheme, {}).get("relative_cost")
            naive = one["naive"].get(scheme, {}).get("relative_cost")
            text = "–" if cost is None else f"{cost:.2f}"
            cells.append(text + (f" (naive {naive:.2f})" if naive is not None else ""))
        rows.append((f"`{scheme}`", *cells))
    return table(rows, "terms", *found)


#: Arms and data sets of benchmarks/from_weights.py, and the metrics that are shown.
FURTHER = {
    "start": "initial weights",
    "head first": "SimCLR, the head alone in the first epoch",
    "adversarial": "+ adversarial",
    "cutmix": "+ cut-mixed",
    "both": "+ adversarial + cut-mixed",
    "random weights": "SimCLR from random weights",
    "lightly-train, our rate": "SimCLR by lightly-train, our rate",
}
SETS = {
    "omniglot": ("Omniglot, 64 px: k-NN / probe", ("knn", "probe")),
    "cifar10": ("CIFAR-10, 2,000 images, 64 px: k-NN / probe", ("knn", "probe")),
}


def equal_time() -> str:
    """With and without hard examples, and by another library, at equal time; mean and deviation over seeds."""
    rows = result(EQUAL_TIME)["rows"]
    body = []
    for arm, label in FURTHER.items():
        line = [label]
        for name, (_, metrics) in SETS.items():
            runs = [row for row in rows if (row["data"], row["arm"]) == (name, arm)]
            scores = " / ".join(mean_std([run["metrics"][key] for run in runs]) for key in metrics)
            spent = [run["cpu_seconds"] for run in runs if "cpu_seconds" in run]
            seconds = f", {statistics.mean(spent):.0f} s" if spent else ""
            line.append(f"{scores} ({len(runs)}{seconds})" if runs else "–")
        body.append(line)
    return table(body, "arm (runs, seconds of one core)", *(title for title, _ in SETS.values()))


def strongest() -> str:
    """Gains of hard examples at equal time: rows with a gain under attack whose 95 % interval excludes 0."""
    few = _few_images_rows(searched=True)
    digits = {
        (row["arm"], 17, row["seed"]): {"robust": row["metrics"]} for row in result(ROBUST)["rows"]
    }
    weak, strong = (
        {
            "clean": ("robust", "top1"),
            **{f"PGD, ε = {grey}": ("robust", f"robust@{grey}") for grey in levels},
        }
        for levels in ((2, 4), (8, 16))
    )
    late = {
        "adversarial, last quarter": "from ¾",
        "adversarial, from half-way": "+adversarial+late",
        "adversarial, from the first epoch": "+adversarial",
    }
    body = []
    for goal, runs, plain, length, places, arms in (
        ("robustness, photographs", few, "plain", 400, weak, late),
        (
            "robustness, digits",
            digits,
            "longer",
            17,
            strong,
            {"adversarial, from half-way": "adversarial"},
        ),
    ):
        for label, arm in arms.items():
            seeds = [
                seed
                for of, long, seed in runs
                if (of, long) == (arm, length) and (plain, length, seed) in runs
            ]
            scores = {
                of: [
                    [
                        runs[of, length, seed][protocol][metric]
                        for protocol, metric in places.values()
                    ]
                    for seed in seeds
                ]
                for of in (plain, arm)
            }
            changes = [
                [b - a for a, b in zip(*pair, strict=True)]
                for pair in zip(scores[plain], scores[arm], strict=True)
            ]
            if all(
                statistics.fmean(attacked) <= _half(attacked)
                for attacked in list(zip(*changes, strict=True))[1:]
            ):
                continue
            means = (
                " / ".join(f"{statistics.fmean(of):.1f}" for of in zip(*rows, strict=True))
                for rows in scores.values()
            )
            body.append(
                (
                    f"{goal}, {length:,} epochs",
                    label,
                    " / ".join(places),
                    *means,
                    _mean_changes(changes),
                )
            )
    head = (
        "goal, time of plain training",
        "hard example",
        "measured by",
        "plain",
        "with it",
        "change (seeds)",
    )
    return table(body, *head)


def hardened() -> str:
    """Robust copies by the recipe `teacher` and their start: clean accuracy, and robust accuracy by APGD."""
    rows = result(HARDENED_APGD)["rows"]
    (start,) = (row for row in rows if row["arm"] == "start")
    runs = [row for row in rows if row["arm"] != "start"]
    body = []
    for name, seeds in (("initial model", [start]), (f"`teacher` ({len(runs)} seeds)", runs)):
        cells = []
        for metric in ("knn", "probe"):
            values = [row["metrics"][metric] for row in seeds]
            change = ""
            if seeds is runs:
                change = f" ({_paired_change([one - start['metrics'][metric] for one in values])})"
            cells.append(f"{statistics.fmean(values):.1f}{change}")
        smallest = [row["smallest_epsilon"] for row in seeds]
        cells += [withstood(smallest, epsilon) for epsilon in (1, 2, 4)]
        body.append((name, *cells))
    attacks = (f"APGD, ε = {epsilon}/255" for epsilon in (1, 2, 4))
    return table(body, "", "k-NN", "linear probe", *attacks)


def withstood(smallest: Sequence[Sequence[float | None]], epsilon: float) -> str:
    """Robust accuracy in percent, ± half of its 95 % interval over images and seeds, from one list of a seed."""
    outcomes = [[one is None or one > epsilon for one in seed] for seed in smallest]
    mean, half = over_images_and_seeds(outcomes)
    return f"{mean:.1f} ± {half:.1f}" if mean else "0.0"


def over_images_and_seeds(outcomes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean in percent of [seeds, images] outcomes, and half of its 95 % interval.

    √(seeds² + images²): Student's t of the seeds' means, and 1.96 standard errors over images of the images' means,
    since all seeds share their images. Of one seed, over images alone.
    """
    table = 100 * np.asarray(outcomes, dtype=np.float64)
    images = 1.96 * table.mean(0).std(ddof=1) / math.sqrt(table.shape[1])
    seeds = half_width(table.mean(1)) if len(table) > 1 else 0.0
    return float(table.mean()), math.hypot(images, seeds)


def hardened_photographs() -> str:
    """`hexa harden` by its defaults on photographs: each run by its verdict and by images that it did not see."""
    rows = result(PHOTOGRAPHS)["rows"]
    (start,) = (row for row in rows if row["arm"] == "start")
    runs = [row for row in rows if row["arm"] != "start"]
    body = []
    groups = [(f"held-out images, seed {row['seed']}", [row]) for row in runs]
    if len(runs) > 2:  # two seeds do not tell how much seeds differ
        groups.append((f"all {len(runs)} seeds", runs))
    for name, seeds in groups:
        cells = []
        for name_of in ("k-NN", "linear probe"):
            before = np.asarray(start["right"][name_of], dtype=np.float64)
            changes = [np.asarray(row["right"][name_of]) - before for row in seeds]
            mean, half = over_images_and_seeds(changes)
            cells.append(f"{mean:+.1f} ± {half:.1f}".replace("-", "−"))
        smallest = [row["smallest_epsilon"] for row in seeds]
        cells += [withstood(smallest, epsilon) for epsilon in (1, 2)]
        body.append((name, *cells))
    for row in runs:
        said = row["comparison"]
        cells = [
            f"{said['changes'][name][0]:+.1f} ± {said['changes'][name][1]:.1f}".replace("-", "−")
            for name in ("k-NN", "linear probe")
        ]
        for epsilon in (1, 2):
            name = f"APGD of ε = {epsilon}"
            cells.append(f"{said[name][1]:.1f} ± {said['changes'][name][1]:.1f}")
        body.append((f"verdict of seed {row['seed']} ({said['attacked']} attacked)", *cells))
    attacks = (f"APGD, ε = {epsilon}/255" for epsilon in (1, 2))
    return table(body, "", "k-NN, change", "linear probe, change", *attacks)


def hardened_before(*before: tuple[str, str]) -> str:
    """Robust copies and their start, as changes from it, by the recipe as it is, and as it was `before`."""
    body = []
    for name, recipe in ((HARDENED, "`teacher`"), *before):
        rows = result(name)["rows"]
        (start,) = (row["metrics"] for row in rows if row["arm"] == "start")
        if not body:
            body = [
                ("initial model", *(f"{start[name]:.1f}" for name in HARDENED_SCORES.values()), "–")
            ]
        for epochs in sorted({row["epochs"] for row in rows if "epochs" in row}):
            these = [row for row in rows if row.get("epochs") == epochs]
            runs, seconds = [row["metrics"] for row in these], [row["cpu_seconds"] for row in these]
            cells = (
                f"{statistics.fmean(run[name] for run in runs):.1f} "
                f"({_paired_change([run[name] - start[name] for run in runs])})"
                for name in HARDENED_SCORES.values()
            )
            took = f"{statistics.fmean(seconds):.0f}"
            body.append((f"{recipe}, {epochs} epochs ({len(runs)} seeds)", *cells, took))
    return table(body, "", *HARDENED_SCORES, "seconds of one core")


def adapted_now() -> str:
    """The verdict of `hexa adapt` in ten minutes, set by set, next to labelled images that it did not see."""
    rows = result("2026-11-27-adapt-sets-drawn.json")["rows"]
    return table([(row["data"], *_adaptation(row)) for row in rows], "images", *_ADAPTATION)


_ADAPTATION = (
    "seconds",
    "verdict",
    "kept",
    "k-NN, held-out images",
    "linear probe, held-out images",
)


def _adaptation(row: dict[str, Any]) -> tuple[str, ...]:
    """The verdict of one run, and the initial weights and the result on held-out images."""
    _, _, said = row["verdict"].partition(": ")  # after the conclusion
    said = said.partition(":")[0].removeprefix("result is ").removeprefix("these labels show ")
    said = said.replace("than start", "than initial weights")
    changes = [row["change, half"][name] for name in row["start"]] if "start" in row else []
    shown = [
        f"{row['start'][name]:.1f} → {row['result'][name]:.1f} ({points:+.1f} ± {half:.1f})".replace(
            "-", "−"
        )
        for name, (points, half) in zip(row.get("start", ()), changes, strict=True)
    ] or ["–", "–"]
    return f"{row['seconds']:,}", said, row["kept"].replace("start", "initial weights"), *shown


def adapted_sets() -> str:
    """A row for each set of `adapted_now`: what was kept, and changes on held-out images, seed by seed."""
    rows = result(HANDS[0])["rows"]
    body = []
    for data in dict.fromkeys(row["data"] for row in rows):
        runs = [row for row in rows if row["data"] == data]
        kept = " / ".join(dict.fromkeys(_adaptation(run)[2] for run in runs))
        line = [TITLES.get(data, data), kept]
        for name in ("k-NN", "linear probe"):
            changes = [run["change, half"][name] for run in runs]
            text = ", ".join(f"{points:+.1f} ± {half:.1f}" for points, half in changes)
            line.append(text.replace("-", "−"))
        body.append(line)
    return table(body, "images", "kept", "k-NN", "linear probe")


def expected() -> str:
    """The README's table: what was better, worse or no different. Intervals are over seeds and images."""
    hardened = [row for row in result(HARDENED_APGD)["rows"] if row["arm"] != "start"]
    found = withstood([row["smallest_epsilon"] for row in hardened], 1)
    count = f"{hardened[0]['images']} images, {len(hardened)} seeds"
    what = "hardening (recipe `teacher`), CIFAR-10 at 64 px"
    robust = (what, f"APGD of ε = 1/255: better 0.0 → {found}", count, HARDENED_APGD)
    photographs = [row for row in result(PHOTOGRAPHS)["rows"] if row["arm"] != "start"]
    smallest = [row["smallest_epsilon"] for row in photographs]
    (start,) = (row for row in result(PHOTOGRAPHS)["rows"] if row["arm"] == "start")
    before = withstood([start["smallest_epsilon"]], 1)
    right = np.asarray(start["right"]["k-NN"], dtype=np.float64)
    changes = [np.asarray(row["right"]["k-NN"]) - right for row in photographs]
    lost = "{:+.1f} ± {:.1f}".format(*over_images_and_seeds(changes)).replace("-", "−")
    found = (
        f"APGD of ε = 1/255: better {before} → {withstood(smallest, 1)}; clean k-NN: worse ({lost})"
    )
    count = f"{len(smallest[0])} / {len(right):,} images, {len(photographs)} run"
    harden = ("`hexa harden --time 12m`, Caltech-101", found, count, PHOTOGRAPHS)
    body = [*_adapted_sets(), harden, robust]
    body += _claimed_gains()
    return table(body, "what", "result on held-out images", "n", "file of `benchmarks/`")


def _claimed(measures: Mapping[str, str]) -> list[tuple[str, list[str], int]]:
    """H1 and H2 of the pre-registered test: what is compared, the change in each measure, and the number of seeds."""
    sys.path.insert(0, str(CLAIM))
    try:
        import plan
        import run
    finally:
        sys.path.remove(str(CLAIM))
    rows = run.stored(CLAIM / "rows")
    of_images = result("2026-11-30-claim-over-images.json")["rows"]
    over_images = {
        row["contrast"]: row["half, images"] for row in of_images if row["seed"] == "mean"
    }
    against = {"H1": "MoCo-v2, one learning rate", "H2": "the placebo, each at its best rate"}
    body = []
    for label, (first, second) in plan.hypotheses(rows, "small").items():
        cells = []
        for outcome in measures.values():
            values = plan.differences(rows, "small", first, second, outcome)
            # single images were scored again in k-NN alone
            images = over_images[label] if outcome == "knn" else 0.0
            cells.append(_paired_change([*values.values()], images))
        body.append((against[label], cells, len(values)))
    return body


def claim() -> str:
    """The pre-registered test: changes by adversarial views, over seeds."""
    measures = {
        "k-NN": "knn",
        "linear probe": "probe",
        "PGD, ε = 2/255": "robust2",
    }
    rows = [(f"{name} ({seeds} seeds)", *cells) for name, cells, seeds in _claimed(measures)]
    return table(rows, "adversarial views compared with", *measures)


def _claimed_gains() -> list[tuple[str, str, str, str]]:
    """Rows of `expected` from the pre-registered test."""
    rows = []
    for name, (accuracy, robust), seeds in _claimed({"k-NN": "knn", "PGD": "robust2"}):
        found = f"k-NN: {accuracy}; PGD of ε = 2/255: {robust}"
        what = f"HEXA-MoCo compared with {name} (2,000 images of CIFAR-10, 1,600 epochs)"
        rows.append((what, found, f"10,000 / 1,000 images, {seeds} seeds", "claim/rows"))
    return rows


def _adapted_sets() -> list[tuple[str, str, str, str]]:
    """Rows of `expected` on `hexa adapt`."""
    rows = [row for file in HANDS for row in result(file)["rows"]]
    body = []
    for data, title in (
        ("hands", "hands that sign digits"),
        ("omniglot", "handwritten characters"),
    ):
        runs = [row for row in rows if row["data"] == data]
        points = [row["change, half"]["k-NN"][0] for row in runs]
        images = statistics.fmean(row["change, half"]["k-NN"][1] for row in runs)
        start, end = (
            statistics.fmean(row[of]["k-NN"] for row in runs) for of in ("start", "result")
        )
        half = math.hypot(images, _half(points))
        found = f"k-NN: better {start:.1f} → {end:.1f} (+{end - start:.1f} ± {half:.1f})"
        count = f"{runs[0]['judged']:,} images, {len(runs)} seeds"
        body.append((f"`hexa adapt`, {title}", found, count, HANDS[0]))
    kept = [row["change, half"]["k-NN"][0] for row in rows if row["kept"] == "start"]
    found = f"{min(kept):+.1f} to {max(kept):+.1f}".replace("-", "−")
    what = "`hexa adapt`, groceries, faces, objects, CIFAR-10"
    return [
        *body,
        (
            what,
            f"k-NN: no significant gain ({found}); initial weights kept",
            "1,500 images, 2 seeds",
            HANDS[0],
        ),
    ]


def adapted_hands() -> str:
    """Changes by `hexa adapt` on the hands: each seed on held-out images, then the mean of seeds."""
    rows = [row for file in HANDS for row in result(file)["rows"] if row["data"] == "hands"]
    measures = ("k-NN", "linear probe")
    body = []
    for row in sorted(rows, key=lambda row: row["seed"]):
        cells = [
            f"{row['start'][name]:.1f} → {row['result'][name]:.1f} "
            f"({row['change, half'][name][0]:+.1f} ± {row['change, half'][name][1]:.1f})"
            for name in measures
        ]
        body.append((f"seed {row['seed']}, ± over images", *cells))
    changes = [[row["change, half"][name][0] for row in rows] for name in measures]
    body.append((f"mean, ± over {len(rows)} seeds", *map(_paired_change, changes)))
    return table(body, f"held-out images ({rows[0]['judged']})", *measures)


def hardened_growing() -> str:
    """An ε that grows, as paired changes from one that stays."""
    stays = {
        row["seed"]: row["metrics"] for row in result(HARDENED_BEFORE)["rows"] if "seed" in row
    }
    grows = {
        row["seed"]: row["metrics"] for row in result(HARDENED_GROWING)["rows"] if "seed" in row
    }
    cells = (
        f"{statistics.fmean(run[name] for run in grows.values()):.1f} "
        f"({_paired_change([run[name] - stays[seed][name] for seed, run in grows.items()])})"
        for name in HARDENED_SCORES.values()
    )
    return table(
        [(f"ε grows ({len(grows)} seeds; change from ε that stays)", *cells)], "", *HARDENED_SCORES
    )


def coverage() -> str:
    """The coverage of intervals, and the gains that they show."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    alone = [row for row in result(COVERAGE)["rows"] if row["group"] == 1]
    made = [row for row in alone + result(GROUPED)["rows"] if row["decides"]]
    for row in sorted(made, key=lambda row: (row["labelled"], row["classes"], row["group"])):
        images = f"{row['labelled']:,}"
        if row["group"] != 1:
            images += ", in groups" if row["group"] else ", in unequal groups"
        cells.setdefault((images, str(row["classes"])), []).append(row)
    rows = []
    for place, (equal, *gains) in cells.items():
        found = [f"{row['truth']:.1f} points: {100 * row['better']:.0f} %" for row in gains]
        covered = f"{100 * equal['covered']:.1f} %"
        wrong = f"{50 * (equal['better'] + equal['worse']):.1f} %"  # both sides are alike
        rows.append((*place, covered, wrong, ", ".join(found)))
    header = ("labelled images", "classes", "intervals hold", "wrong “better”", "gains found")
    return table(rows, *header)


def start_by_size() -> str:
    """Clean accuracy of the initial weights, by image size."""
    rows = result("2026-11-25-start-by-size.json")["rows"]
    scores = {row.get("size", 64): row["metrics"] for row in rows}
    named = (("k-NN", "knn"), ("linear probe", "probe"))
    body = [(name, *(f"{scores[size][key]:.1f}" for size in sorted(scores))) for name, key in named]
    return table(body, "", *(f"{size} px" for size in sorted(scores)))


def hardened_objects() -> str:
    """The table of one run of `hexa harden`, and the differences of another, on views of the result's size."""
    found, before = (
        result(f"2026-11-25-harden-objects-{end}.json")["table"] for end in ("smaller", "muon")
    )
    rows = [(*row, other[-1]) for row, other in zip(found["rows"], before["rows"], strict=True)]
    return table(_by_pgd(rows), *found["header"], "difference by views of 160 px")


def hardened_clothes() -> str:
    """The table of one run of `hexa harden` on photographs of clothes."""
    found = result("2026-11-26-harden-clothes-two-cores.json")["table"]
    return table(_by_pgd(found["rows"]), *found["header"])


def _by_pgd(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Rows whose first cell names the attack of these runs."""
    return [[row[0].replace("attack of ε", "PGD, ε"), *row[1:]] for row in rows]


def hardened_sets() -> str:
    """Verdicts of `hexa harden` on four sets, next to images that it did not see."""
    body = []
    for row in result("2026-11-27-harden-25-minutes.json")["rows"]:
        said, seen = (
            {cells[0].partition(",")[0]: cells for cells in row["table"]["rows"]},
            row["afterwards"],
        )
        kept = row["kept"] == "result"  # else further images were judged by the start alone
        for name, metric in (("linear probe", "probe"), ("k-NN", "knn")):
            start, end = (seen[f"{side}, {metric}"] for side in ("start", "result"))
            further = f"{start:.1f} → {end:.1f} ({end - start:+.1f})".replace("-", "−")
            told = f"{said[name][1]} → {said[name][2]} ({said[name][3]})"
            images = row["data"] if name == "linear probe" else ""
            if images and not kept:
                images += ", initial weights kept"
            body.append((images, name, told, further if kept else f"{start:.1f}"))
        for radius in (1, 2, 4):
            name, held = f"attack of ε = {radius}", seen["result, 200 images"][f"robust@{radius}"]
            body.append(
                (
                    "",
                    f"PGD, ε = {radius}",
                    f"{said[name][1]} → {said[name][2]} ({said[name][3]})",
                    f"{held:.1f}" if kept else "–",
                )
            )
    return table(body, "images", "", "by the verdict", "held-out images")


def price_rules() -> str:
    """The share that rules for the price of `hexa harden` pick, and the loss on held-out images."""
    rules = result("2026-11-28-harden-price.json")["rules"]
    body: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rules, key=lambda row: row["price"]):
        cells = body.setdefault((f"{row['price']:g}", row["rule"]), [])
        lost = f"{row['lost']:.1f} ± {row['deviation']:.1f}, worst {row['worst']:.1f}".replace(
            "-", "−"
        )
        cells.append(f"{row['share']:.2f}: {lost}")
    return table(
        [(*key, *cells) for key, cells in body.items()],
        "`--price`",
        "rule",
        *dict.fromkeys(row["run"] for row in rules),
    )


def hardened_corrupted() -> str:
    """Accuracy on corrupted images by their kind, with and without other contrast, as changes from the initial weights."""
    rows = result("2026-11-25-harden-corrupted.json")["rows"]
    (start,) = (row["metrics"] for row in rows if row["arm"] == "start")
    body = [("initial model", *(f"{value:.1f}" for value in start.values()))]
    for arm in ("without other contrast", "with it"):
        runs = [row["metrics"] for row in rows if row["arm"] == arm]
        changes = (_paired_change([run[name] - start[name] for run in runs]) for name in start)
        means = (f"{statistics.fmean(run[name] for run in runs):.1f}" for name in start)
        body.append(
            (
                f"{arm} ({len(runs)} seeds)",
                *(f"{m} ({c})" for m, c in zip(means, changes, strict=True)),
            )
        )
    return table(body, "", *start)


def hardened_by(name: str) -> str:
    """Arms of the recipe `teacher`, one seed each."""
    rows = result(name)["rows"]
    body = (
        (row["arm"], *(f"{row['metrics'][name]:.1f}" for name in HARDENED_SCORES.values()))
        for row in rows
    )
    return table(body, "", *HARDENED_SCORES)


def speedrun_tracks() -> str:
    """Every track with its record: mean and 95 % interval of its seeds."""
    tracks = yaml.safe_load((ROOT / "benchmarks/speedrun/tracks.yaml").read_text())
    body = []
    for name, one in tracks.items():
        rows = result(f"speedrun/{one['result']}")["rows"]
        seconds = [row["seconds"] for row in rows]
        scores = [row["metrics"][one["measure"]] for row in rows]
        took = f"{statistics.fmean(seconds):.0f} ± {_half(seconds):.0f}"
        reached = f"{statistics.fmean(scores):.1f} ± {_half(scores):.1f}"
        body.append((name, one["goal"], took, reached, f"`{one['recipe']}`"))
    return table(body, "track", "goal", "seconds of one core", "reached", "recipe")


def small_recipes() -> str:
    """Small recipes with the earlier narrow network and with the record's, by rate: one seed, held-out images."""
    rows = [row for row in result(SMALL_RECIPES)["rows"] if row["track"] == "B" and row["held_out"]]

    def cell(method: str, network: str, rate: str | None) -> str:
        found = [row for row in rows if (row["method"], row["network"]) == (method, network)]
        found = [row for row in found if row["fields"].get("optimizer.learning_rate") == rate]
        if (
            method in ("deepcluster-v2", "swav") and rate
        ):  # of two ranges of crops, which were compared at one rate
            found = [row for row in found if "views.scale" in row["fields"]]
        best = max(found, key=lambda row: row["metrics"]["top1"], default=None)
        return f"{best['metrics']['top1']:.1f} ({best['seconds']:.0f} s)" if best else "–"

    rates = ("0.03", "0.06", "0.12")
    body = [
        (method, cell(method, "narrow", None), *(cell(method, "wide", rate) for rate in rates))
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    return table(
        sorted(body),
        "method",
        "narrow network, 60 epochs",
        *(f"now, 30 epochs, {rate}" for rate in rates),
    )


def robust_arms() -> str:
    """The demo's arms under attack, and MoCo-v2 for as long."""
    body = []
    for arm, label in ROBUST_ARMS.items():
        runs = [row for row in result(ROBUST)["rows"] if row["arm"] == arm]
        scores = (
            mean_std([run["metrics"][key] for run in runs])
            for key in ("top1", "robust@8", "robust@16", "knn")
        )
        seconds = f"{statistics.mean(run['cpu_seconds'] for run in runs):.0f} s"
        body.append([f"{label} ({len(runs)})", str(runs[0]["epochs"]), seconds, *scores])
    head = (
        "arm (seeds)",
        "epochs",
        "one core",
        "clean",
        "PGD, ε = 8",
        "PGD, ε = 16",
        "k-NN, clean",
    )
    return table(body, *head)


def _few_images_rows(*, searched: bool = False) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Scores on the test images by arm, length and seed: at the recipe's rate, or at that of the best search."""
    every = result(FEW_IMAGES)["rows"]
    best: dict[tuple[str, int], tuple[float, float]] = {}
    for row in (row for row in every if "held_out" in row):
        key = row["arm"], row["length"]
        best[key] = max(best.get(key, (0.0, 0.0)), (row["held_out"]["knn"]["top1"], row["rate"]))
    kept = {}
    for row in every:
        key = row["arm"], row["length"]
        if "held_out" not in row and row.get("rate") == (
            best[key][1] if searched and key in best else None
        ):
            assert (*key, row["seed"]) not in kept, f"two rows of {key} and seed {row['seed']}"
            kept[*key, row["seed"]] = row
    return {key: row for key, row in kept.items() if ("rate" in row) == searched}


def few_images() -> str:
    """2,000 images for many epochs, at equal time, under attack: means and deviations over seeds."""
    scored = [row for row in result(FEW_IMAGES)["rows"] if "held_out" not in row]
    rows = [
        {"rate": 1.0 if row["arm"].startswith("SimCLR") else 0.03} | row for row in scored
    ]  # else the recipe's
    places = sorted({(row["length"], row["rate"]) for row in rows})
    body = []
    for (length, rate), (arm, label) in itertools.product(places, FEW_IMAGES_ARMS.items()):
        runs = [
            row for row in rows if (row["length"], row["rate"], row["arm"]) == (length, rate, arm)
        ]
        if not runs:
            continue
        scores = (
            mean_std([run[protocol][metric] for run in runs])
            for protocol, metric in FEW_IMAGES_UNDER_ATTACK.values()
        )
        spent = [run["cpu_seconds"] for run in runs if "cpu_seconds" in run]
        seconds = f"{statistics.mean(spent):.0f} s" if spent else "–"
        body.append(
            [f"{label} ({len(runs)})", f"{rate:g}", str(runs[0]["epochs"]), seconds, *scores]
        )
    return table(body, "arm (seeds)", "rate", "epochs", "one core", *FEW_IMAGES_UNDER_ATTACK)


def few_images_rates() -> str:
    """Their search: k-NN, and the linear probe without and under attack, on held-out training images at every rate."""
    rows = [row for row in result(FEW_IMAGES)["rows"] if "held_out" in row]
    found = {(row["length"], row["arm"], row["rate"]): row["held_out"] for row in rows}
    rates = sorted({row["rate"] for row in rows})
    body = []
    for length, arm in itertools.product(sorted({row["length"] for row in rows}), FEW_IMAGES_ARMS):
        cells = []
        for rate in rates:
            scores = found.get((length, arm, rate))
            under = scores and " / ".join(
                f"{scores['robust'][name]:.1f}" for name in ("top1", "robust@2", "robust@4")
            )
            cells.append(f"{scores['knn']['top1']:.1f}; {under}" if scores else "–")
        if any(cell != "–" for cell in cells):
            body.append([f"{length:,}", FEW_IMAGES_ARMS[arm], *cells])
    return table(body, "the time of … plain epochs", "arm", *(f"rate {rate:g}" for rate in rates))


#: The arms of the page of results: the plain one, and those that are best at some ε.
BEST_FROM_SCRATCH = ("MoCo-v2", "DeACL", "N-FGSM, ε = 8, one set of batch-norms")


def scratch(arms: Sequence[str] = (), epsilons: Sequence[int] = (1, 2, 4, 8)) -> str:
    """Robust methods from random weights, at equal time: means over seeds, and paired changes from MoCo-v2.

    `arms`: those to show, without their cost and k-NN (default: all, with both).
    """
    rows = [row for row in result(SCRATCH)["rows"] if "score" in row]
    plain = {row["seed"]: row["score"]["robust"] for row in rows if row["arm"] == "MoCo-v2"}
    metrics = ["top1", *(f"robust@{epsilon}" for epsilon in epsilons)]
    body = []
    for arm in arms or dict.fromkeys(row["arm"] for row in rows):
        runs = [row for row in rows if row["arm"] == arm]
        for part, label in (
            ("robust", f"{arm} ({len(runs)})"),
            ("aux", "its second set of batch-norms"),
        ):
            scores = {run["seed"]: run["score"][part] for run in runs if part in run["score"]}
            if scores:
                cells = [_from_plain(scores, plain, metric) for metric in metrics]
                costs = _scratch_costs(runs) if part == "robust" else [""] * 4
                body.append([label, *([] if arms else costs), *cells])
    costs = [] if arms else ["rate", "epochs", "one core", "k-NN"]
    attacks = (f"PGD, ε = {epsilon}/255" for epsilon in epsilons)
    return table(body, "arm (seeds)", *costs, "linear probe", *attacks)


def _from_plain(
    scores: Mapping[int, Mapping[str, float]], plain: Mapping[int, Mapping[str, float]], metric: str
) -> str:
    """The mean over seeds, and the paired change from the plain arm unless it is that arm."""
    mean = f"{statistics.fmean(score[metric] for score in scores.values()):.1f}"
    if scores == plain:
        return mean
    changes = [score[metric] - plain[seed][metric] for seed, score in scores.items()]
    return f"{mean} ({_paired_change(changes)})"


def _scratch_costs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rate, epochs, seconds of one core (of the teacher too) and k-NN of an arm."""
    seconds = statistics.fmean(run["cpu_seconds"] + run.get("teacher_seconds", 0) for run in runs)
    nearest = statistics.fmean(run["score"]["knn"]["top1"] for run in runs)
    return [f"{runs[0]['rate']:g}", str(runs[0]["epochs"]), f"{seconds:.0f} s", f"{nearest:.1f}"]


def scratch_rates() -> str:
    """Their search: k-NN on held-out training images, one seed."""
    found = {
        (row["arm"], row["rate"]): row["held_out"]["top1"]
        for row in result(SCRATCH)["rows"]
        if "score" not in row
    }
    rates = sorted({rate for _, rate in found})
    arms = dict.fromkeys(arm for arm, _ in found)
    cells = (
        [f"{found[arm, rate]:.1f}" if (arm, rate) in found else "–" for rate in rates]
        for arm in arms
    )
    return table(
        ([arm, *row] for arm, row in zip(arms, cells, strict=True)),
        "arm",
        *(f"rate {r:g}" for r in rates),
    )


def semi_supervised() -> str:
    """A few labels: means and deviations over seeds, of the arms that have a run."""
    rows = result(SEMI)["rows"]
    columns = sorted({(row["labels"], row["start"] != "random") for row in rows})
    body = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        line = [arm]
        for labels, trained in columns:
            key = (arm, labels, trained)
            found = [
                row for row in rows if (row["arm"], row["labels"], row["start"] != "random") == key
            ]
            line.append(
                f"{mean_std([row['top1'] for row in found])} ({len(found)})" if found else "–"
            )
        body.append(line)
    names = (
        f"{labels} labels, {'MoCo-v2' if trained else 'random weights'}"
        for labels, trained in columns
    )
    return table(body, "arm", *names)


def _mean_changes(changes: Sequence[Sequence[float]]) -> str:
    """The paired change in each measure, a row a seed: the mean ± half its 95 % interval, and how many seeds.

    † marks what does not differ from 0 with 95 % confidence, which a single seed never does.
    """
    return f"{' / '.join(map(_paired_change, zip(*changes, strict=True)))} ({len(changes)})"


def _paired_change(values: Sequence[float], over_images: float = 0.0) -> str:
    """Mean ± half of its 95 % interval over seeds, and over images if `over_images`, its half there, is given."""
    mean = statistics.fmean(values)
    half = math.hypot(_half(values), over_images)
    interval = f" ± {half:.1f}" if len(values) > 1 else ""
    return f"{mean:+.1f}{interval}{'†' * (half >= abs(mean))}".replace("-", "−").replace(
        "−0.0", "+0.0"
    )


def _half(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean; infinite for one value."""
    return half_width(values) if len(values) > 1 else math.inf


def goals() -> str:
    """The hard examples for each goal: initial weights, cost and change."""

    def paper(name: str, arm: str, timed: bool) -> str:
        record = result(name)
        epochs = record["epochs_at_equal_time"][arm] if timed else record["epochs"]
        return _change(_runs(record, arm, epochs), _runs(record, "plain", record["epochs"]))

    def further(data: str, arm: str, plain: str, *metrics: str) -> str:
        rows = [
            row
            for row in result(EQUAL_TIME)["rows"]
            if (row["data"], row["arm"]) in {(data, arm), (data, plain)}
        ]
        runs = {(row["arm"], row["seed"]): row["metrics"] for row in rows}
        seeds = [seed for name, seed in runs if name == arm and (plain, seed) in runs]
        return _mean_changes(
            [[runs[arm, s][m] - runs[plain, s][m] for m in metrics] for s in seeds]
        )

    both, first = "k-NN / probe", "head first"
    rows = [
        (
            "more from given images, CIFAR-10",
            "MoCo-v2 + cut-mixed",
            "20 epochs each",
            both,
            paper(MOCO, "+cmx", False),
        ),
        ("", "MoCo-v2 + adversarial", "20 epochs each", both, paper(MOCO, "+adv", False)),
        (
            "more within a time limit, CIFAR-10",
            "MoCo-v2 + cut-mixed",
            "equal time",
            both,
            paper(MOCO, "+cmx", True),
        ),
        ("", "MoCo-v2, split", "equal time", both, paper(MOCO, "split", False)),
        ("", "MoCo-v2 + adversarial", "equal time", both, paper(MOCO, "+adv", True)),
    ]
    for goal, data, arm, plain, metrics in (
        ("weights carried far, Omniglot", "omniglot", "adversarial", first, ("knn", "probe")),
        ("", "omniglot", "cutmix", first, ("knn", "probe")),
        (
            "weights carried to small photographs, CIFAR-10",
            "cifar10",
            "adversarial",
            first,
            ("knn", "probe"),
        ),
        ("", "cifar10", "cutmix", first, ("knn", "probe")),
    ):
        kind = "cut-mixed" if arm == "cutmix" else "adversarial"
        change = further(data, arm, plain, *metrics)
        rows.append((goal, f"SimCLR + {kind}", "equal time", both, change))
    one_rate, searched = _few_images_rows(), _few_images_rows(searched=True)

    def of_few(
        runs: Mapping[Any, Any], arm: str, length: int, *places: tuple[str, str], beside: int = 0
    ) -> str:
        plain = {
            seed: run
            for (name, of, seed), run in runs.items()
            if (name, of) == ("plain", beside or length)
        }
        pairs = [
            (runs[arm, length, seed], base)
            for seed, base in plain.items()
            if (arm, length, seed) in runs
        ]
        return _mean_changes([[run[p][m] - base[p][m] for p, m in places] for run, base in pairs])

    change = of_few(one_rate, "+cutmix", 400, ("knn", "top1"), ("probe", "top1"), beside=241)
    rows.append(
        (
            "few images, many epochs, CIFAR-10",
            "MoCo-v2 + cut-mixed",
            "244 and 241 epochs",
            both,
            change,
        )
    )
    goal = ""
    for length, arm in itertools.product((400, 800, 1600), ("+split", "+cutmix", "+adversarial")):
        if any(key[:2] == (arm, length) for key in one_rate):
            kind = {
                "+split": ", split",
                "+adversarial": " + adversarial",
                "+cutmix": " + cut-mixed",
            }[arm]
            when = f"the time of {length:,} plain epochs, one rate"
            change = of_few(one_rate, arm, length, ("knn", "top1"), ("probe", "top1"))
            rows.append((goal, f"MoCo-v2{kind}", when, both, change))
            goal = ""
    attacked = result(ROBUST)["rows"]

    def under_attack(plain: str) -> str:
        seeds = {row["seed"]: row["metrics"] for row in attacked if row["arm"] == plain}
        hard = {
            row["seed"]: row["metrics"]
            for row in attacked
            if row["arm"] == "adversarial" and row["seed"] in seeds
        }
        return _mean_changes(
            [[hard[s][m] - seeds[s][m] for m in ("top1", "robust@8", "robust@16")] for s in hard]
        )

    places = tuple(("robust", metric) for metric in ("top1", "robust@1", "robust@2", "robust@4"))
    what = "linear probe: clean / PGD, ε = 1 / 2 / 4"
    change = of_few(one_rate, "+adversarial", 400, *places, beside=241)
    rows.append(
        (
            "robustness, CIFAR-10 (2,000 images)",
            "MoCo-v2 + adversarial",
            "241 epochs each",
            what,
            change,
        )
    )
    for arm, when in (
        ("+adversarial", ""),
        ("+adversarial+late", ", from half-way"),
        ("from ¾", ", from three quarters"),
    ):
        change = of_few(searched, arm, 400, *places)
        rows.append(
            ("", f"MoCo-v2 + adversarial{when}", "equal time, best of four rates", what, change)
        )
    what = "linear probe: clean / PGD, ε = 8 / 16"
    rows.append(
        (
            "robustness, digits",
            "MoCo-v2 + adversarial, from half-way",
            "12 epochs each",
            what,
            under_attack("plain"),
        )
    )
    rows.append(
        ("", "MoCo-v2 + adversarial, from half-way", "equal time", what, under_attack("longer"))
    )
    return table(rows, "goal", "hard example", "compared at", "measured by", "change (seeds)")


def the_paper() -> str:
    """Every published row with the command that makes it, and the arms of a run of all experiments."""
    record = result(PAPER)
    machine = record["machine"]
    length = counted(record["epochs"], "epoch")
    seeds = counted(len(record["seeds"]), "seed")
    took = format_duration(3600 * record["hours"]["spent"])
    device = f"{machine['device']}, {counted(machine['threads'], 'thread')}"
    images = f"{record['images']:,} images ({record['data']})"
    passes = "; ".join(f"{title}: {count}" for title, count in record["passes"].items())
    text = [
        "Published scores: a ResNet-50 pre-trained on ImageNet for the epochs of the row. Small scale: a narrow network "
        f"pre-trained on {images} for {length}, {seeds}, in {took} on {device} ({machine['time'][:10]}, commit "
        f"{machine['commit'][:8]}). Arms have equal epochs, as published.\n",
        "Evaluations that train a network are as short as the runs. They make this many passes over their images: "
        f"{passes} (published: 20; detection 24,000 steps of 16 images).\n",
    ]
    parts = record["parts"].values()
    for name, given in EXPERIMENTS.items():
        if "given" in given:
            arms = [arm for part in parts if part["experiment"] == name for arm in part["arms"]]
            command = f"hexa reproduce {name} --method METHOD --scale full {given['given']}"
            text.append(f"## Table {name[-1]}: {TABLES[name].title}\n")
            text.append(f"At the full scale: `{command}`; METHOD is one of {', '.join(METHODS)}.\n")
            text.append(markdown_table(list(_published_and_ours(name, arms))))
    text.append("## Figures\n\nThe paper prints no numbers of these.\n")
    for part in parts:
        name = part["experiment"]
        if "given" not in EXPERIMENTS[name]:
            method = part["method"]
            command = f"hexa reproduce {name} --method {method} --data parquet:PATH/cifar10"
            question = EXPERIMENTS[name]["question"]
            text.append(f"### {name}, {method}\n")
            text.append(f"{question} Command: `{command}`\n")
            text.append(markdown_table([cells for arm in part["arms"] for cells in _ours(arm)]))
    return "\n".join(text)


def experiments() -> str:
    """The experiments of the paper: question, and what each scale measures."""
    rows = []
    for name, one in EXPERIMENTS.items():
        titles = [[measure(key, "moco").title for key in one[scale]] for scale in ("small", "full")]
        columns = (", ".join(dict.fromkeys(scale)) for scale in titles)
        rows.append((f"`{name}`", one["question"].rstrip("."), *columns))
    return table(rows, "experiment", "question", "measured by", "with `--scale full`")


def full_scale() -> str:
    """The cost of each method's rows in the paper's tables: trainings of one seed, and GPU-hours."""
    body = []
    for method, one in METHODS.items():
        request = Request("folder:imagenet", scale="full", method=method, seeds=(0,))
        (plan,) = loop.begin("table1", request, Console(quiet=True))
        passes = [plan.cost(job.arm) * job.experiment.epochs for job in plan.final()]
        hours = [count * V100_HOURS / V100_PASSES for count in passes]
        body.append(
            (
                f"`{method}`",
                one["title"],
                str(len(hours)),
                f"{max(hours):,.0f}",
                f"{sum(hours):,.0f}",
            )
        )
    return table(
        body, "`--method`", "systems", "trainings", "longest, V100-hours", "all, V100-hours"
    )


def _published_and_ours(name: str, arms: Sequence[Any]) -> Iterator[dict[str, Cell]]:
    """A line for each published row and arm next to it, then for the arms without a row."""
    columns = TABLES[name].columns
    for row in published_rows(name):
        known: dict[str, Cell] = {"method": row.method, "epochs": str(row.epochs or "–")}
        for column, value in zip(columns, row.values, strict=True):
            known[column] = "–" if value is None else f"{value:.1f}"
        known["full scale"] = command_of(name, row)
        own = [arm for arm in arms if arm["row"] == [row.method, row.epochs]]
        for cells in [cells for arm in own for cells in _ours(arm)] or [{"small scale": "–"}]:
            yield known | cells
    nothing: dict[str, Cell] = dict.fromkeys(("method", "epochs", *columns, "full scale"), "")
    for arm in arms:
        if arm["row"] is None:
            yield from (nothing | cells for cells in _ours(arm))


def _ours(arm: Mapping[str, Any]) -> Iterator[dict[str, Cell]]:
    """The cells of an arm, a line for each of its lengths."""
    for found in arm["results"]:
        several = len(arm["results"]) > 1
        cells: dict[str, Cell] = {
            "small scale": f"{arm['arm']}, {counted(found['epochs'], 'epoch')}"
            if several
            else arm["arm"]
        }
        yield cells | {column: mean_std(values) for column, values in found["scores"].items()}


def floors() -> str:
    """The packages as floors, the highest first; the command line stands outside the picture."""
    lines = ["   ".join(floor) for floor in reversed(FLOORS[:-1])]
    width = max(map(len, lines))
    edge = f"+{'-' * (width + 4)}+"
    return "\n".join(
        [
            "```text",
            edge,
            *(part for line in lines for part in (f"|  {line:^{width}}  |", edge)),
            "```",
            "",
        ]
    )


def published_gains() -> str:
    """The paper's linear classification on ImageNet, without and with hard examples."""
    top1 = {(row.method, row.epochs): row.values[0] for row in published.LINEAR.rows}
    rows = []
    for plain, hard in (
        (("MoCo-v2", 200), ("HEXA-MoCo", 200)),
        (("MoCo-v2", 800), ("HEXA-MoCo", 800)),
        (("DeepCluster-v2", 200), ("HEXA-D", 200)),
        (("DeepCluster-v2 (8-crop)", 800), ("HEXA-D (8-crop)", 800)),
    ):
        before, after = top1[plain], top1[hard]
        assert before is not None
        assert after is not None
        rows.append(
            (plain[0], str(plain[1]), f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}")
        )
    return table(rows, "method", "epochs", "plain", "with adversarial views", "change")


GENERATED: dict[str, Callable[[], str]] = {
    "recipe-table": recipe_table,
    "modifiers": modifier_table,
    "recipe-list": recipe_list,
    "protocols": protocol_table,
    "matrix": matrix,
    "methods": method_table,
    "kinds": kind_table,
    "hard-example-fields": hard_example_fields,
    "teacher-fields": teacher_fields,
    "learner-options": learner_options,
    "published-settings": published_settings,
    "view-recipes": view_recipes,
    "presets": presets,
    "moco": lambda: arms(MOCO, "MoCo-v2"),
    "equal-time": equal_time,
    "goals": goals,
    "strongest": strongest,
    "usb": usb,
    "semi-supervised": semi_supervised,
    "few-images-rates": few_images_rates,
    "few-images-attacks": few_images,
    "robust-arms": robust_arms,
    "scratch": scratch,
    "scratch-best": partial(scratch, BEST_FROM_SCRATCH, (1, 2, 4)),
    "scratch-rates": scratch_rates,
    "hardened": hardened,
    "hardened-photographs": hardened_photographs,
    "hardened-before": partial(
        hardened_before,
        (HARDENED_ADAMW, "by AdamW"),
        (HARDENED_PLAIN, "by AdamW, without other contrast"),
    ),
    "hardened-by": partial(hardened_by, HARDENED_BY),
    "hardened-two-steps": partial(hardened_by, "2026-11-25-harden-two-steps.json"),
    "hardened-growing": hardened_growing,
    "adapted-now": adapted_now,
    "adapted-sets": adapted_sets,
    "adapted-hands": adapted_hands,
    "expected": expected,
    "hardened-objects": hardened_objects,
    "hardened-clothes": hardened_clothes,
    "hardened-sets": hardened_sets,
    "start-by-size": start_by_size,
    "hardened-corrupted": hardened_corrupted,
    "price-rules": price_rules,
    "speedrun-tracks": speedrun_tracks,
    "small-recipes": small_recipes,
    "paper": the_paper,
    "experiments": experiments,
    "full-scale": full_scale,
    "dcluster": lambda: arms(DCLUSTER, "DeepCluster-v2"),
    "ablation-moco": ablation,
    "simclr": lambda: arms(SIMCLR, "SimCLR"),
    "every-method": every_method,
    "by-protocol": by_protocol,
    "by-detection": by_detection,
    "costs": costs,
    "claim": claim,
    "published-gains": published_gains,
    "floors": floors,
    "coverage": coverage,
}


def countable(text: str) -> int:
    """The number of words of a page outside of generated parts; words of code and of tables count.

    A word has a letter or a digit, which the border of a table does not.
    """
    return sum(any(map(str.isalnum, word)) for word in BLOCK.sub("", text).split())


def filled(text: str) -> str:
    """A page with the content of all generated parts replaced by the present one."""
    return BLOCK.sub(
        lambda found: f"{found['begin']}\n{GENERATED[found['name']]()}\n{found['end']}", text
    )


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")
