"""What stands in the documentation between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.

Recipes come from the code, numbers from the result files in benchmarks/, so that none is typed by hand. A test
compares; `python -m docs.generated` writes them anew.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hexa import recipes
from hexa.config import choices
from hexa.core import HardExample, MethodConfig
from hexa.evaluation import protocols
from hexa.evaluation.few_labels import half_width
from hexa.recipes.modifiers import MODIFIERS
from hexa.reporting.tables import mean_std
from hexa_paper import paper, published
from hexa_paper.rows import EPOCHS, TIME, TOLERANCE
from hexa_paper.studies import KNN, PROBE
from tests.test_imports import FLOORS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of (?P=name) -->)",
    re.DOTALL,
)

MOCO = "2026-11-21-moco-cifar10-small-20-epochs.json"
DCLUSTER = "2026-11-21-dcluster-cifar10-small-20-epochs.json"
SIMCLR = "2026-11-21-simclr-cifar10-small-4-epochs.json"
ABLATIONS = {name: f"2026-11-21-ablation-{name}/result.json" for name in ("moco", "dcluster")}
ATTACKS = "2026-11-21-attacks-cifar10-small-6-epochs.json"
EVERY = [
    "2026-11-21-every-method-cifar10-small.json",
    "2026-11-22-cmc-cifar10-small.json",
    "2026-11-22-cpc-cifar10-small.json",
]
PROTOCOLS = "2026-11-22-protocols.json"
DETECTION = "2026-11-21-detect-voc07-subset.json"
PAPER = "2026-11-23-paper-small/result.json"
#: The newest count.
TORTURE = max(path.name for path in (ROOT / "benchmarks").glob("*-torture.json"))
WITHOUT_LABELS = "2026-11-25-without-labels.json"
FROM_WEIGHTS = "2026-11-22-from-weights.json"
EQUAL_TIME = "2026-11-22-equal-time.json"
ROBUST = "2026-11-25-robust-digits.json"
HARDENED = "2026-11-25-harden-muon.json"
HARDENED_ADAMW = "2026-11-25-harden-contrast.json"
HARDENED_PLAIN = "2026-11-25-harden-five-seeds.json"
HARDENED_BEFORE = "2026-11-24-harden-five-seeds.json"
HARDENED_GROWING = "2026-11-25-harden-growing.json"
#: Held-out images of one seed.
HARDENED_BY = "2026-11-24-harden-search.json"
HARDENED_SCORES = {
    "k-NN": "knn",
    "linear head": "probe",
    "attack of 1": "robust@1",
    "attack of 2": "robust@2",
    "attack of 4": "robust@4",
}
SMALL_RECIPES = "2026-11-27-small-recipes.json"
SEMI = "2026-11-23-semi-supervised-digits.json"
SEMI_CIFAR = "2026-11-23-semi-supervised-cifar10.json"
FEW_IMAGES = "2026-11-23-few-images.json"
SCRATCH = "2026-11-28-robust-scratch.json"
#: Commits that results name though they are not in the repository, or had changes that are lost.
UNRESOLVED = set(json.loads((ROOT / "benchmarks" / "unresolved.json").read_text()))
#: Their arms, by what they are called on the page.
FEW_IMAGES_ARMS = {
    "plain": "MoCo-v2",
    "+split": "split: half clean, half cut-mixed",
    "+cutmix": "+ cut-mixed",
    "+adversarial": "+ adversarial",
}
FEW_IMAGES_SCORES = {
    "k-NN": ("knn", "top1"),
    "probe": ("probe", "top1"),
    **{f"probe, {k} a class": ("few", f"top1@{k}") for k in (1, 4, 16)},
}
#: With those that are compared under attack alone. ε and α₁ are 1 where nothing else is said.
FEW_IMAGES_ATTACKS = FEW_IMAGES_ARMS | {
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
#: Its arms, by what they are called on the page.
ROBUST_ARMS = {
    "plain": "MoCo-v2",
    "longer": "MoCo-v2, longer",
    "adversarial": "HEXA-MoCo: ε = 1 from half-way, α₁ = 1",
}
COSTS = {
    "MoCo-v2, ResNet-18": "2026-11-21-schemes-cifar10-resnet18.json",
    "MoCo-v2, narrow, fp32": "2026-11-22-schemes-cifar10-small-fp32.json",
    "MoCo-v2, narrow, bf16": "2026-11-22-schemes-cifar10-small.json",
    "DeepCluster-v2, narrow": "2026-11-21-schemes-cifar10-small-dcluster.json",
}
ARMS = {
    "plain": "plain",
    "+adv": "+ adversarial",
    "+cmx": "+ cut-mixed",
    "+adv+cmx": "+ adversarial + cut-mixed",
    "split": "split: half clean, half cut-mixed, one pass",
}
#: What the arm "+ adversarial" is changed in.
VARIANTS = {
    "plain": "MoCo-v2",
    "+adv": "+ adversarial: ε and step 1, weight 1, the auxiliary batch-norms",
    "eps-2": "ε and step 2",
    "eps-4": "ε and step 4",
    "eps-8": "ε and step 8",
    "weight-0.25": "weight α1 = 0.25",
    "main-bn": "trained through the main batch-norms",
    "aux-generation": "made through the auxiliary batch-norms",
}


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / name).read_text())
    return found


def table(rows: Iterable[Iterable[str]], *header: str) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# -- from the code --------------------------------------------------------------------------------------------------


def recipe_table() -> str:
    rows = [
        (
            f"`{one['name']}`",
            one["method"],
            " + ".join(one["hard_examples"]) or "–",
            f"`{one['data']}`",
            str(one["epochs"]),
            str(one["batch_size"]),
        )
        for one in recipes.describe()
    ]
    return table(rows, "recipe", "method", "hard examples", "data", "epochs", "batch")


def modifier_table() -> str:
    """What can be added to a recipe's name."""
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
    """Which hard example a method takes, and why not."""
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


def usb() -> str:
    """What was published for semi-supervised learners on CIFAR-10."""
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


def attacks() -> str:
    """One seed: what happens to the adversarial arm if one field of the attack is another."""
    found = result(ATTACKS)
    base = _runs(found, "plain", found["epochs"])
    rows = []
    for arm, title in VARIANTS.items():
        runs = _runs(found, arm, found["epochs"])
        if runs:
            rows.append(
                (
                    title,
                    f"{found['rates'][arm]:g}",
                    _pair(runs),
                    "" if arm == "plain" else _change(runs, base),
                )
            )
    return table(rows, "arm", "rate", f"{found['epochs']} epochs", "change")


def _runs(found: dict[str, Any], arm: str, epochs: int) -> dict[int, dict[str, float]]:
    return {
        run["seed"]: run for run in found["runs"] if (run["arm"], run["epochs"]) == (arm, epochs)
    }


def _pair(runs: dict[int, dict[str, float]]) -> str:
    return " / ".join(
        mean_std([run[metric] for run in runs.values()]) for metric in ("knn", "probe")
    )


def _change(runs: dict[int, dict[str, float]], base: dict[int, dict[str, float]]) -> str:
    """Of seeds that both have."""
    return _mean_changes(
        [
            [runs[s][m] - base[s][m] for m in ("knn", "probe")]
            for s in sorted(runs.keys() & base.keys())
        ]
    )


def ablation(name: str) -> str:
    """What `hexa reproduce ablation` stored: every scheme at equal epochs and at equal time."""
    found = result(name)["summary"]
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
    "start": "the start as it is",
    "re-estimated": "its statistics re-estimated, nothing trained",
    "plain": "SimCLR",
    "head first": "SimCLR, the head alone in the first epoch",
    "head first, pulled": "the head first, and distillation of the start",
    "head first, adversarial": "the head first, and adversarial",
    "adversarial": "+ adversarial",
    "cutmix": "+ cut-mixed",
    "both": "+ adversarial + cut-mixed",
    "moco": "MoCo-v2",
    "moco, adversarial": "MoCo-v2 + adversarial",
    "lightly-train": "SimCLR by lightly-train, its own rate",
    "lightly-train, our rate": "SimCLR by lightly-train, our rate",
    "shorter": "the same for half as long, the epochs that one hard example gets",
    "random weights": "SimCLR from random weights",
}
SETS = {
    "omniglot": ("Omniglot, 64 px: k-NN / probe", ("knn", "probe")),
    "cifar10": ("CIFAR-10, 2,000 images, 64 px: k-NN / probe", ("knn", "probe")),
    "voc": ("VOC07 subset, 96 px: SVM mAP", ("svm mAP",)),
}


def from_weights() -> str:
    rows = result(FROM_WEIGHTS)["rows"]

    def cell(name: str, arm: str) -> str:
        found = [row for row in rows if (row["data"], row["arm"]) == (name, arm)]
        shown = (
            " / ".join(mean_std([row["metrics"][key] for row in found]) for key in SETS[name][1])
            if found
            else "–"
        )
        return f"{shown} ({_count(found)})" if found else shown

    known = {row["arm"] for row in rows}
    body = [
        [label, *(cell(name, arm) for name in SETS)]
        for arm, label in FURTHER.items()
        if arm in known
    ]
    return table(body, "arm (runs)", *(title for title, _ in SETS.values()))


def equal_time() -> str:
    """With and without hard examples, and by another library, in the same time; mean and deviation over seeds."""
    rows = result(EQUAL_TIME)["rows"]
    arms = (
        "start",
        "head first",
        "shorter",
        "adversarial",
        "cutmix",
        "both",
        "moco",
        "moco, adversarial",
        "random weights",
    )
    arms += ("lightly-train", "lightly-train, our rate")
    body = []
    for arm in arms:
        line = [FURTHER[arm]]
        for name, (_, metrics) in SETS.items():
            runs = [
                row
                for row in rows
                if (row["data"].removesuffix("-moco"), row["arm"]) == (name, arm)
            ]
            scores = " / ".join(mean_std([run["metrics"][key] for run in runs]) for key in metrics)
            spent = [run["cpu_seconds"] for run in runs if "cpu_seconds" in run]
            seconds = f", {statistics.mean(spent):.0f} s" if spent else ""
            line.append(f"{scores} ({_count(runs)}{seconds})" if runs else "–")
        body.append(line)
    return table(body, "arm (runs, seconds of one core)", *(title for title, _ in SETS.values()))


def few_labels() -> str:
    """The same runs on CIFAR-10, by one SVM per class and by probes of a few labels."""
    rows = [row for row in result(EQUAL_TIME)["rows"] if row["data"] == "cifar10"]
    metrics = ("svm mAP", "probe top1@1", "probe top1@4", "probe top1@16")
    body = []
    for arm in ("start", "head first", "adversarial", "cutmix", "both"):
        runs = [row for row in rows if row["arm"] == arm]
        scores = (mean_std([run["metrics"][key] for run in runs]) for key in metrics)
        body.append([f"{FURTHER[arm]} ({_count(runs)})", *scores])
    return table(body, "arm (runs)", "SVM mAP", *(f"probe, {k} a class" for k in (1, 4, 16)))


def strongest() -> str:
    """Where hard examples pay in the same time: rows with a gain under attack whose 95 % interval excludes 0."""
    few = _few_images_rows(searched=True)
    digits = {(row["arm"], 17, row["seed"]): {"robust": row["metrics"]} for row in traced(ROBUST)}
    weak, strong = (
        {
            "clean": ("robust", "top1"),
            **{f"attack of {grey}": ("robust", f"robust@{grey}") for grey in levels},
        }
        for levels in ((2, 4), (8, 16))
    )
    late = {
        "adversarial, last quarter": "from ¾",
        "adversarial, from half-way": "+adversarial+late",
        "adversarial, from the start": "+adversarial",
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


def hardened(*before: tuple[str, str]) -> str:
    """Robust copies beside their start, as changes from it, by the recipe as it is, and as it was `before`."""
    body = []
    for name, recipe in ((HARDENED, "`teacher`"), *before):
        rows = result(name)["rows"]
        (start,) = (row["metrics"] for row in rows if row["arm"] == "start")
        if not body:
            body = [
                ("the start", *(f"{start[name]:.1f}" for name in HARDENED_SCORES.values()), "–")
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
    """What `hexa adapt` says in ten minutes, set by set, beside labelled images that it did not see."""
    rows = result("2026-11-27-adapt-sets-drawn.json")["rows"]
    return table([(row["data"], *_adaptation(row)) for row in rows], "images", *_ADAPTATION)


def adapted() -> str:
    """What it said by other recipes in ten minutes or thirty."""
    recipes = {
        "27-adapt-sets": "160 px",
        "27-adapt-groceries-224": "by Muon",
        "26-adapt-muon-60m": "by Muon",
        "26-adapt-muon": "by Muon",
        "26-adapt-adamw": "by AdamW",
        "26-adapt-repeating": "by AdamW, loaded",
        "26-adapt-not-repeating": "by AdamW, drawn",
        "26-adapt-sets": "without repeats",
        "26-adapt-sets-30m": "without repeats",
        "25-adapt-sets": "by SGD",
        "25-adapt-sets-30m": "by SGD",
    }
    body = [
        (row["data"], recipe, "yes" if row["labelled"] else "no", *_adaptation(row))
        for file, recipe in recipes.items()
        for row in result(f"2026-11-{file}.json")["rows"]
    ]
    return table(body, "images", "recipe", "labels", *_ADAPTATION)


_ADAPTATION = ("seconds", "verdict", "kept", "k-NN, in truth", "linear probe, in truth")


def _adaptation(row: dict[str, Any]) -> tuple[str, ...]:
    """The verdict of one run, and start and result by further images."""
    said = row["verdict"].removeprefix("the start is kept: ").removeprefix("it helped: result is ")
    said = "it cannot be told" if "cannot be told" in said else said.partition(":")[0]
    changes = [row["change, half"][name] for name in row["start"]] if "start" in row else []
    shown = [
        f"{row['start'][name]:.1f} → {row['result'][name]:.1f} ({points:+.1f} ± {half:.1f})".replace(
            "-", "−"
        )
        for name, (points, half) in zip(row.get("start", ()), changes, strict=True)
    ] or ["–", "–"]
    return f"{row['seconds']:,}", said, row["kept"], *shown


def adapted_seeds() -> str:
    """What `hexa adapt` changed in ten minutes on the hands, over seeds, by the recipe and by the one before."""
    runs = {
        name: result(f"2026-11-26-adapt-hands-{name}.json")["rows"] for name in ("muon", "adamw")
    }
    seeds = [row["seed"] for row in runs["muon"]]
    assert seeds == [row["seed"] for row in runs["adamw"]]
    measures = (
        "k-NN",
        "linear probe",
        "1 label per class",
        "4 labels per class",
        "16 labels per class",
    )
    points = {
        name: [[row["change, half"][one][0] for one in measures] for row in rows]
        for name, rows in runs.items()
    }
    pairs = zip(points["muon"], points["adamw"], strict=True)
    apart = [[mine - theirs for mine, theirs in zip(*pair, strict=True)] for pair in pairs]
    named = {"by Muon": points["muon"], "by AdamW": points["adamw"], "Muon − AdamW": apart}
    body = [(name, *map(_paired_change, zip(*found, strict=True))) for name, found in named.items()]
    return table(body, f"change from the start ({len(seeds)} seeds)", *measures)


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


def start_by_size() -> str:
    """The start's accuracy on clean images, by image size."""
    rows = result("2026-11-25-start-by-size.json")["rows"]
    scores = {row.get("size", 64): row["metrics"] for row in rows}
    named = (("k-NN", "knn"), ("linear head", "probe"))
    body = [(name, *(f"{scores[size][key]:.1f}" for size in sorted(scores))) for name, key in named]
    return table(body, "", *(f"{size} px" for size in sorted(scores)))


def hardened_objects() -> str:
    """The table of one run of `hexa harden`, and the differences of another, on views of the result's size."""
    found, before = (
        result(f"2026-11-25-harden-objects-{end}.json")["table"] for end in ("smaller", "muon")
    )
    rows = [(*row, other[-1]) for row, other in zip(found["rows"], before["rows"], strict=True)]
    return table(rows, *found["header"], "difference by views of 160 px")


def hardened_clothes() -> str:
    """The table of one run of `hexa harden` on photographs of clothes."""
    found = result("2026-11-26-harden-clothes-two-cores.json")["table"]
    return table(found["rows"], *found["header"])


def hardened_sets() -> str:
    """What `hexa harden` said of four sets, beside images that it did not see."""
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
            images = row["data"] + ", start kept" * (not kept) if name == "linear probe" else ""
            body.append((images, name, told, further if kept else f"{start:.1f}"))
        for radius in (1, 2, 4):
            name, held = f"attack of ε = {radius}", seen["result, 200 images"][f"robust@{radius}"]
            body.append(
                (
                    "",
                    name,
                    f"{said[name][1]} → {said[name][2]} ({said[name][3]})",
                    f"{held:.1f}" if kept else "–",
                )
            )
    return table(body, "images", "", "by the verdict", "by further images")


def price_rules() -> str:
    """What rules for the price of `hexa harden` pick, and what is lost in truth."""
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
    """Accuracy on corrupted images by their kind, with and without other contrast, as changes from the start."""
    rows = result("2026-11-25-harden-corrupted.json")["rows"]
    (start,) = (row["metrics"] for row in rows if row["arm"] == "start")
    body = [("the start", *(f"{value:.1f}" for value in start.values()))]
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
    """Small recipes with the narrow network of before and with the record's, by rate: one seed, held-out images."""
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
        runs = [row for row in traced(ROBUST) if row["arm"] == arm]
        scores = (
            mean_std([run["metrics"][key] for run in runs])
            for key in ("top1", "robust@8", "robust@16", "knn")
        )
        seconds = f"{statistics.mean(run['cpu_seconds'] for run in runs):.0f} s"
        body.append([f"{label} ({_count(runs)})", str(runs[0]["epochs"]), seconds, *scores])
    head = (
        "arm (seeds)",
        "epochs",
        "one core",
        "clean",
        "attack of 8",
        "attack of 16",
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


def few_images(arms: Mapping[str, str], columns: Mapping[str, tuple[str, str]]) -> str:
    """2,000 images for many epochs, at equal time: means and deviations over seeds."""
    scored = [row for row in result(FEW_IMAGES)["rows"] if "held_out" not in row]
    rows = [
        {"rate": 1.0 if row["arm"].startswith("SimCLR") else 0.03} | row for row in scored
    ]  # else the recipe's
    places = sorted({(row["length"], row["rate"]) for row in rows})
    body = []
    for (length, rate), (arm, label) in itertools.product(places, arms.items()):
        runs = [
            row for row in rows if (row["length"], row["rate"], row["arm"]) == (length, rate, arm)
        ]
        if not runs:
            continue
        scores = (
            mean_std([run[protocol][metric] for run in runs])
            for protocol, metric in columns.values()
        )
        spent = [run["cpu_seconds"] for run in runs if "cpu_seconds" in run]
        seconds = f"{statistics.mean(spent):.0f} s" if spent else "–"
        body.append(
            [f"{label} ({len(runs)})", f"{rate:g}", str(runs[0]["epochs"]), seconds, *scores]
        )
    return table(body, "arm (seeds)", "rate", "epochs", "one core", *columns)


def few_images_rates() -> str:
    """Their search: k-NN, and the linear head without and under attack, on held-out training images at every rate."""
    rows = [row for row in result(FEW_IMAGES)["rows"] if "held_out" in row]
    found = {(row["length"], row["arm"], row["rate"]): row["held_out"] for row in rows}
    rates = sorted({row["rate"] for row in rows})
    body = []
    for length, arm in itertools.product(
        sorted({row["length"] for row in rows}), FEW_IMAGES_ATTACKS
    ):
        cells = []
        for rate in rates:
            scores = found.get((length, arm, rate))
            under = scores and " / ".join(
                f"{scores['robust'][name]:.1f}" for name in ("top1", "robust@2", "robust@4")
            )
            cells.append(f"{scores['knn']['top1']:.1f}; {under}" if scores else "–")
        if any(cell != "–" for cell in cells):
            body.append([f"{length:,}", FEW_IMAGES_ATTACKS[arm], *cells])
    return table(body, "the time of … plain epochs", "arm", *(f"rate {rate:g}" for rate in rates))


def scratch() -> str:
    """Stronger attacks from random weights, at equal time: means over seeds, and the paired changes from MoCo-v2."""
    rows = [row for row in result(SCRATCH)["rows"] if "score" in row]
    plain, body = {row["seed"]: row["score"] for row in rows if row["arm"] == "MoCo-v2"}, []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        of = [row for row in rows if row["arm"] == arm]
        for part, label in (
            ("robust", f"{arm} ({_count(of)})"),
            ("aux", "its second set of batch-norms"),
        ):
            cells = []
            for key in ("top1", *(f"robust@{epsilon}" for epsilon in (1, 2, 4, 8))):
                values = {
                    row["seed"]: row["score"][part][key] for row in of if part in row["score"]
                }
                changes = [value - plain[seed]["robust"][key] for seed, value in values.items()]
                change = (
                    "" if arm == "MoCo-v2" else f" ({_paired_change(changes)})" if changes else ""
                )
                cells.append(f"{statistics.fmean(values.values()):.1f}{change}" if values else "")
            spent = f"{statistics.fmean(row['cpu_seconds'] + row.get('teacher_seconds', 0) for row in of):.0f} s"
            nearest = f"{statistics.fmean(row['score']['knn']['top1'] for row in of):.1f}"
            first = (
                [f"{of[0]['rate']:g}", str(of[0]["epochs"]), spent, nearest]
                if part == "robust"
                else [""] * 4
            )
            body += [[label, *first, *cells]] * any(cells)
    head = (
        "arm (seeds)",
        "rate",
        "epochs",
        "one core",
        "k-NN",
        "linear head",
        *(f"ε = {e}" for e in (1, 2, 4, 8)),
    )
    return table(body, *head)


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


def semi_supervised(name: str) -> str:
    """A few labels: means and deviations over seeds, of the arms that have a run."""
    rows = [row for row in result(name)["rows"] if "held_out" not in row]
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
                f"{mean_std([row['top1'] for row in found])} ({_count(found)})" if found else "–"
            )
        body.append(line)
    names = (
        f"{labels} labels, {'MoCo-v2' if trained else 'random weights'}"
        for labels, trained in columns
    )
    return table(body, "arm", *names)


def _mean_changes(changes: Sequence[Sequence[float]], lost: bool = False) -> str:
    """The paired change in each measure, a row a seed: the mean ± half its 95 % interval, and how many seeds.

    † marks what does not differ from 0 with 95 % confidence, which a single seed never does. lost: runs among them
    cannot be traced to a commit, which ‡ marks.
    """
    return f"{' / '.join(map(_paired_change, zip(*changes, strict=True)))} ({len(changes)}){'‡' * lost}"


def _paired_change(values: Sequence[float]) -> str:
    mean, half = statistics.fmean(values), _half(values)
    interval = f" ± {half:.1f}" if len(values) > 1 else ""
    return f"{mean:+.1f}{interval}{'†' * (half >= abs(mean))}".replace("-", "−").replace(
        "−0.0", "+0.0"
    )


def _half(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean; infinite for one value."""
    return half_width(values) if len(values) > 1 else math.inf


def _count(runs: Sequence[Mapping[str, Any]]) -> str:
    """How many runs, with ‡ where one can't be traced to a commit."""
    return f"{len(runs)}{'‡' * any(run['commit'] in UNRESOLVED for run in runs)}"


def traced(name: str) -> list[dict[str, Any]]:
    """The rows of a result whose commit is in the repository and clean: what claims may rest on."""
    return [row for row in result(name)["rows"] if row["commit"] not in UNRESOLVED]


def goals() -> str:
    """Of each goal: which hard example, from which weights, at which cost, and what it changed."""

    def paper(name: str, arm: str, timed: bool) -> str:
        record = result(name)
        epochs = record["epochs_at_equal_time"][arm] if timed else record["epochs"]
        return _change(_runs(record, arm, epochs), _runs(record, "plain", record["epochs"]))

    def schemes(key: str) -> str:
        same = {
            row["key"]: row
            for row in result(ABLATIONS["dcluster"])["summary"]
            if row["comparison"] == EPOCHS
        }
        return _change(_by_seed(same[key]), _by_seed(same["i"])) + "‡"  # 4 of the 22 runs

    def further(data: str, arm: str, plain: str, *metrics: str) -> str:
        rows = [
            row
            for row in result(EQUAL_TIME)["rows"]
            if (row["data"], row["arm"]) in {(data, arm), (data, plain)}
        ]
        runs = {(row["arm"], row["seed"]): row["metrics"] for row in rows}
        seeds = [seed for name, seed in runs if name == arm and (plain, seed) in runs]
        lost = any(row["commit"] in UNRESOLVED for row in rows if row["seed"] in seeds)
        return _mean_changes(
            [[runs[arm, s][m] - runs[plain, s][m] for m in metrics] for s in seeds], lost
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
        ("", "DeepCluster-v2, six crops, + adversarial", "2 epochs each", both, schemes("ii")),
        ("", "DeepCluster-v2, six crops, + all three", "2 epochs each", both, schemes("vi")),
        (
            "more in a given time, CIFAR-10",
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
        ("", "omniglot-moco", "moco, adversarial", "moco", ("knn", "probe")),
        (
            "weights carried to small photographs, CIFAR-10",
            "cifar10",
            "adversarial",
            first,
            ("knn", "probe"),
        ),
        ("", "cifar10", "cutmix", first, ("knn", "probe")),
        (
            "few labels, those runs",
            "cifar10",
            "adversarial",
            first,
            ("probe top1@1", "probe top1@4", "probe top1@16"),
        ),
        ("", "cifar10", "cutmix", first, ("probe top1@1", "probe top1@4", "probe top1@16")),
        ("weights near their images, VOC07 subset", "voc", "adversarial", "shorter", ("svm mAP",)),
        ("", "voc", "cutmix", "shorter", ("svm mAP",)),
    ):
        method = "MoCo-v2" if plain == "moco" else "SimCLR"
        kind = "cut-mixed" if arm == "cutmix" else "adversarial"
        what = {1: "SVM mAP", 2: both, 3: "probe of 1 / 4 / 16 a class"}[len(metrics)]
        change = further(data, arm, plain, *metrics)
        rows.append(
            (
                goal,
                f"{method} + {kind}",
                "3 epochs each" if plain == "shorter" else "equal time",
                what,
                change,
            )
        )
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
            "244 epochs beside 241",
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
    attacked = traced(ROBUST)

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
    what = "linear head: clean / under attack of 1 / 2 / 4 grey levels"
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
    what = "linear head: clean / under attack of 8 / of 16 grey levels"
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
    few = {
        (row["arm"], row["start"], row["seed"]): row
        for row in result(SEMI)["rows"]
        if row["labels"] == 20
    }

    def beside(arm: str) -> str:
        pairs = [(row, few["fixmatch", *key]) for (name, *key), row in few.items() if name == arm]
        starts = [
            [pair for pair in pairs if pair[0]["start"] == start] for start in ("random", "moco-v2")
        ]
        changes = [
            [ours["top1"] - theirs["top1"] for ours, theirs in by_seed]
            for by_seed in zip(*starts, strict=True)
        ]
        return _mean_changes(changes, any(row["commit"] in UNRESOLVED for row in few.values()))

    what = "accuracy, from random weights / from MoCo-v2's"
    for goal, kind, arm in (
        (
            "twenty labels and many images, digits",
            "adversarial instead of RandAugment",
            "adversarial instead",
        ),
        ("", "RandAugment + adversarial", "fixmatch + adversarial"),
    ):
        rows.append((goal, f"FixMatch, {kind}", "equal steps", what, beside(arm)))
    scored = [
        row
        for row in result(SEMI_CIFAR)["rows"]
        if "held_out" not in row and row["start"] == "moco-v2"
    ]
    what, instead = (
        "accuracy, from MoCo-v2's weights",
        "FixMatch, adversarial instead of RandAugment",
    )
    for labels in (40, 250):
        top1 = {(row["arm"], row["seed"]): row["top1"] for row in scored if row["labels"] == labels}
        change = _mean_changes(
            [
                [top1[arm, seed] - top1["fixmatch", seed]]
                for arm, seed in top1
                if arm == "adversarial instead"
            ],
            lost=any(row["commit"] in UNRESOLVED for row in scored),
        )
        rows.append(
            (f"{labels} labels and many images, CIFAR-10", instead, "equal steps", what, change)
        )
    return table(rows, "goal", "hard example", "compared at", "measured by", "change (seeds)")


def without_labels() -> str:
    """How often two rules for measures without labels called one of two states better, and how often wrongly."""
    found = result(WITHOUT_LABELS)
    free = {(row["set"], row["family"], row["state"]): row["free"] for row in found["states"]}
    body = []
    for family in dict.fromkeys(row["family"] for row in found["pairs"]):
        pairs = [row for row in found["pairs"] if row["family"] == family and row["same_size"]]
        sets = len({row["set"] for row in pairs})
        calls = {
            "the last rule": [row for row in pairs if _judged(free, row)],
            "the first": [row for row in pairs if _formerly(free, row)],
        }
        for rule, called in calls.items():
            better = sum(row["k-NN"][0] > row["k-NN"][1] for row in pairs)
            wrong = sum(row["k-NN"][0] <= 0 for row in called)
            clearly = sum(row["k-NN"][0] < -row["k-NN"][1] for row in called)
            right = sum(row["k-NN"][0] > row["k-NN"][1] for row in called)
            counts = (len(pairs), better, len(called), right, wrong, clearly)
            body.append([f"{family}, {sets} data sets: {rule}", *map(str, counts)])
    header = (
        "pairs",
        "better by labels",
        "called better",
        "of these better by labels",
        "not above",
        "clearly below",
    )
    return table(body, "states of", *header)


def without_labels_by_set() -> str:
    """False positives and false negatives of the last rule without labels on each data set."""
    found = result(WITHOUT_LABELS)
    free = {(row["set"], row["family"], row["state"]): row["free"] for row in found["states"]}
    body = []
    for name in dict.fromkeys(row["set"] for row in found["pairs"]):
        pairs = [row for row in found["pairs"] if row["set"] == name and row["same_size"]]
        called = [row for row in pairs if _judged(free, row)]
        better = [row for row in pairs if row["k-NN"][0] > row["k-NN"][1]]
        wrong = sum(row["k-NN"][0] <= 0 for row in called)
        missed = sum(row not in called for row in better)
        body.append([name, *map(str, (len(pairs), len(called), wrong, len(better), missed))])
    return table(
        body, "data set", "pairs", "called better", "not above", "better by labels", "not called"
    )


def rules_without_labels() -> str:
    """Rules chosen on four families of networks, on the fifth."""
    header = (
        "family left out",
        "calls of the others",
        "of these not above",
        "calls of it",
        "not above",
        "clearly below",
    )
    columns = ("left out", "calls", "wrong", "calls there", "wrong there", "clearly below there")
    rows = result("2026-11-25-rules-without-labels.json")["rows"]
    return table([tuple(str(row[column]) for column in columns) for row in rows], *header)


def _judged(
    free: Mapping[tuple[str, str, str], Mapping[str, float]], row: Mapping[str, Any]
) -> bool:
    """A tenth more neighbours agreed on, uniformity up by 0.3, and a tenth of the neighbourhoods kept."""
    start, other = (free[row["set"], row["family"], row[side]] for side in ("start", "other"))
    further = other["uniformity"] - start["uniformity"] >= 0.3
    return row["kept"] >= 0.1 and further and other["neighbours"] >= 1.1 * start["neighbours"]


def _formerly(
    free: Mapping[tuple[str, str, str], Mapping[str, float]], row: Mapping[str, Any]
) -> bool:
    """A quarter more neighbours agreed on, and uniformity not down by more than 0.2."""
    start, other = (free[row["set"], row["family"], row[side]] for side in ("start", "other"))
    return (
        other["neighbours"] >= 1.25 * start["neighbours"]
        and other["uniformity"] >= start["uniformity"] - 0.2
    )


def the_paper() -> str:
    """What `hexa reproduce all` wrote, below its title."""
    return paper.page(result(PAPER)).partition("\n\n")[2]


def survived() -> str:
    """What tests/torture and benchmarks/fuzz.py counted: hostile inputs and faults by group."""
    found = result(TORTURE)
    machine = f", {found['cores']} cores, torch {found['torch']}" if "torch" in found else ""
    parts = [f"Counted on {found['date']}, commit `{found['commit'][:7]}`{machine}:\n"]
    for kind, *header in (
        ("input", "hostile input", "tried", "survived"),
        ("fault", "fault", "tried", "nothing lost"),
    ):
        counts = [
            (one["group"], one["tried"], one["survived"])
            for one in found["groups"]
            if one["kind"] == kind
        ]
        counts.append(
            ("**all**", sum(count[1] for count in counts), sum(count[2] for count in counts))
        )
        parts.append(
            table([(name, f"{tried:,}", f"{kept:,}") for name, tried, kept in counts], *header)
        )
    return "\n".join(parts)


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
    """What the paper reports: linear classification on ImageNet, with hard examples beside without."""
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
    "moco": lambda: arms(MOCO, "MoCo-v2"),
    "from-weights": from_weights,
    "equal-time": equal_time,
    "few-labels": few_labels,
    "goals": goals,
    "strongest": strongest,
    "usb": usb,
    "semi-supervised": lambda: semi_supervised(SEMI),
    "semi-supervised-cifar10": lambda: semi_supervised(SEMI_CIFAR),
    "few-images": lambda: few_images(FEW_IMAGES_ARMS, FEW_IMAGES_SCORES),
    "few-images-rates": few_images_rates,
    "few-images-attacks": lambda: few_images(FEW_IMAGES_ATTACKS, FEW_IMAGES_UNDER_ATTACK),
    "robust-arms": robust_arms,
    "scratch": scratch,
    "scratch-rates": scratch_rates,
    "hardened": hardened,
    "hardened-before": partial(
        hardened, (HARDENED_ADAMW, "by AdamW"), (HARDENED_PLAIN, "by AdamW, without other contrast")
    ),
    "hardened-by": partial(hardened_by, HARDENED_BY),
    "hardened-two-steps": partial(hardened_by, "2026-11-25-harden-two-steps.json"),
    "hardened-growing": hardened_growing,
    "adapted": adapted,
    "adapted-now": adapted_now,
    "adapted-seeds": adapted_seeds,
    "hardened-objects": hardened_objects,
    "hardened-clothes": hardened_clothes,
    "hardened-sets": hardened_sets,
    "start-by-size": start_by_size,
    "hardened-corrupted": hardened_corrupted,
    "price-rules": price_rules,
    "speedrun-tracks": speedrun_tracks,
    "small-recipes": small_recipes,
    "without-labels": without_labels,
    "without-labels-by-set": without_labels_by_set,
    "rules-without-labels": rules_without_labels,
    "paper": the_paper,
    "dcluster": lambda: arms(DCLUSTER, "DeepCluster-v2"),
    "ablation-moco": lambda: ablation(ABLATIONS["moco"]),
    "ablation-dcluster": lambda: ablation(ABLATIONS["dcluster"]),
    "simclr": lambda: arms(SIMCLR, "SimCLR"),
    "attacks": attacks,
    "every-method": every_method,
    "by-protocol": by_protocol,
    "by-detection": by_detection,
    "costs": costs,
    "survived": survived,
    "published-gains": published_gains,
    "floors": floors,
}


def filled(text: str) -> str:
    """A page with everything between its markers made anew."""
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
