"""Foreign methods and hard examples that break the contract are refused with a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hexa.config import UserError
from hexa.core import Branch, Example, HardExample
from hexa.methods.simclr import SimCLR
from hexa.objective import Objective
from hexa.runtime.random import Stream
from tests.laws.cases import Case


class Broken(HardExample):
    """Returns whatever `make` makes of its source."""

    make: Any

    def __call__(self, source: Example, stream: Stream) -> Any:
        return self.make(source)


def shown(source: Example, change: Callable[[Tensor], Tensor]) -> Example:
    return source.at(tuple(change(crop.detach()) for crop in source.crops))


def weighed(source: Example, change: Callable[[Tensor], Tensor]) -> Example:
    return replace(
        source, mixture=tuple((labels, change(weight)) for labels, weight in source.mixture)
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda source: None, "an Example"),
        (
            lambda source: source.at((*source.crops, *source.crops)),
            "an Example",
        ),
        (
            lambda source: shown(source, lambda x: x[..., ::2, ::2]),
            r"crops \[\[",
        ),
        (
            lambda source: shown(source, lambda crop: crop.requires_grad_()),
            "gradient attached",
        ),
        (lambda source: shown(source, lambda crop: crop * 50), "pixels"),
        (lambda source: weighed(source, lambda weight: 0.4 * weight), "sum to one"),
        (lambda source: weighed(source, lambda weight: weight[:, :2]), r"\[V, B\]"),
        (lambda source: replace(shown(source, Tensor.clone), branch=Branch("mine")), "'mine'"),
    ],
)
def test_hard_example_contract(make: Callable[[Example], Any], said: str) -> None:
    case = Case("simclr", {})
    broken = Broken(kind="broken", make=make)
    objective = Objective(case.build(), {"mine": broken})
    first = replace(case.batch(), step=0)
    terms = objective.losses(first)
    next(terms).loss.backward()
    with pytest.raises(UserError, match=f"hard example 'mine' .*{said}"):
        next(terms)


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (lambda x: x, "bank"),
        (lambda x: [x], "banks"),
        (lambda x: {"a": x}, "named"),
    ],
)
def test_unregistered_bank_tensor(
    monkeypatch: pytest.MonkeyPatch, keep: Callable[[Tensor], Any], name: str
) -> None:
    """A memory bank that checkpoints would not save is refused."""
    real = SimCLR.__init__

    def forgetful(self: SimCLR, *given: Any) -> None:
        real(self, *given)
        setattr(self.encoder, name, keep(torch.zeros(3)))

    monkeypatch.setattr(SimCLR, "__init__", forgetful)
    with pytest.raises(
        UserError, match=rf"SimCLR\.encoder\.{name} is a plain tensor.* self\.register_buffer"
    ):
        Case("simclr").build()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("loss", lambda loss: 1.0, "loss returned float"),
        ("loss", lambda loss: loss.sum(0), r"loss returned \[8\]"),
        ("loss", Tensor.detach, "loss has no gradient"),
        ("pseudo_labels", lambda labels: None, "pseudo_labels returned NoneType"),
    ],
)
def test_method_contract(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any], said: str
) -> None:
    real = getattr(SimCLR, name)
    monkeypatch.setattr(SimCLR, name, lambda self, *given: change(real(self, *given)))
    monkeypatch.setattr(SimCLR, "clean_loss", SimCLR.loss)
    case = Case("simclr", {})
    with pytest.raises(UserError, match=f"SimCLR.{said}"):
        next(Objective(case.build()).losses(case.batch()))
