"""The objective: L = L_std + Σ_h α_h · L_h, as terms to be back-propagated one after another (REFERENCE §5.1, §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from hexa.core.batch import MAIN, Batch
from hexa.core.example import Example, Score
from hexa.core.hard_example import HardExample, check_made
from hexa.core.method import Method, check_views
from hexa.core.onset import Onset, branches, trained
from hexa.core.shares import STD, ObjectiveConfig, Shares
from hexa.core.step import Step, clean_example
from hexa.core.term import Term


class Objective:
    """A method with its hard examples.

    >>> for term in objective.losses(batch):      # one graph alive at a time      # doctest: +SKIP
    ...     term.loss.backward()
    >>> optimizer.step(); objective.commit(batch)                                  # doctest: +SKIP

    The clean backward yields ∂L_std/∂x on the way, which is all that a one-step attack through the same pass needs: it
    costs no pass of its own. `share_gradients=False` is the naive step, for comparison.

    steps: of the whole training, of which `start` and `ramp` of a hard example are shares; None: all are there from the
    first step, whatever they say. Until the first sets in, a step is that of the method alone on the whole batch.
    Raises ConfigError for shares of the batch that do not fit.
    """

    def __init__(
        self,
        method: Method,
        hard_examples: Mapping[str, HardExample] | None = None,
        config: ObjectiveConfig | None = None,
        *,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        share_gradients: bool = True,
        steps: int | None = None,
    ) -> None:
        self.method = method
        self.hard_examples = dict(hard_examples or {})
        self.config = config or ObjectiveConfig()
        self.clean_score = Score(method, autocast, clean=True)
        self.score = self.clean_score.hard
        self.share_gradients = share_gradients
        self._step: Step | None = None
        self._onset = Onset(self.hard_examples, steps)
        whole = self._onset.at()
        self._shares = Shares(self.config, {name: whole[name].fraction for name in trained(whole)}, method)
        self._checked: set[str] = set()

    def weights(self, step: int | None = None) -> dict[str, float]:
        """The weight of every term that is trained on in a step, by name; None: when all hard examples are there.

        With `split` a term's weight is multiplied by its share of the images, so that weights of 1 give the mean over
        the batch.
        """
        hard = self._onset.at(step)
        raw = {STD: 1.0} | {name: hard[name].weight for name in trained(hard)}
        if self.config.split:
            shares = self._shares.present(trained(hard))
            raw = {name: weight * shares[name] / sum(shares.values()) for name, weight in raw.items()}
        total = sum(raw.values()) if self.config.reduction == "mean" else 1.0
        return {name: weight / total for name, weight in raw.items()}

    def setting_in(self, step: int) -> list[str]:
        """The hard examples that are trained on from this step on, which is not the first."""
        new = self._onset.new(step)
        return [name for name in trained(self._onset.at(step)) if name in new]

    def losses(self, batch: Batch) -> Iterator[Term]:
        """Yield the terms of a step; each must be back-propagated before the next is asked for.

        Raises ConfigError for a batch with more or fewer views than the method takes, and UserError if pixels of the
        first batch are not in [0, 1]; later batches are not looked at.
        """
        check_views(len(batch.crops), *self.method.num_views)
        if STD not in self._checked:
            batch.check_values()
            self._checked.add(STD)
        hard = self._onset.at(batch.step)
        rows = self._shares.rows(len(batch), trained(hard))
        if self._onset.new(batch.step):
            for branch in sorted(branches(hard) - branches(self._onset.at(batch.step - 1))):
                self.method.open_branch(branch)
        self._step = Step(
            batch,
            self.clean_score,
            hard,
            self.weights(batch.step),
            rows,
            self._make,
            self.share_gradients,
        )
        return self._step.split() if self.config.split and len(rows) > 1 else self._step.one_after_another()

    def commit(self, batch: Batch) -> None:
        """After the optimizer's step: the method remembers this step, once."""
        remembered, self._step = None if self._step is None else self._step.remembered, None
        assert remembered is not None, "commit follows losses"
        embedding, labels = remembered
        self.method.commit(batch, embedding, labels)

    def examples(self, batch: Batch) -> dict[str, Example]:
        """The clean and every hard example of the whole batch, each made by passes of its own: for looking at.

        Leaves gradients and the query's statistics alone; making pseudo-labels moves statistics as in any step.
        """
        anchors = self.method.anchors(batch)
        with torch.no_grad():
            embedding = self.score.embed(anchors, replace(MAIN, update=False))
        with self.score.autocast():
            made = {STD: clean_example(self.clean_score, anchors, self.method.pseudo_labels(batch, embedding))}
        for name, hard in self._onset.at().items():
            made[name] = self._make(name, hard, made[hard.source], batch)
        return made

    def _make(self, name: str, hard: HardExample, source: Example, batch: Batch) -> Example:
        if not self.share_gradients:
            source = replace(source, shared_gradient=None)
        made = hard(source, batch.stream.child("hard example", name))
        check_made(name, made, source, values=name not in self._checked)
        self._checked.add(name)
        return replace(made, score=made.score.hard)
