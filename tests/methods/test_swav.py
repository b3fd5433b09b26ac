"""SwAV against the published iteration written out (F9)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.core import MAIN
from hexa.methods.swav import SwAV, SwAVConfig
from tests.methods.setting import BATCH, batch, small

SIZES = (12, 12, 8)
K = 5


def method(**fields: object) -> SwAV:
    config = SwAVConfig(dim=6, hidden=10, num_prototypes=K, **fields)  # type: ignore[arg-type]
    return small(config, 3)


def published_codes(scores: Tensor) -> Tensor:
    """Sinkhorn as the published code words it: Q [K, B], every constant written out."""
    q = torch.exp(scores / 0.05).T
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(1, keepdim=True) / q.shape[0]
        q = q / q.sum(0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


def test_swav_loss_and_codes() -> None:
    made = method()
    data = batch(*SIZES)
    embedding = made.embed(data.crops, MAIN)
    labels = made.pseudo_labels(data, embedding.detach())
    scores = embedding @ made.prototypes.weight.T
    total = torch.zeros((), dtype=torch.float64)
    for code in (0, 1):
        q = published_codes(scores[code].detach())
        torch.testing.assert_close(labels.codes[code], q)
        others = [view for view in range(3) if view != code]
        losses = []
        for view in others:
            likely = F.log_softmax(scores[view] / 0.1, 1)
            losses.append(-(q * likely).sum(1).mean())
        total = total + sum(losses) / len(others) / 2
    torch.testing.assert_close(made.loss(embedding, labels).mean(), total)


def test_swav_prototypes() -> None:
    """Prototypes are unit before every step, and frozen at first."""
    made = method(freeze_prototypes_steps=1)
    for step in range(2):
        data = batch(*SIZES, step=step)
        found = made.prototypes.weight.norm(dim=1)
        expected = torch.ones(K, dtype=torch.float64)
        torch.testing.assert_close(found, expected)
        embedding = made.embed(data.crops, MAIN)
        labels = made.pseudo_labels(data, embedding.detach())
        made.loss(embedding, labels).mean().backward()
        assert (made.prototypes.weight.grad is None) == (step == 0)
        with torch.no_grad():
            made.prototypes.weight.mul_(3)
        made.commit(data, embedding.detach(), labels)


def test_swav_queue() -> None:
    """The queue helps once it is full and holds the newest clean embeddings."""
    # from step 4 on, full at step 6
    made = method(queue_size=2 * BATCH + 1, queue_start_epoch=1)
    kept: list[Tensor] = []
    for step in range(9):
        data = batch(*SIZES, step=step)
        with torch.no_grad():
            embedding = made.embed(data.crops, MAIN)
        labels = made.pseudo_labels(data, embedding)
        rows = [embedding[:2]]
        if step >= 6:
            rows += kept[-2:]
        for crop in (0, 1):
            every = torch.cat([part[crop] for part in rows])
            scores = every @ made.prototypes.weight.T
            expected = published_codes(scores)
            torch.testing.assert_close(labels.codes[crop], expected[:BATCH])
        made.commit(data, embedding, labels)
        if step >= 4:
            kept.append(embedding[:2])
    assert made.queue.shape == (2, 2 * BATCH, 6)


def test_swav_large_crop_attack() -> None:
    """The attack on large crops alone is two-crop SwAV."""
    made = method()
    data = batch(*SIZES)
    embedding = made.embed(data.crops, MAIN).detach()
    labels = made.pseudo_labels(data, embedding)
    scores = embedding @ made.prototypes.weight.T
    likely = F.log_softmax(scores / 0.1, -1)
    first = -(labels.codes[1] * likely[0]).sum(1)
    second = -(labels.codes[0] * likely[1]).sum(1)
    found = made.loss(embedding[:2], labels)
    torch.testing.assert_close(found, torch.stack([first, second]))
    alone = made.loss(embedding[:1], labels)
    torch.testing.assert_close(alone, first[None])
