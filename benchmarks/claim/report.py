"""The page "Does HEXA raise accuracy?" and its plot, from the rows alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import plan
from plan import Contrast, Row

PAGE, PLOT = "does-hexa-raise-accuracy.md", "does-hexa-raise-accuracy.svg"
#: k-NN of two seeds, image by image.
OVER_IMAGES = Path(__file__).parents[1] / "2026-11-30-claim-over-images.json"
#: The main test first.
TITLES = {
    "long": "50,000 images, 100 epochs",
    "small": "2,000 images, 1,600 epochs",
    "deepcluster": "DeepCluster-v2, 20 epochs",
    "short": "50,000 images, 12 epochs (calibration)",
}
MAIN_TEST = ("long", "small")
OUTCOMES = {
    "knn": "k-NN",
    "probe": "probe",
    "labels1": "1 label per class",
    "labels16": "16 labels per class",
    "robust2": "robust by PGD, ε = 2/255",
    "labels500": "fine-tuned, 500 labels",
    "all_labels": "fine-tuned, all labels",
}
NAMES = {"H1": "H1: adversarial − plain, one rate", "H2": "H2: adversarial − placebo, best rates"}
MEANING = {
    "shown": "the gain in the paper is confirmed: adversarial views raise accuracy beyond what a "
    "second term does. Use `+adversarial`, with a tuned rate.",
    "step size": "adversarial views gain against the plain method, but so does a placebo: the gain is that of a larger "
    "gradient. Tune the learning rate instead.",
    "refuted at this scale": "a gain of half a point or more over the placebo is excluded in the primary outcome. The "
    "table shows what the other outcomes leave open. For accuracy, train the plain method; for robustness, see "
    "`hexa harden`.",
    "open": "the rules fixed in advance decide neither for nor against the paper. Nothing here is a reason to add "
    "adversarial views for accuracy.",
}
AGAINST = {"H1": "the plain method", "H2": "the placebo"}


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write page and plot into a folder; without a contrast of the main test, print what there is instead."""
    there = [name for name in TITLES if primary(rows, name)]
    if not set(there) & set(MAIN_TEST):
        made = {name: sum(row["step"] == name for row in rows) for name in ("dose", *plan.STEPS)}
        print("no page: the main test has no pair of H1 and H2 yet")
        print(", ".join(f"{name}: {count} rows" for name, count in made.items()))
        return
    from hexa.reporting.style import save
    from hexa.runtime.files import write_text

    _ = write_text(folder / PAGE, page(rows, there))
    _ = save(figure(rows, [name for name in MAIN_TEST if name in there]), folder / PLOT)
    print(f"{folder / PAGE}\n{folder / PLOT}")


def primary(rows: Sequence[Row], name: str, outcome: str | None = None) -> dict[str, Contrast]:
    """H1 and H2 of a step in its primary outcome or another one; empty unless both have a pair."""
    if not any(row["step"] == name for row in rows):
        return {}
    chosen, found = outcome or plan.STEPS[name].outcome, dict[str, Contrast]()
    for label, (first, second) in plan.hypotheses(rows, name).items():
        values = plan.differences(rows, name, first, second, chosen)
        if values:
            found[label] = Contrast(tuple(values.values()))
    return found if len(found) == 2 else {}


def page(rows: Sequence[Row], there: Sequence[str]) -> str:
    """The page in Markdown, at most 600 words besides the numbers."""
    lines = [
        "# Does HEXA raise accuracy?",
        "",
        "A pre-registered test of the paper's claim on CIFAR-10: adversarial views against the plain method, and against "
        "a placebo (a second term on the clean view, through the auxiliary batch-norms). The objective is the paper's, the "
        "sum of the terms. Arms, choices, contrasts and this reading were fixed before the first training. Dated additions "
        "were made before the first test score of a setting; a later one only orders the seeds on a second machine: "
        "`benchmarks/claim/PLAN.md`.",
        "",
    ]
    for name in there:
        said = plan.reading(*primary(rows, name).values())
        answer = f"{', '.join(said)}.** {_found(rows, name)}{_stops(rows, name)}"
        lines.append(f"- **{TITLES[name]}: {answer}")
    lines += ["", "## Contrasts", "", *table(rows, there), ""]
    lines += [
        "Differences in points, paired by seed. Primary outcomes have Holm's intervals and p-values over H1 and H2; "
        "all others have 95 % intervals and no test. Intervals are over seeds, as planned, for the same test images. "
        f"Over images, the mean of k-NN's differences has ± {over_images():.1f} points (two seeds, "
        f"`{OVER_IMAGES.name}`, made after the results). PGD overstates robust accuracy.",
        "",
        "## Against the number of epochs",
        "",
        f"![Difference in k-NN accuracy against the number of epochs]({PLOT})",
        "",
        "Bars are 95 % intervals. Before the last epoch the learning rate has not decayed, so these points are a curve "
        "only.",
        "",
        "## Other arms",
        "",
        *others(rows, [name for name in there if name != "short"]),
        "",
        "## What it means",
        "",
    ]
    for name in (name for name in MAIN_TEST if name in there):
        said = plan.reading(*primary(rows, name).values())
        lines += [f"{TITLES[name]}: {' '.join(MEANING[one] for one in said)}", ""]
    dose = plan.dose(rows)
    lines += [
        f"The dose, which raises the loss of a trained network by 1.1 nats in one step, is ε = {dose:g}/255."
        if dose
        else "",
        "These are small networks, trained for at most 20,000 steps; the paper trains a ResNet-50 for a million.",
        "",
        "Rebuild page and plot: `python benchmarks/claim/run.py --report`.",
    ]
    return "\n".join(lines) + "\n"


def over_images() -> float:
    """Half of the widest 95 % interval over test images of the mean difference, in points."""
    rows = json.loads(OVER_IMAGES.read_text())["rows"]
    return max(float(row["half, images"]) for row in rows if row["seed"] == "mean")


def _found(rows: Sequence[Row], name: str) -> str:
    """Return sentences that say of each contrast whether it is a gain or a loss."""
    found = primary(rows, name)
    said = []
    for (label, one), (low, high) in zip(
        found.items(), plan.holm_intervals(list(found.values())), strict=True
    ):
        way = "worse" if high < 0 else "better" if low > 0 else "no significant difference"
        if math.isinf(low):
            way = "one seed, no interval"
        said.append(f"Against {AGAINST[label]}: {way}, {_points(one, (low, high))} points.")
    return " ".join(said)


def _stops(rows: Sequence[Row], name: str) -> str:
    """Return a sentence on pairs that are missing, or nothing."""
    values, planned = primary(rows, name)["H2"].values, max(plan.STEPS[name].arms.values())
    lost = [plan.unit_of(row).name for row in rows if row["step"] == name and "diverged" in row]
    said = ""
    if len(values) < planned and plan.futile(rows, name):
        said += f" Stopped for futility after {len(values)} of {planned} seeds."
    elif len(values) < planned:
        said += f" {len(values)} of {planned} seeds."
    return said + (f" Diverged, left out: {', '.join(lost)}." if lost else "")


def table(rows: Sequence[Row], there: Sequence[str]) -> Iterator[str]:
    yield f"| training | outcome | seeds | {NAMES['H1']} | {NAMES['H2']} |"
    yield "|---|---|---|---|---|"
    for name in there:
        first = plan.STEPS[name].outcome
        further = () if name == "short" else (one for one in OUTCOMES if one != first)
        for outcome in (first, *further):
            found = primary(rows, name, outcome)
            if not found:
                continue
            both = list(found.values())
            count = "/".join(map(str, dict.fromkeys(len(one.values) for one in both)))
            if outcome == first:
                adjusted = plan.holm([one.p for one in both])
                ends = plan.holm_intervals(both)
                cells = [
                    f"**{_points(one, end)}**, p = {p:.2g}"
                    if len(one.values) > 1
                    else _points(one, end)
                    for one, end, p in zip(both, ends, adjusted, strict=True)
                ]
            else:
                cells = [_points(one, one.interval()) for one in both]
            title = TITLES[name] if outcome == first else ""
            yield f"| {title} | {OUTCOMES[outcome]} | {count} | {' | '.join(cells)} |"


def others(rows: Sequence[Row], there: Sequence[str]) -> Iterator[str]:
    yield "| training | arm | rate | mean | seeds | − plain, best rates |"
    yield "|---|---|---|---|---|---|"
    for name in there:
        outcome, own = plan.STEPS[name].outcome, plan.rates(rows, name)
        for arm, rate in own.items():
            scores: dict[int, float] = {}  # of a seed made twice, the older row
            for row in rows:
                same = (row["step"], row["arm"], row["rate"]) == (name, arm, rate)
                if same and row.get("scores"):
                    scores.setdefault(row["seed"], row["scores"][outcome])
            if not scores:
                continue
            against = (plan.PLAIN, own[plan.PLAIN])
            values = plan.differences(rows, name, (arm, rate), against, outcome)
            gain = Contrast(tuple(values.values())) if values and arm != plan.PLAIN else None
            cell = _points(gain, gain.interval()) if gain else ""
            mean = f"{math.fsum(scores.values()) / len(scores):.1f}"
            title = TITLES[name] if arm == plan.PLAIN else ""
            yield f"| {title} | {arm} | {rate:g} | {mean} | {len(scores)} | {cell} |"


def _points(contrast: Contrast, ends: tuple[float, float]) -> str:
    low, high = ends
    said = f"{contrast.mean:+.2f}"
    if math.isfinite(low):
        said += f" ({low:+.2f} to {high:+.2f})"
    return said.replace("-", "−")


def figure(rows: Sequence[Row], names: Sequence[str]) -> Any:
    """Differences of k-NN accuracy against epochs, one panel for each setting of the main test."""
    from hexa.reporting.style import COLOURS, MUTED, drawing

    with drawing(len(names), width=5.0, height=3.4) as (made, axes):
        for ax, name in zip(axes, names, strict=True):
            step = plan.STEPS[name]
            ax.axhline(0, color=MUTED, linewidth=1)
            for place, (label, (first, second)) in enumerate(plan.hypotheses(rows, name).items()):
                points = []
                for epochs in (*step.marks, step.epochs):
                    outcome = "knn" if epochs == step.epochs else f"knn@{epochs}"
                    values = tuple(plan.differences(rows, name, first, second, outcome).values())
                    if values:
                        low, high = Contrast(values).interval()
                        mean = Contrast(values).mean
                        bars = (mean - low, high - mean) if len(values) > 1 else (0.0, 0.0)
                        points.append((epochs * (0.97 + 0.06 * place), mean, *bars))
                x, y, down, up = zip(*points, strict=True)
                look: dict[str, Any] = {"color": COLOURS[place], "marker": "o", "markersize": 4}
                ax.errorbar(x, y, yerr=(down, up), label=NAMES[label], capsize=3, **look)
            ax.set_xscale("log")
            ax.set_xticks(
                (*step.marks, step.epochs), [str(one) for one in (*step.marks, step.epochs)]
            )
            ax.minorticks_off()
            ax.set(title=TITLES[name], xlabel="epochs", ylabel="difference in k-NN, points")
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.1))
    return made
