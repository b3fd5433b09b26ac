"""SimCLR against a loop over anchors and against lightly (F6, F16)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hexa.core import MAIN, Branch
from hexa.methods.simclr import SimCLR, SimCLRConfig, SimCLRLabels
from tests.methods.setting import BATCH, batch, small
from tests.ops.test_contrastive import unit

TAU = 0.3


def method(**fields: object) -> SimCLR:
    config = SimCLRConfig(dim=6, temperature=TAU, **fields)  # type: ignore[arg-type]
    return small(config, branches=("main", "aux"))


def naive(query: Tensor, dictionary: Tensor, positive: list[int], hidden: list[set[int]]) -> Tensor:
    """F6 and §5.7 anchor by anchor; hidden: images whose clean view of the anchor's own kind is masked."""
    losses = torch.zeros(2, BATCH, dtype=torch.float64)
    for view in range(2):
        for i in range(BATCH):
            terms = [
                torch.exp(query[view, i] @ dictionary[other, m] / TAU)
                for other in range(2)
                for m in range(BATCH)
                if not (other == view and m in hidden[i])
            ]
            cosine = query[view, i] @ dictionary[1 - view, positive[i]]
            own = torch.exp(cosine / TAU)
            losses[view, i] = -torch.log(own / sum(terms))
    return losses


def labels_of(made: SimCLR, embedding: Tensor) -> SimCLRLabels:
    return made.pseudo_labels(batch(12, 12), embedding)


def nt_xent() -> torch.nn.Module:
    """lightly's loss; skips the test where lightly cannot be imported."""
    return pytest.importorskip("lightly.loss").NTXentLoss(temperature=TAU)


def test_simclr_clean_loss() -> None:
    """The clean loss is lightly's, with its gradient."""
    made = method()
    # lightly's normalises, so both gradients are those of what is normalised
    ours, theirs = (2 * unit(2, BATCH, 6).requires_grad_() for _ in range(2))
    ours.retain_grad()
    theirs.retain_grad()
    normed = torch.nn.functional.normalize(ours, dim=-1)
    found = made.clean_loss(normed, labels_of(made, normed.detach())).mean()
    expected = nt_xent()(theirs[0], theirs[1])
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_simclr_hard_query() -> None:
    """A query is compared with the clean batch, but not with itself."""
    made = method()
    clean = unit(2, BATCH, 6)
    query = unit(2, BATCH, 6, seed=1).requires_grad_()
    found = made.loss(query, labels_of(made, clean))
    every = list(range(BATCH))
    expected = naive(query, clean, every, [{i} for i in every])
    torch.testing.assert_close(found, expected)


def test_simclr_twice_mixed_views() -> None:
    """Views that are mixed twice exclude all images that they show."""
    made = method()
    clean = unit(2, BATCH, 6)
    query = unit(2, BATCH, 6, seed=1)
    once = torch.tensor([1, 0, 2, 3])
    again = torch.tensor([2, 3, 0, 1])
    partner = once.tolist()
    other_image = again.tolist()
    labels = labels_of(made, clean)
    for position, mixed in enumerate(labels.mixed(once)):
        first, second = mixed.mixed(again)
        shown = []
        for i in range(BATCH):
            other = other_image[i]
            shown.append({i, partner[i], other, partner[other]})
        own = [i if position == 0 else partner[i] for i in range(BATCH)]
        found = made.loss(query, first)
        expected = naive(query, clean, own, shown)
        torch.testing.assert_close(found, expected)
        others = [own[i] for i in other_image]
        found = made.loss(query, second)
        expected = naive(query, clean, others, shown)
        torch.testing.assert_close(found, expected)


def test_simclr_single_view() -> None:
    """A single large view is a query too."""
    made = method()
    clean = unit(2, BATCH, 6)
    query = unit(2, BATCH, 6, seed=1)
    labels = labels_of(made, clean)
    found = made.loss(query[:1], labels)
    expected = made.loss(query, labels)[:1]
    torch.testing.assert_close(found, expected)
    alone = made.correct(query[:1], labels)
    both = made.correct(query, labels)
    torch.testing.assert_close(alone, both[:1])


def test_simclr_joint_term() -> None:
    """Joint compares adversarial views with each other."""
    made = method(adversarial_terms="joint")
    query = unit(2, BATCH, 6, seed=1)
    labels = labels_of(made, unit(2, BATCH, 6))
    found = made.loss(query, labels).mean()
    expected = nt_xent()(query[0], query[1])
    torch.testing.assert_close(found, expected)
    mixed, _ = labels.mixed(torch.arange(BATCH))
    found = made.loss(query, mixed)
    as_queries = method().loss(query, mixed)
    torch.testing.assert_close(found, as_queries)


def test_simclr_clae_term() -> None:
    made = method(adversarial_terms="clae")
    data = batch(12, 12)
    clean = made.embed(data.crops, MAIN).detach()
    labels = made.pseudo_labels(data, clean)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    attacked = tuple((crop + 0.01).clamp(0, 1) for crop in data.crops)
    aux = Branch("aux", update=False)
    embedding = made.embed(attacked, aux)
    made.loss(embedding, labels).mean().backward()
    found = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    made.zero_grad()
    query = made.embed(attacked, aux)
    still = made.embed(data.crops, replace(MAIN, update=False))
    losses = [nt_xent()(still[v], query[v]) for v in range(2)]
    (sum(losses) / 2).backward()
    assert found.keys() == {name for name, p in made.named_parameters() if p.grad is not None}
    for name, p in made.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(found[name], p.grad)
