"""The objective: L = L_std + Σ_h α_h · L_h, as terms to be back-propagated one after another (REFERENCE §5.1, §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from hexa.config import ConfigError
from hexa.core.batch import MAIN, Batch, Branch, PseudoLabels
from hexa.core.example import Example, Score
from hexa.core.hard_example import HardExample, check_made
from hexa.core.method import Method
from hexa.core.origin import Origin
from hexa.core.shares import STD, ObjectiveConfig, Shares
from hexa.core.term import Part, Term

DISTILLATION = "distillation"


class Objective:
    """A method with its hard examples.

    >>> for term in objective.losses(batch):      # one graph alive at a time      # doctest: +SKIP
    ...     term.loss.backward()
    >>> optimizer.step(); objective.commit(batch)                                  # doctest: +SKIP

    The clean backward yields ∂L_std/∂x on the way, which is all that a one-step attack through the same pass needs: it
    costs no pass of its own. `share_gradients=False` is the naive step, for comparison.

    origin: what the backbone is held to. Its distillation is in the clean term. An attack is against the method's
    own loss, whose gradient the backward of that term then does not yield: it costs a pass of its own.
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
        origin: Origin | None = None,
    ) -> None:
        self.method, self.origin = method, origin
        self._distills = origin is not None and origin.distillation > 0
        self.hard_examples = dict(hard_examples or {})
        self.config = config or ObjectiveConfig()
        self.clean_score = Score(method, autocast, clean=True)
        self.score = self.clean_score.hard
        self.share_gradients = share_gradients
        self._clean: tuple[Tensor | None, PseudoLabels] | None = None
        self.order = [name for name in _by_source(self.hard_examples) if self.hard_examples[name].weight > 0]
        self._shares = Shares(
            self.config, {name: self.hard_examples[name].fraction for name in self.order}, self._distills, method
        )

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every term that is trained on, by name."""
        raw = {STD: 1.0} | {name: self.hard_examples[name].weight for name in self.order}
        total = sum(raw.values()) if self.config.reduction == "mean" else 1.0
        return {name: weight / total for name, weight in raw.items()}

    def losses(self, batch: Batch) -> Iterator[Term]:
        """Yield the terms of a step; each must be back-propagated before the next is asked for."""
        rows = self._shares.rows(len(batch))
        return self._split(batch, rows) if self.config.split else self._one_after_another(batch, rows)

    def commit(self, batch: Batch) -> None:
        """After the optimizer's step: the method remembers this step, once."""
        assert self._clean is not None, "commit follows losses"
        (embedding, labels), self._clean = self._clean, None
        self.method.commit(batch, embedding, labels)

    def examples(self, batch: Batch) -> dict[str, Example]:
        """The clean and every hard example of the whole batch, each made by passes of its own: for looking at.

        Leaves gradients and the query's statistics alone; making pseudo-labels moves statistics as in any step.
        """
        anchors = self.method.anchors(batch)
        with torch.no_grad():
            embedding = self.score.embed(anchors, replace(MAIN, update=False))
        with self.score.autocast():
            clean = self._clean_example(anchors, self.method.pseudo_labels(batch, embedding))
        made = {STD: clean}
        for name in _by_source(self.hard_examples):
            made[name] = self._make(name, made[self.hard_examples[name].source], batch)
        return made

    # -- the two ways through a step ------------------------------------------------------------------------------

    def _one_after_another(self, batch: Batch, rows: dict[str, slice]) -> Iterator[Term]:
        """std -> hard examples, each in a pass of its own on the first images of the batch."""
        method, weights = self.method, self.weights
        whole = method.anchors(batch)
        anchors = tuple(crop[rows[STD]] for crop in whole)
        if self._wants_gradient(STD, MAIN):
            anchors = tuple(crop.detach().requires_grad_() for crop in anchors)
        watched: AbstractContextManager[list[Tensor]] = self.origin.compared() if self.origin else nullcontext([])
        with watched as distances:
            embedding = self.score.embed(anchors, MAIN)
        detached = embedding.detach()
        with self.score.autocast():
            labels = method.pseudo_labels(batch, detached if len(batch) == len(anchors[0]) else None)
        self._clean = (detached, labels)
        everything = self._clean_example(whole, labels)
        clean = replace(everything.select(rows[STD]), crops=anchors)
        loss = clean.score.of(embedding, clean.mixture).mean()
        yield self._distilled(self._term(STD, weights[STD] * loss, loss, embedding, clean), distances)
        del embedding, loss, distances

        made = {STD: _with_gradient(clean)}
        for name in self.order:
            source = self._source(self.hard_examples[name].source, rows[name], made, everything, batch)
            example = self._make(name, source, batch)
            if self._wants_gradient(name, example.branch):
                example = replace(example, crops=tuple(crop.requires_grad_() for crop in example.crops))
            embedding = self.score.embed(example.crops, example.branch)
            loss = example.score.of(embedding, example.mixture).mean()
            yield self._term(name, weights[name] * loss, loss, embedding, example)
            del embedding, loss
            made[name] = _with_gradient(example)

    def _split(self, batch: Batch, rows: dict[str, slice]) -> Iterator[Term]:
        """Disjoint parts of the batch, and one pass for all parts of a branch: HEXA at the price of its baseline.

        Parts that have the large crops alone get a pass of their own.
        """
        with self.score.autocast():
            labels = self.method.pseudo_labels(batch, None)
        everything = self._clean_example(self.method.anchors(batch), labels)
        examples = {name: self._source(name, part, {}, everything, batch) for name, part in rows.items()}
        passes = {name: (example.branch, len(example.crops)) for name, example in examples.items()}
        for branch, count in dict.fromkeys(passes.values()):
            together = {name: examples[name] for name, of in passes.items() if of == (branch, count)}
            crops = tuple(torch.cat(parts) for parts in zip(*(e.crops for e in together.values()), strict=True))
            embedding = self.score.embed(crops, branch)
            pieces = dict(
                zip(together, torch.split(embedding, [len(e) for e in together.values()], dim=1), strict=True)
            )
            losses = {n: example.score.of(pieces[n], example.mixture).mean() for n, example in together.items()}
            if STD in together:
                self._clean = (pieces[STD].detach(), labels)
            weighted = [self.weights[name] * loss for name, loss in losses.items()]
            yield Term(
                torch.stack(weighted).sum(),
                {name: self._part(losses[name], pieces[name], example) for name, example in together.items()},
            )

    # -- examples ---------------------------------------------------------------------------------------------------

    def _clean_example(self, anchors: tuple[Tensor, ...], labels: PseudoLabels) -> Example:
        one = torch.ones(len(anchors), len(anchors[0]), device=anchors[0].device)
        return Example(anchors, ((labels, one),), self.clean_score)

    def _source(self, name: str, rows: slice, made: dict[str, Example], everything: Example, batch: Batch) -> Example:
        """The example `name` on these images: what a term left behind if it covers them, else made anew."""
        if name in made and len(made[name]) >= rows.stop:
            return made[name] if len(made[name]) == rows.stop else made[name].select(rows)
        if name == STD:
            return everything.select(rows)
        source = self._source(self.hard_examples[name].source, rows, made, everything, batch)
        return self._make(name, source, batch)

    def _make(self, name: str, source: Example, batch: Batch) -> Example:
        if not self.share_gradients:
            source = replace(source, shared_gradient=None)
        made = self.hard_examples[name](source, batch.stream.child("hard example", name))
        check_made(name, made, source, values=batch.step == 0)
        return replace(made, score=made.score.hard)

    def _wants_gradient(self, name: str, branch: Branch) -> bool:
        """Whether a hard example that is trained on can use the input gradient of the pass that trains on `name`."""
        shares = self.share_gradients and not (name == STD and self._distills)
        takers = (self.hard_examples[other] for other in self._needed() if shares)
        wanted = [taker.gradient_of_source for taker in takers if taker.source == name]
        return any(b is not None and (b.name, b.training) == (branch.name, branch.training) for b in wanted)

    def _needed(self) -> set[str]:
        """The hard examples that are trained on, and those they are made from."""
        needed: set[str] = set()
        for name in self.order:
            while name != STD and name not in needed:
                needed.add(name)
                name = self.hard_examples[name].source
        return needed

    def _term(self, name: str, weighted: Tensor, loss: Tensor, embedding: Tensor, example: Example) -> Term:
        return Term(weighted, {name: self._part(loss, embedding, example)})

    def _distilled(self, term: Term, distances: list[Tensor]) -> Term:
        if self.origin is None or not distances:
            return term
        distance = torch.cat(distances).mean()
        return Term(term.loss + self.origin.distillation * distance, term.parts, {DISTILLATION: distance.detach()})

    def _part(self, loss: Tensor, embedding: Tensor, example: Example) -> Part:
        return Part(loss.detach(), embedding.detach(), example, self.method)


def _with_gradient(example: Example) -> Example:
    """After its backward: the example with the input gradient that the pass left, and crops that need none."""
    if not example.crops[0].requires_grad:
        return example
    gradients = tuple(crop.grad for crop in example.crops)
    assert all(g is not None for g in gradients), "back-propagate each term before asking for the next"
    return replace(
        example,
        crops=tuple(crop.detach() for crop in example.crops),
        shared_gradient=tuple(g for g in gradients if g is not None),
    )


def _by_source(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """Names in an order in which every source comes before what is made from it; otherwise as given."""
    ordered: list[str] = []
    pending = list(hard_examples)
    while pending:
        ready = [name for name in pending if hard_examples[name].source in {STD, *ordered}]
        if not ready:
            raise ConfigError([(f"hard_examples.{pending[0]}.source", "names no example that can be made first")])
        ordered.append(ready[0])
        pending.remove(ready[0])
    return ordered
