"""The objective: L = L_std + Σ_h α_h · L_h, as terms that are back-propagated one after another
(F12, F18)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from hexa.config import UserError
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

    The clean backward pass also yields ∂L_std/∂x. A one-step attack through the same batch-norms
    needs only this gradient, so the attack needs no extra pass. `share_gradients=False` is the
    naive step, for comparison.

    steps: number of steps of the whole training; the `start` of a hard example is a share of them.
    None: all hard examples start at the first step. Until the first hard example starts, a step
    trains the method alone on the whole batch.
    accumulate: number of micro-batches of a pass. Their gradients add up to those of the whole
    batch; pseudo-labels and hard examples are made of all images of this process, as without it.
    Raises ConfigError if the shares of the batch do not fit, UserError if the method lacks a
    batch-norm branch.
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
        shares = onsets(given)
        self.hard_examples = {name: given[name] for name in shares}
        self._planned = _first_steps(shares, steps or 0)
        self.starts = dict(self._planned)
        self.config.check(self.hard_examples, method)
        check_branches(method, set(branches(self.hard_examples)))
        declared = (hard.branches() for hard in self.hard_examples.values())
        self._branches = {MAIN.name}.union(*declared)
        self.clean_score = Score(method, autocast, True, accumulate)
        self.score = Score(method, autocast, accumulate=accumulate)
        self.share_gradients = share_gradients
        self._clean: Tensor | None = None
        self._labels: PseudoLabels | None = None
        self._checked: set[str] = set()

    def present(self, step: int | None = None) -> dict[str, HardExample]:
        """Return the hard examples that have started at a step, each after its source; None: all.

        A hard example starts at the first step k of K with k / K ≥ `start`, but not before its
        source. `stretch` moves these steps.
        """
        if step is None or self.steps is None:
            return self.hard_examples
        started = {name for name, first in self.starts.items() if step >= first}
        return {name: hard for name, hard in self.hard_examples.items() if name in started}

    def stretch(self, step: int, when: Callable[[int], int]) -> None:
        """Move the starts of hard examples that have not started before `step`, and the end of the
        method's schedules, because the length of the training has changed.

        when: returns the new step of a planned step; it must not decrease.
        """
        if self.steps is not None:
            self.method.total_steps = when(self.steps)
        for name, planned in self._planned.items():
            if self.starts[name] >= step:
                self.starts[name] = max(step, when(planned))

    def plan(self, step: int | None = None) -> StepPlan:
        """Return the terms of a step with their images and weights; None: after all hard examples
        have started."""
        return self.config.plan(self.present(step), self.hard_examples)

    def starting(self, step: int) -> list[str]:
        """Return the hard examples whose training starts at this step; empty at the first step of
        the run."""
        before = trained(self.present(step - 1)) if step else self.hard_examples
        return [name for name in trained(self.present(step)) if name not in before]

    def losses(self, batch: Batch) -> Iterator[Term]:
        """Yield the terms of a step; back-propagate each term before asking for the next.

        Raises ConfigError if the batch has more or fewer views than the method accepts. Raises
        UserError if pixels of the first batch are not in [0, 1] (later batches are not checked), or
        if a term that a hard example needs was not back-propagated.
        """
        # check the views, and the pixels of the first batch
        check_views(len(batch.crops), *self.method.num_views)
        if STD not in self._checked:
            batch.check_values()
            self._checked.add(STD)
        # initialise the batch-norm branches that are first used now with copies of the main one
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
        """Yield std, then each hard example, each with its own pass on the first images of the
        batch."""
        # embed the clean views; keep their input gradient if an attack can use it
        anchors = self.method.anchors(batch)
        crops = tuple(crop[rows[STD]] for crop in anchors)
        crops = self._watched(plan, STD, MAIN, crops)
        batches = MicroBatches(self.score, crops, MAIN)
        # apart: each micro-batch has a term of its own, which needs no embedding of all images
        apart = self.method.loss_per_image and batches.several and batch.known
        alone = apart and not self.method.labels_from_embedding
        embedding = None if alone else batches.embedding()
        # make the pseudo-labels of all images
        detached = None
        if embedding is not None and len(crops[0]) == len(batch):
            detached = embedding.detach()
        labels = self._pseudo_labels(batch, detached)
        self._labels = labels
        # yield the loss of the clean views
        everything = clean_example(self.clean_score, anchors, labels)
        clean = replace(everything.select(rows[STD]), crops=crops)
        yield from self._terms(plan, {STD: clean}, batches, embedding)
        del embedding
        # the trainer has called `backward` on the clean term, so its crops have gradients
        made = {STD: _with_gradient(clean)}
        for name in plan.weights:
            if name == STD:
                continue
            # make the hard example from its source, with the gradient of the source's pass
            example = self._example(batch, name, rows[name], made, everything)
            crops = self._watched(plan, name, example.branch, example.crops)
            example = replace(example, crops=crops)
            # embed its views and yield its loss
            batches = MicroBatches(self.score, crops, example.branch)
            apart = self.method.loss_per_image and batches.several
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
        """Yield one term per pass, on disjoint parts of the batch, so that HEXA costs as much as
        its baseline.

        Parts with the same branch share a pass; parts with the large crops alone get their own
        pass.
        """
        # make the pseudo-labels of all images, and each example on its part of the batch
        labels = self._pseudo_labels(batch, None)
        everything = clean_example(self.clean_score, self.method.anchors(batch), labels)
        passes: dict[tuple[Branch, int], dict[str, Example]] = {}
        for name, part in rows.items():
            example = self._example(batch, name, part, {}, everything)
            passes.setdefault((example.branch, len(example.crops)), {})[name] = example
        self._labels = labels
        for (branch, _), together in passes.items():
            # embed the parts of a branch together, and yield the sum of their losses
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
        """Yield the terms of a pass.

        Without micro-batches, the pass has one term. With micro-batches and no `embedding` of all images, each
        micro-batch has a term. With both, the loss of all images is followed by the gradient of each micro-batch.
        """
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
        """Yield a term for each micro-batch, weighted by its share of the images; the last term has the `Part` of all images."""
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
        """Return Σ weight · mean loss of these examples, whose embeddings are [V, b, D]."""
        weighted = list[Tensor]()
        parts = dict[str, Part]()
        for (name, example), embedding in zip(examples.items(), embeddings, strict=True):
            loss = example.score.of(embedding, example.mixture).mean()
            if torch.is_grad_enabled() and not loss.requires_grad:
                remedy = "compute it from the embedding, without detach"
                raise UserError(f"{type(self.method).__name__}.loss has no gradient; {remedy}")
            weighted.append(plan.weights[name] * loss)
            parts[name] = self._part(name, loss, embedding, example)
        alone = self.score.accumulate == 1 and not self.config.split
        last = alone and list(plan.weights)[-1] in examples
        return Term(torch.stack(weighted).sum(), parts, last)

    def commit(self, batch: Batch) -> None:
        """Update the method's state from this step; call it once, after the optimizer's step.

        Raises UserError without a step to commit.
        """
        if self._clean is None:
            raise UserError(
                "Objective.commit: no step to commit; iterate over Objective.losses(batch) first, "
                "and commit once per step"
            )
        self.method.commit(batch, self._clean, self._labels)
        self._clean = None
        self._labels = None

    def examples(self, batch: Batch) -> dict[str, Example]:
        """Return the clean example and every hard example of the whole batch, for visualisation;
        each uses extra passes.

        Gradients and the query's statistics do not change. Computing pseudo-labels updates
        statistics as in any step.
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
            labels = self.method.pseudo_labels(batch, embedding)
        if not isinstance(labels, PseudoLabels):
            name = f"{type(self.method).__name__}.pseudo_labels"
            raise UserError(f"{name} returned {type(labels).__name__}; return PseudoLabels")
        return labels

    def _example(
        self,
        batch: Batch,
        name: str,
        rows: slice,
        made: Mapping[str, Example],
        everything: Example,
    ) -> Example:
        """Return example `name` for `rows`: reuse the one that a previous term built, or create
        it."""
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
        """Make the hard example `name` from its source, to be trained with the method's loss for
        hard examples."""
        if not self.share_gradients:
            source = replace(source, shared_gradient=None)
        made = self.hard_examples[name](source, batch.stream.child("hard example", name))
        check_made(name, made, source, self._branches, values=name not in self._checked)
        self._checked.add(name)
        return replace(made, score=self.score) if made.score is self.clean_score else made

    def _watched(
        self,
        plan: StepPlan,
        name: str,
        branch: Branch,
        crops: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """Return the crops of a pass; with `requires_grad` if a hard example of `name` can use the
        input gradient."""
        if self.share_gradients:
            for taker in needed(plan.present):
                hard = plan.present[taker]
                wanted = hard.gradient_of_source
                if hard.source == name and wanted is not None and wanted.normalizes_as(branch):
                    return tuple(crop.detach().requires_grad_() for crop in crops)
        return crops


def _first_steps(shares: Mapping[str, float], steps: int) -> dict[str, int]:
    """Return the first step k of each hard example with k / steps ≥ its share; it is left out if
    there is none."""
    first = {}
    for name, share in shares.items():
        first[name] = bisect_left(range(steps), share, key=lambda step: step / steps)
    return {name: step for name, step in first.items() if step < steps}


def clean_example(
    score: Score,
    anchors: tuple[Tensor, ...],
    labels: PseudoLabels,
) -> Example:
    """Return the anchors [B, 3, S_v, S_v] as an example of their own pseudo-labels."""
    ones = torch.ones(len(anchors), len(anchors[0]), device=anchors[0].device)
    return Example(anchors, ((labels, ones),), score)


def _with_gradient(example: Example) -> Example:
    """Return the example with the input gradient from its backward pass, and with detached
    crops."""
    if not example.crops[0].requires_grad:
        return example
    left = tuple(crop.grad for crop in example.crops if crop.grad is not None)
    if len(left) < len(example.crops):
        raise UserError(
            "Objective.losses: a term has no gradient; call term.loss.backward() before you ask for "
            "the next term"
        )
    crops = tuple(crop.detach() for crop in example.crops)
    return replace(example, crops=crops, shared_gradient=left)
