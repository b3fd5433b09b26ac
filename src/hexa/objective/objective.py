"""The objective: L = L_std + Σ_h α_h · L_h, as terms to be back-propagated one after another (F12, F18)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from hexa.core.batch import MAIN, Batch, Branch, PseudoLabels
from hexa.core.example import Autocast, Example, Score
from hexa.core.hard_example import HardExample, check_made
from hexa.core.method import Method, check_branches, check_views
from hexa.core.micro_batches import MicroBatches
from hexa.objective.shares import (
    STD,
    ObjectiveConfig,
    StepPlan,
    branches,
    needed,
    onsets,
    trained,
)
from hexa.objective.term import Part, Term


class Objective:
    """A method with its hard examples.

    >>> for term in objective.losses(batch):      # one graph alive at a time      # doctest: +SKIP
    ...     term.loss.backward()
    >>> optimizer.step(); objective.commit(batch)                                  # doctest: +SKIP

    The clean backward yields ∂L_std/∂x on the way, which is all that a one-step attack through the same pass needs: it
    costs no pass of its own. `share_gradients=False` is the naive step, for comparison.

    steps: the length of the whole training, of which the `start` of a hard example is a share; None: all are there from
    the first step, whatever they say. Until the first one starts, a step is that of the method alone on the whole batch.
    accumulate: each pass is cut into this number of micro-batches, one term each, whose gradients add up to those of the
    whole batch. Pseudo-labels and hard examples are made of all images of this process, as without it.
    Raises ConfigError for shares of the batch that do not fit, UserError for batch-norms that the method lacks.
    """

    def __init__(
        self,
        method: Method,
        hard_examples: Mapping[str, HardExample] | None = None,
        config: ObjectiveConfig | None = None,
        *,
        autocast: Autocast = nullcontext,
        share_gradients: bool = True,
        steps: int | None = None,
        accumulate: int = 1,
    ) -> None:
        self.method = method
        self.config = config or ObjectiveConfig()
        self.steps = steps
        given = hard_examples or {}
        self._onsets = onsets(given)
        self.hard_examples = {name: given[name] for name in self._onsets}
        self.config.check(self.hard_examples, method)
        check_branches(method, set(branches(self.hard_examples)))
        self.clean_score = Score(method, autocast, True, accumulate)
        self.score = Score(method, autocast, accumulate=accumulate)
        self.share_gradients = share_gradients
        self._clean: Tensor | None = None
        self._labels: PseudoLabels | None = None
        self._checked: set[str] = set()

    def present(self, step: int | None = None) -> dict[str, HardExample]:
        """The hard examples that have started at a step, each after its source; None: all of them.

        One starts at the first step k of K with k / K ≥ `start`, and not before its source.
        """
        if step is None or self.steps is None:
            return self.hard_examples
        share = step / self.steps
        return {n: hard for n, hard in self.hard_examples.items() if share >= self._onsets[n]}

    def plan(self, step: int | None = None) -> StepPlan:
        """The terms of a step, their images and their weights; None: when all hard examples have started."""
        return self.config.plan(self.present(step), self.hard_examples)

    def starting(self, step: int) -> list[str]:
        """The hard examples that are trained on from this step on, which is not the first."""
        before = trained(self.present(step - 1)) if step else self.hard_examples
        return [name for name in trained(self.present(step)) if name not in before]

    def losses(self, batch: Batch) -> Iterator[Term]:
        """Yield the terms of a step; each must be back-propagated before the next is asked for.

        Raises ConfigError for a batch with more or fewer views than the method takes, and UserError if pixels of the
        first batch are not in [0, 1]; later batches are not looked at.
        """
        # check the views, and the pixels of the first batch
        check_views(len(batch.crops), *self.method.num_views)
        if STD not in self._checked:
            batch.check_values()
            self._checked.add(STD)
        # let the batch-norms of what starts now begin as copies of the main ones
        if self.starting(batch.step):
            before = branches(self.present(batch.step - 1))
            for branch in sorted(set(branches(self.present(batch.step))) - set(before)):
                self.method.open_branch(branch)
        # plan which images each term sees, and walk through the terms
        plan = self.plan(batch.step)
        rows = self.config.rows(plan.shares, len(batch))
        merges = self.config.split and len(rows) > 1
        return self._split(batch, plan, rows) if merges else self._one_by_one(batch, plan, rows)

    def _one_by_one(
        self,
        batch: Batch,
        plan: StepPlan,
        rows: Mapping[str, slice],
    ) -> Iterator[Term]:
        """std -> hard examples, each in a pass of its own on the first images of the batch."""
        # embed the clean views; if an attack can use it, their input gradient is kept
        anchors = self.method.anchors(batch)
        crops = tuple(crop[rows[STD]] for crop in anchors)
        crops = self._watched(plan, STD, MAIN, crops)
        batches = MicroBatches(self.score, crops, MAIN)
        apart = self.method.loss_per_image and batches.several
        embedding = None if apart and batch.known else batches.embedding()
        # name the pseudo-labels of all images
        known = None
        if embedding is not None and len(crops[0]) == len(batch):
            known = embedding.detach()
        labels = self._pseudo_labels(batch, known)
        self._labels = labels
        # learn from the clean views
        everything = clean_example(self.clean_score, anchors, labels)
        clean = replace(everything.select(rows[STD]), crops=crops)
        yield from self._terms(plan, {STD: clean}, batches, embedding)
        del embedding
        made = {STD: _with_gradient(clean)}
        for name in plan.weights:
            if name == STD:
                continue
            # make the hard example of its source, as the source's own pass left it
            example = self._example(batch, name, rows[name], made, everything)
            crops = self._watched(plan, name, example.branch, example.crops)
            example = replace(example, crops=crops)
            # embed its views and learn from them
            batches = MicroBatches(self.score, crops, example.branch)
            found = None if apart else batches.embedding()
            yield from self._terms(plan, {name: example}, batches, found)
            del found
            made[name] = _with_gradient(example)

    def _split(
        self,
        batch: Batch,
        plan: StepPlan,
        rows: Mapping[str, slice],
    ) -> Iterator[Term]:
        """Disjoint parts of the batch, and one pass for all parts of a branch: HEXA at the price of its baseline.

        Parts that have the large crops alone get a pass of their own.
        """
        # name the pseudo-labels of all images, and make every example on its part of them
        labels = self._pseudo_labels(batch, None)
        everything = clean_example(self.clean_score, self.method.anchors(batch), labels)
        passes: dict[tuple[Branch, int], dict[str, Example]] = {}
        for name, part in rows.items():
            example = self._example(batch, name, part, {}, everything)
            passes.setdefault((example.branch, len(example.crops)), {})[name] = example
        self._labels = labels
        for (branch, _), together in passes.items():
            # embed the parts of a branch together, and learn from all of them
            parts = zip(*(example.crops for example in together.values()), strict=True)
            batches = MicroBatches(self.score, tuple(map(torch.cat, parts)), branch)
            yield from self._terms(plan, together, batches, batches.embedding())

    def _terms(
        self,
        plan: StepPlan,
        examples: Mapping[str, Example],
        batches: MicroBatches,
        embedding: Tensor | None,
    ) -> Iterator[Term]:
        """The terms of a pass. Without micro-batches it is one. With them it is one each, if there is no `embedding` of
        all images; otherwise the loss of all, and then its way back through each."""
        if embedding is None:
            for name, example in examples.items():
                yield from self._apart(plan.weights[name], name, example, batches)
            return
        sizes = [len(example) for example in examples.values()]
        yield self._term(plan, examples, torch.split(embedding, sizes, dim=1))
        if batches.several:
            for replay in batches.replays(embedding):
                yield Term(replay, {})

    def _apart(
        self, weight: float, name: str, example: Example, batches: MicroBatches
    ) -> Iterator[Term]:
        """A term for each micro-batch, weighted by its share of the images; the last has the part of all of them."""
        losses = []
        embeddings = []
        parts = dict[str, Part]()
        for number, rows in enumerate(batches.rows, 1):
            embedding = batches.embed(number - 1)
            mixture = tuple((labels[rows], share[:, rows]) for labels, share in example.mixture)
            share = embedding.shape[1] / len(example)
            loss = share * example.score.of(embedding, mixture).mean()
            losses.append(loss.detach())
            embeddings.append(embedding.detach())
            if number == len(batches.rows):
                total = torch.stack(losses).sum()
                parts[name] = self._part(name, total, torch.cat(embeddings, 1), example)
            yield Term(weight * loss, parts)

    def _part(self, name: str, loss: Tensor, embedding: Tensor, example: Example) -> Part:
        if name == STD:
            self._clean = embedding.detach()
        return Part(loss.detach(), embedding.detach(), example, self.method)

    def _term(
        self,
        plan: StepPlan,
        examples: Mapping[str, Example],
        embeddings: Sequence[Tensor],
    ) -> Term:
        """Σ weight · mean loss of these examples, whose embeddings are [V, b, D]."""
        weighted = list[Tensor]()
        parts = dict[str, Part]()
        for (name, example), embedding in zip(examples.items(), embeddings, strict=True):
            loss = example.score.of(embedding, example.mixture).mean()
            weighted.append(plan.weights[name] * loss)
            parts[name] = self._part(name, loss, embedding, example)
        alone = self.score.accumulate == 1 and not self.config.split
        last = alone and list(plan.weights)[-1] in examples
        return Term(torch.stack(weighted).sum(), parts, last)

    def commit(self, batch: Batch) -> None:
        """After the optimizer's step: the method remembers this step, once."""
        assert self._clean is not None, "commit follows losses"
        self.method.commit(batch, self._clean, self._labels)
        self._clean = None
        self._labels = None

    def examples(self, batch: Batch) -> dict[str, Example]:
        """The clean and every hard example of the whole batch, each made by passes of its own: for looking at.

        Leaves gradients and the query's statistics alone; making pseudo-labels moves statistics as in any step.
        """
        anchors = self.method.anchors(batch)
        with torch.no_grad():
            embedding = self.score.embed(anchors, replace(MAIN, update=False))
        labels = self._pseudo_labels(batch, embedding)
        made = {STD: clean_example(self.clean_score, anchors, labels)}
        for name, hard in self.hard_examples.items():
            made[name] = self._make(batch, name, made[hard.source])
        return made

    def _pseudo_labels(
        self,
        batch: Batch,
        embedding: Tensor | None,
    ) -> PseudoLabels:
        with self.score.autocast():
            return cast(PseudoLabels, self.method.pseudo_labels(batch, embedding))

    def _example(
        self,
        batch: Batch,
        name: str,
        rows: slice,
        made: Mapping[str, Example],
        everything: Example,
    ) -> Example:
        """The example `name` for `rows`: the one that a previous term left if it covers them, otherwise a new one."""
        if name in made and len(made[name]) >= rows.stop:
            left = made[name]
            return left if len(left) == rows.stop else left.select(rows)
        if name == STD:
            return everything.select(rows)
        source = self.hard_examples[name].source
        return self._make(batch, name, self._example(batch, source, rows, made, everything))

    def _make(
        self,
        batch: Batch,
        name: str,
        source: Example,
    ) -> Example:
        """Make the hard example `name` of its source, to be learned from by the method's loss of hard examples."""
        if not self.share_gradients:
            source = replace(source, shared_gradient=None)
        made = self.hard_examples[name](source, batch.stream.child("hard example", name))
        check_made(name, made, source, values=name not in self._checked)
        self._checked.add(name)
        return replace(made, score=self.score) if made.score is self.clean_score else made

    def _watched(
        self,
        plan: StepPlan,
        name: str,
        branch: Branch,
        crops: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """The crops of a pass; with `requires_grad` if what is made of `name` can use the pass's input gradient."""
        if self.share_gradients:
            for taker in needed(plan.present):
                hard = plan.present[taker]
                wanted = hard.gradient_of_source
                if hard.source == name and wanted is not None and wanted.normalizes_as(branch):
                    return tuple(crop.detach().requires_grad_() for crop in crops)
        return crops


def clean_example(
    score: Score,
    anchors: tuple[Tensor, ...],
    labels: PseudoLabels,
) -> Example:
    """The anchors [B, 3, S_v, S_v] as an example of their own pseudo-labels."""
    ones = torch.ones(len(anchors), len(anchors[0]), device=anchors[0].device)
    return Example(anchors, ((labels, ones),), score)


def _with_gradient(example: Example) -> Example:
    """After its backward: the example with the input gradient that the pass left, and crops that need none."""
    if not example.crops[0].requires_grad:
        return example
    left = tuple(crop.grad for crop in example.crops if crop.grad is not None)
    assert len(left) == len(example.crops), "back-propagate each term before asking for the next"
    crops = tuple(crop.detach() for crop in example.crops)
    return replace(example, crops=crops, shared_gradient=left)
