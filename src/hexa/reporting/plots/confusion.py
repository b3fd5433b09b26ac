"""How far an attack moves views across the boundaries between pseudo-labels, as its steps grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from hexa.config import UserError
from hexa.core import MAIN, STD, Example
from hexa.reporting.gallery import unchanged
from hexa.reporting.style import COLOURS, MARKERS, MUTED, drawing
from hexa.reporting.visualize import Look
from hexa.runtime.random import Stream

#: Recognised views of which one lost is a step of 5 % in the figure.
_FEW = 20


@dataclass(frozen=True)
class Confusion:
    """What attacks of several radii and steps do to the same views.

    crossed: one row per radius, one column per number of steps: of the views that are recognised clean, the
    share in percent that no longer are once moved; loss: the mean loss of all moved views, likewise. recognised: the
    share of clean views whose pseudo-label is the most likely one, in percent; clean_loss: their mean loss.
    """

    radii: tuple[float, ...]
    steps: tuple[int, ...]
    crossed: tuple[tuple[float, ...], ...]
    loss: tuple[tuple[float, ...], ...]
    recognised: float
    clean_loss: float
    num_views: int
    step_size: float


@torch.no_grad()
def confusion(
    look: Look,
    *,
    radii: Sequence[float] = (1, 2, 4, 8),
    steps: Sequence[int] = (1, 2, 4, 8, 16),
    step_size: float = 1.0,
    num_images: int = 64,
    seed: int = 0,
) -> Confusion:
    """Attack the same views by l∞ steps of `step_size` within balls of `radii`, all in grey levels of 255.

    A view counts as recognised if its pseudo-label is the most likely one, by the method's own `correct` (for several
    heads: by the share of them). Everything goes through the main batch-norms, so that the boundaries stay where they
    are and only pixels move. Raises UserError for a method without such a notion, or if it recognises nothing.
    """
    attack = {"kind": "adversarial", "step_size": step_size, "branch": "main"}
    configs = {
        f"{radius:g}-{count}": {**attack, "epsilon": radius, "steps": count} for radius in radii for count in steps
    }
    objective = look.objective(configs)
    batch = look.batch(num_images, Stream(seed).child("confusion"))
    with unchanged(objective.method):
        examples = objective.examples(batch)
        clean, clean_loss = _recognised(examples[STD])
        moved = {name: _recognised(examples[name]) for name in configs}
    if float(clean.sum()) == 0:
        raise UserError("the method recognises no clean pseudo-label yet; give a run that was trained for longer")

    def share(name: str) -> float:
        return 100 * float((clean - moved[name][0]).clamp_min(0).sum() / clean.sum())

    return Confusion(
        radii=tuple(map(float, radii)),
        steps=tuple(steps),
        crossed=tuple(tuple(share(f"{radius:g}-{count}") for count in steps) for radius in radii),
        loss=tuple(tuple(moved[f"{radius:g}-{count}"][1] for count in steps) for radius in radii),
        recognised=100 * float(clean.mean()),
        clean_loss=clean_loss,
        num_views=clean.numel(),
        step_size=step_size,
    )


def _recognised(example: Example) -> tuple[Tensor, float]:
    """Whether each anchor's pseudo-label is the most likely, [V, B] in 0 … 1, and the mean loss."""
    embedding = example.score.embed(example.crops, replace(MAIN, update=False))
    ((labels, _),) = example.mixture
    correct = example.score.method.correct(embedding, labels)
    if correct is None:
        name = type(example.score.method).__name__
        raise UserError(f"{name} does not say when a pseudo-label is recognised (Method.correct)")
    return correct.float(), float(example.score.of(embedding, example.mixture).mean())


def confusion_curves(measured: Confusion, *, title: str = "", remark: str = "") -> Figure:
    """Left the share that crossed a boundary over the steps, one line per radius; right the loss."""
    count = round(measured.num_views * measured.recognised / 100)
    few = ": too few to tell much" if count < _FEW else ""
    about = f"{count} of {measured.num_views} views are recognised clean{few}. {remark}".strip()
    with drawing(2, title, about, height=3.7) as (figure, (left, right)):
        for ax, rows in ((left, measured.crossed), (right, measured.loss)):
            for number, (radius, values) in enumerate(zip(measured.radii, rows, strict=True)):
                colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
                ax.plot(measured.steps, values, color=colour, marker=marker, label=f"ε = {radius:g}")
            ax.set_xscale("log", base=2)
            ax.set_xticks(measured.steps, [str(steps) for steps in measured.steps])
            ax.minorticks_off()
            ax.set_xlabel(
                f"steps of the attack (η = {measured.step_size:g} grey level{'s' * (measured.step_size != 1)})"
            )
            ax.grid(True, axis="y")
            ax.margins(y=0.14)
        right.axhline(measured.clean_loss, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1)
        place: dict[str, Any] = {"xytext": (0, -12), "textcoords": "offset points", "ha": "right", "fontsize": 9}
        right.annotate("clean views", (measured.steps[-1], measured.clean_loss), **place)
        right.set_ylabel("mean loss of the views")
        left.set_ylabel("recognised pseudo-labels lost (%)")
        left.set_ylim(bottom=0)
        left.legend(title="radius (grey levels)", loc="best")
    return figure
