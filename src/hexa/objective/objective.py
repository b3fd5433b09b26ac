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
from hexa.objective.shares import STD, ObjectiveConfig, branches, needed, onsets, trained
from hexa.objective.term import Part, Term


class Objective:
    """A method with its hard examples.

    >>> for term in objective.losses(batch):      # one graph alive at a time      # doctest: +SKIP
    ...     term.loss.backward()
    >>> optimizer.step(); objective.commit(batch)                                  # doctest: +SKIP

    The clean backward yields ∂L_std/∂x on the way, which is all that a one-step attack through the same pass needs: it
    costs no pass of its own. `share_gradients=False` is the naive step, for comparison.

    steps: the length of the whole training, of which the `start` of a hard example is a share; None: all are there from
    the first step, whatever they say. Until the first sets in, a step is that of the method alone on the whole batch.
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
    ) -> None:
        self.method = method
        self.config = config or ObjectiveConfig()
        self.steps = steps
        self._onsets = onsets(hard_examples or {})
        self.hard_examples = {name: (hard_examples or {})[name] for name in self._onsets}
        self.config.check(self.hard_examples, method)
        check_branches(method, set(branches(self.hard_examples)))
        self.clean_score = Score(method, autocast, clean=True)
        self.score = self.clean_score.hard
        self.share_gradients = share_gradients
        self._remembered: tuple[Tensor, PseudoLabels] | None = None
        self._checked: set[str] = set()

    def present(self, step: int | None = None) -> dict[str, HardExample]:
        """The hard examples that have set in at a step, each after its source; None: all of them.

        One sets in at the first step k of K with k / K ≥ `start`, and not before its source.
        """
        if step is None or self.steps is None:
            return self.hard_examples
        share = step / self.steps
        return {n: hard for n, hard in self.hard_examples.items() if share >= self._onsets[n]}

    def shares(self, step: int | None = None) -> dict[str, float]:
        """The share of the batch of every term that is trained on in a step, by name; None: when all are there.

        Before the first hard example sets in, the whole batch is clean. With `split`, one that has not set in yet gives
        its part of the batch to the clean term.
        """
        every = self.config.shares(self.hard_examples)
        there = trained(self.present(step))
        shares = {name: every[name] for name in (STD, *there)}
        if not there:
            shares[STD] = 1.0
        elif self.config.split:
            shares[STD] += sum(share for name, share in every.items() if name not in shares)
        return shares

    def weights(self, step: int | None = None) -> dict[str, float]:
        """The weight of every term that is trained on in a step, by name; None: when all are there.

        With `split` a term's weight is multiplied by its share of the images, so that weights of 1 give the mean over
        the batch.
        """
        hard = self.present(step)
        others = {name: hard[name].weight for name in trained(hard)}
        raw = {STD: 1.0} | others
        if self.config.split:
            shares = self.shares(step)
            raw = {
                name: weight * shares[name] / sum(shares.values()) for name, weight in raw.items()
            }
        total = sum(raw.values()) if self.config.reduction == "mean" else 1.0
        return {name: weight / total for name, weight in raw.items()}

    def setting_in(self, step: int) -> list[str]:
        """The hard examples that are trained on from this step on, which is not the first."""
        before = trained(self.present(step - 1)) if step else self.hard_examples
        return [name for name in trained(self.present(step)) if name not in before]

    def losses(self, batch: Batch) -> Iterator[Term]:
        """Yield the terms of a step; each must be back-propagated before the next is asked for.

        Raises ConfigError for a batch with more or fewer views than the method takes, and UserError if pixels of the
        first batch are not in [0, 1]; later batches are not looked at.
        """
        check_views(len(batch.crops), *self.method.num_views)
        if STD not in self._checked:
            batch.check_values()
            self._checked.add(STD)
        rows = self.config.rows(self.shares(batch.step), len(batch))
        if self.setting_in(batch.step):
            for branch in sorted(
                set(branches(self.present(batch.step)))
                - set(branches(self.present(batch.step - 1)))
            ):
                self.method.open_branch(branch)
        self._remembered = None
        return (
            self._split(batch, rows)
            if self.config.split and len(rows) > 1
            else self._one_by_one(batch, rows)
        )

    def _one_by_one(self, batch: Batch, rows: Mapping[str, slice]) -> Iterator[Term]:
        """std -> hard examples, each in a pass of its own on the first images of the batch."""
        anchors = self.method.anchors(batch)
        crops = self._watched(batch, STD, MAIN, tuple(crop[rows[STD]] for crop in anchors))
        embedding = self.score.embed(crops, MAIN)
        labels = self._pseudo_labels(
            batch, embedding.detach() if len(crops[0]) == len(batch) else None
        )
        self._remembered = (embedding.detach(), labels)
        everything = clean_example(self.clean_score, anchors, labels)
        clean = replace(everything.select(rows[STD]), crops=crops)
        yield self._term(batch, {STD: clean}, [embedding])
        del embedding
        made = {STD: _with_gradient(clean)}
        for name, part in rows.items():
            if name != STD:
                example = self._example(batch, name, part, made, everything)
                example = replace(
                    example, crops=self._watched(batch, name, example.branch, example.crops)
                )
                yield self._term(
                    batch, {name: example}, [self.score.embed(example.crops, example.branch)]
                )
                made[name] = _with_gradient(example)

    def _split(self, batch: Batch, rows: Mapping[str, slice]) -> Iterator[Term]:
        """Disjoint parts of the batch, and one pass for all parts of a branch: HEXA at the price of its baseline.

        Parts that have the large crops alone get a pass of their own.
        """
        labels = self._pseudo_labels(batch, None)
        everything = clean_example(self.clean_score, self.method.anchors(batch), labels)
        passes: dict[tuple[Branch, int], dict[str, Example]] = {}
        for name, part in rows.items():
            example = self._example(batch, name, part, {}, everything)
            passes.setdefault((example.branch, len(example.crops)), {})[name] = example
        for (branch, _), together in passes.items():
            crops = tuple(
                torch.cat(parts)
                for parts in zip(*(e.crops for e in together.values()), strict=True)
            )
            pieces = torch.split(
                self.score.embed(crops, branch), [len(e) for e in together.values()], dim=1
            )
            if STD in together:  # the first of its pass
                self._remembered = (pieces[0].detach(), labels)
            yield self._term(batch, together, pieces)

    def _term(
        self, batch: Batch, examples: Mapping[str, Example], embeddings: Sequence[Tensor]
    ) -> Term:
        """Σ weight · mean loss of these examples, whose embeddings are [V, b, D]."""
        weights = self.weights(batch.step)
        weighted = list[Tensor]()
        parts = dict[str, Part]()
        for (name, example), embedding in zip(examples.items(), embeddings, strict=True):
            loss = example.score.of(embedding, example.mixture).mean()
            weighted.append(weights[name] * loss)
            parts[name] = Part(loss.detach(), embedding.detach(), example, self.method)
        return Term(torch.stack(weighted).sum(), parts)

    def commit(self, batch: Batch) -> None:
        """After the optimizer's step: the method remembers this step, once."""
        remembered = self._remembered
        self._remembered = None
        assert remembered is not None, "commit follows losses"
        self.method.commit(batch, *remembered)

    def examples(self, batch: Batch) -> dict[str, Example]:
        """The clean and every hard example of the whole batch, each made by passes of its own: for looking at.

        Leaves gradients and the query's statistics alone; making pseudo-labels moves statistics as in any step.
        """
        anchors = self.method.anchors(batch)
        with torch.no_grad():
            embedding = self.score.embed(anchors, replace(MAIN, update=False))
        made = {
            STD: clean_example(self.clean_score, anchors, self._pseudo_labels(batch, embedding))
        }
        for name, hard in self.hard_examples.items():
            made[name] = self._make(batch, name, made[hard.source])
        return made

    def _pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> PseudoLabels:
        with self.score.autocast():
            return cast(PseudoLabels, self.method.pseudo_labels(batch, embedding))

    def _example(
        self, batch: Batch, name: str, rows: slice, made: Mapping[str, Example], everything: Example
    ) -> Example:
        """The example `name` on these images: what a term left behind if it covers them, else made anew."""
        if name in made and len(made[name]) >= rows.stop:
            return made[name] if len(made[name]) == rows.stop else made[name].select(rows)
        if name == STD:
            return everything.select(rows)
        return self._make(
            batch,
            name,
            self._example(batch, self.hard_examples[name].source, rows, made, everything),
        )

    def _make(self, batch: Batch, name: str, source: Example) -> Example:
        if not self.share_gradients:
            source = replace(source, shared_gradient=None)
        hard = self.hard_examples[name]
        stream = batch.stream.child("hard example", name)
        made = hard(source, stream)
        check_made(name, made, source, values=name not in self._checked)
        self._checked.add(name)
        return replace(made, score=made.score.hard)

    def _watched(
        self, batch: Batch, name: str, branch: Branch, crops: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The crops of a pass; with `requires_grad` if what is made of `name` can use the pass's input gradient."""
        hard = self.present(batch.step)
        takers = (
            hard[other].gradient_of_source for other in needed(hard) if hard[other].source == name
        )
        wanted = any(
            b is not None and (b.name, b.training) == (branch.name, branch.training) for b in takers
        )
        if not (wanted and self.share_gradients):
            return crops
        return tuple(crop.detach().requires_grad_() for crop in crops)


def clean_example(score: Score, anchors: tuple[Tensor, ...], labels: PseudoLabels) -> Example:
    """The anchors [B, 3, S_v, S_v] as an example of their own pseudo-labels."""
    return Example(
        anchors,
        ((labels, torch.ones(len(anchors), len(anchors[0]), device=anchors[0].device)),),
        score,
    )


def _with_gradient(example: Example) -> Example:
    """After its backward: the example with the input gradient that the pass left, and crops that need none."""
    if not example.crops[0].requires_grad:
        return example
    left = tuple(crop.grad for crop in example.crops if crop.grad is not None)
    assert len(left) == len(example.crops), "back-propagate each term before asking for the next"
    return replace(
        example, crops=tuple(crop.detach() for crop in example.crops), shared_gradient=left
    )
