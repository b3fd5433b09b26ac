"""Check the laws for the method and the hard examples of a recipe: `hexa check FILE.py:recipe`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hexa.config import UserError
from hexa.core import HardExample
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.cutmix import CutMix
from hexa.recipes.plugins import own_line
from hexa.testing.cases import BATCH, NETWORK, SIZE, Case
from hexa.testing.laws import LAWS

if TYPE_CHECKING:
    from hexa.recipes.experiment import Experiment


@dataclass(frozen=True)
class Verdict:
    """The result for one law. said: the failure message; empty if the law holds."""

    law: str
    meaning: str
    cases: int
    said: str


def check(experiment: Experiment) -> Iterator[Verdict]:
    """Check each law for the recipe's method: plain, with each of its hard examples, with all of
    them, and with the two published kinds.

    Runs on 8 images of 12 pixels, fp64, on the CPU; the sizes of the method are the recipe's.
    Raises ConfigError if they do not fit these images.
    """
    cases = cases_of(experiment)
    cases["plain"].build()
    for name, law in LAWS.items():
        said = ""
        for title, case in cases.items():
            try:
                law(case)
            except (AssertionError, UserError) as error:
                said = f"{title}: {str(error).splitlines()[0]}"
                break
            except Exception as error:
                said = f"{title}: {_unforeseen(error)}"
                break
        yield Verdict(name, " ".join((law.__doc__ or "").split()), len(cases), said)


def _unforeseen(error: Exception) -> str:
    """Return an error of the method or of a hard example as one line, with its place in the user's file."""
    lines = str(error).strip().splitlines() or [""]  # the last line of an error in another process
    place = own_line(error)
    where = "" if place is None else f" ({place})"
    return f"{type(error).__name__}: {lines[-1]}{where}"


def tried(experiment: Experiment) -> str:
    """Return a line that describes the cases of `check`."""
    cases = ", ".join(cases_of(experiment))
    return f"{experiment.method.name} on {BATCH} images of {SIZE} pixels, fp64, CPU; cases: {cases}"


def looks_wrong(experiment: Experiment) -> str:
    """Return a warning if the loss needs raw embeddings but the method embeds on the unit sphere;
    otherwise an empty string.

    Losses of unit rows depend on the position of the rows. If a shift of all rows changes nothing,
    the loss compares rows with their mean, like the variances and covariances of VICReg, which are
    bounded on a sphere.
    """
    case = cases_of(experiment)["plain"]
    method = case.build()
    _, embedding, labels = case.embedded(method)
    embedding = embedding.detach()
    lengths = embedding.norm(dim=-1)
    if not torch.allclose(lengths, torch.ones_like(lengths), atol=1e-4):
        return ""
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(embedding.shape, generator=generator, dtype=embedding.dtype)
    loss = method.loss(embedding, labels)
    moved = float((method.loss(embedding + noise, labels) - loss).detach().abs().max())
    shifted = float((method.loss(embedding + noise[:1, :1], labels) - loss).detach().abs().max())
    if not 0 < moved < math.inf or shifted > 1e-6 * moved:
        return ""
    return (
        "`embed` returns unit rows, but `loss` ignores a shift of all rows, like variance losses "
        "(VICReg); let `embed` return the raw embeddings, encoder.project(crops, branch)"
    )


def cases_of(experiment: Experiment) -> dict[str, Case]:
    """Return the cases by name."""
    groups = enumerate(experiment.views.groups)
    sizes = tuple(
        SIZE if number == 0 else 2 * SIZE // 3
        for number, group in groups
        for _ in range(group.count)
    )
    network = NETWORK.model_copy(update={"streams": experiment.network.streams})
    own = experiment.hard_examples
    published = {"adversarial": Adversarial(), "cutmix": CutMix()}
    sets: dict[str, dict[str, HardExample]] = {"plain": {}}
    sets |= {
        name: {name: hard} for name, hard in {**published, **own}.items() if hard.source == "std"
    }
    sets["all together"] = dict(own) if len(own) > 1 else published
    made = {name: Case(experiment.method, hard, sizes, network) for name, hard in sets.items()}
    return {name: case for name, case in made.items() if case.fits}
