"""The terms of one training step, to be back-propagated one after another (REFERENCE §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hexa.core.batch import MAIN, Batch, Branch, PseudoLabels
from hexa.core.example import Example, Score
from hexa.core.hard_example import HardExample
from hexa.core.onset import needed, trained
from hexa.core.shares import STD
from hexa.core.term import Part, Term


@dataclass
class Step:
    """A batch, and what is made of it in this step.

    score: by the clean loss. hard_examples: those that have set in, as strong as they are now. weights, rows: of every
    term by name. make: makes one of them from its source. shares: whether a hard example may use the input gradient
    that training on its source leaves.
    remembered: the detached clean embedding and the pseudo-labels, for `Method.commit`, once the clean term is there.
    """

    batch: Batch
    score: Score
    hard_examples: Mapping[str, HardExample]
    weights: Mapping[str, float]
    rows: Mapping[str, slice]
    make: Callable[[str, HardExample, Example, Batch], Example]
    shares: bool
    remembered: tuple[Tensor | None, PseudoLabels] | None = None

    def one_after_another(self) -> Iterator[Term]:
        """std -> hard examples, each in a pass of its own on the first images of the batch."""
        method, rows, score = self.score.method, self.rows, self.score.hard
        whole = method.anchors(self.batch)
        anchors = tuple(crop[rows[STD]] for crop in whole)
        if self._wants_gradient(STD, MAIN):
            anchors = tuple(crop.detach().requires_grad_() for crop in anchors)
        embedding = score.embed(anchors, MAIN)
        detached = embedding.detach()
        with score.autocast():
            labels = method.pseudo_labels(self.batch, detached if len(self.batch) == len(anchors[0]) else None)
        self.remembered = (detached, labels)
        everything = clean_example(self.score, whole, labels)
        clean = replace(everything.select(rows[STD]), crops=anchors)
        loss = clean.score.of(embedding, clean.mixture).mean()
        yield self._term(STD, loss, embedding, clean)
        del embedding, loss

        made = {STD: _with_gradient(clean)}
        for name in trained(self.hard_examples):
            hard = self.hard_examples[name]
            example = self._make(name, self._source(hard.source, rows[name], made, everything))
            if self._wants_gradient(name, example.branch):
                example = replace(example, crops=tuple(crop.requires_grad_() for crop in example.crops))
            embedding = score.embed(example.crops, example.branch)
            loss = example.score.of(embedding, example.mixture).mean()
            yield self._term(name, loss, embedding, example)
            del embedding, loss
            made[name] = _with_gradient(example)

    def split(self) -> Iterator[Term]:
        """Disjoint parts of the batch, and one pass for all parts of a branch: HEXA at the price of its baseline.

        Parts that have the large crops alone get a pass of their own.
        """
        method, score = self.score.method, self.score.hard
        with score.autocast():
            labels = method.pseudo_labels(self.batch, None)
        everything = clean_example(self.score, method.anchors(self.batch), labels)
        examples = {name: self._source(name, part, {}, everything) for name, part in self.rows.items()}
        passes = {name: (example.branch, len(example.crops)) for name, example in examples.items()}
        for branch, count in dict.fromkeys(passes.values()):
            together = {name: examples[name] for name, of in passes.items() if of == (branch, count)}
            crops = tuple(torch.cat(parts) for parts in zip(*(e.crops for e in together.values()), strict=True))
            embedding = score.embed(crops, branch)
            pieces = dict(
                zip(together, torch.split(embedding, [len(e) for e in together.values()], dim=1), strict=True)
            )
            losses = {n: example.score.of(pieces[n], example.mixture).mean() for n, example in together.items()}
            if STD in together:
                self.remembered = (pieces[STD].detach(), labels)
            weighted = [self.weights[name] * loss for name, loss in losses.items()]
            yield Term(
                torch.stack(weighted).sum(),
                {name: self._part(losses[name], pieces[name], example) for name, example in together.items()},
            )

    def _source(self, name: str, rows: slice, made: Mapping[str, Example], everything: Example) -> Example:
        """The example `name` on these images: what a term left behind if it covers them, else made anew."""
        if name in made and len(made[name]) >= rows.stop:
            return made[name] if len(made[name]) == rows.stop else made[name].select(rows)
        if name == STD:
            return everything.select(rows)
        return self._make(name, self._source(self.hard_examples[name].source, rows, made, everything))

    def _make(self, name: str, source: Example) -> Example:
        return self.make(name, self.hard_examples[name], source, self.batch)

    def _wants_gradient(self, name: str, branch: Branch) -> bool:
        """Whether a hard example that is trained on can use the input gradient of the pass that trains on `name`."""
        takers = (self.hard_examples[other] for other in needed(self.hard_examples) if self.shares)
        wanted = [taker.gradient_of_source for taker in takers if taker.source == name]
        return any(b is not None and (b.name, b.training) == (branch.name, branch.training) for b in wanted)

    def _term(self, name: str, loss: Tensor, embedding: Tensor, example: Example) -> Term:
        return Term(self.weights[name] * loss, {name: self._part(loss, embedding, example)})

    def _part(self, loss: Tensor, embedding: Tensor, example: Example) -> Part:
        return Part(loss.detach(), embedding.detach(), example, self.score.method)


def clean_example(score: Score, anchors: tuple[Tensor, ...], labels: PseudoLabels) -> Example:
    """The anchors [B, 3, S_v, S_v] as an example of their own pseudo-labels."""
    one = torch.ones(len(anchors), len(anchors[0]), device=anchors[0].device)
    return Example(anchors, ((labels, one),), score)


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
