"""MoCo against the published iteration written out (F4)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from hexa.core import MAIN, Batch
from hexa.methods.moco import MoCo
from tests.laws.cases import BATCH, SIZE, Case, batch, one_step


def moco(**fields: object) -> MoCo:
    return Case("moco", fields).build()


def test_moco_iteration() -> None:
    """Logits [B, 1+K] by concatenation, target column 0, FIFO queue, EMA of parameters only, plain SGD.

    A further view is one more query, with the key of the second view; the loss is the mean over queries.
    """
    ours = moco(bn_groups=1)
    theirs = moco(bn_groups=1)
    objective = Case("moco", {"bn_groups": 1}).objective(ours)
    optimizer = torch.optim.SGD([p for p in ours.parameters() if p.requires_grad], lr=0.1)
    assert ours.chance_loss == pytest.approx(math.log(33), rel=1e-6)
    query = theirs.query
    key = theirs.key
    queue = theirs.queue.T.clone()
    pointer = 0
    for step in range(6):
        data = batch(step, sizes=(SIZE, SIZE, 8))
        one_step(objective, optimizer, data)

        losses = []
        with torch.no_grad():
            k = F.normalize(key(data.crops[1]))
        for crop in (data.crops[0], data.crops[2]):
            q = F.normalize(query(crop))
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone()], 1)
            assert logits.shape == (BATCH, 1 + 32)
            losses.append(F.cross_entropy(logits / 0.2, torch.zeros(BATCH, dtype=torch.long)))
        loss = sum(losses) / 2
        query.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in query.parameters():
                p -= 0.1 * p.grad
            for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                slow.mul_(0.999).add_(fast, alpha=0.001)
        queue[:, pointer : pointer + BATCH] = k.T
        pointer = (pointer + BATCH) % 32
        assert int(ours.queue_pointer) == pointer
        torch.testing.assert_close(ours.queue, queue.T)
    for name, value in ours.query.state_dict().items():
        torch.testing.assert_close(value, query.state_dict()[name])
    for name, value in ours.key.state_dict().items():
        torch.testing.assert_close(value, key.state_dict()[name])
    assert not torch.equal(ours.key.backbone.bn1.running_mean, ours.query.backbone.bn1.running_mean)


def test_moco_symmetric_loss() -> None:
    """The symmetric loss adds the swapped roles and enqueues both."""
    method = moco(symmetric=True, bn_groups=1)
    one_way = moco(bn_groups=1)
    data = batch()
    swapped = Batch(data.crops[::-1], data.index, data.stream)
    embedding = method.embed(method.anchors(data), MAIN)
    labels = method.pseudo_labels(data, None)
    both = method.loss(embedding, labels).mean()
    both_ways = [
        (one_way.embed(one_way.anchors(d), MAIN), one_way.pseudo_labels(d, None))
        for d in (data, swapped)
    ]
    parts = [one_way.loss(*given).mean() for given in both_ways]
    torch.testing.assert_close(both, parts[0] + parts[1])
    method.commit(data, embedding.detach(), labels)
    expected = labels.keys.reshape(2 * BATCH, -1)
    torch.testing.assert_close(method.queue[: 2 * BATCH], expected)
    assert int(method.queue_pointer) == 2 * BATCH


def test_moco_key_shuffle() -> None:
    """Split BN with shuffling: every key is normalised with the statistics of its shuffled group (F5)."""
    method = moco(bn_groups=2)
    data = batch()
    labels = method.pseudo_labels(data, None)
    order = torch.randperm(BATCH, generator=data.stream.child("key shuffle", 0).generator())
    expected = torch.empty_like(labels.keys[0])
    plain = moco(bn_groups=1)
    for group in order.chunk(2):
        with torch.no_grad():
            expected[group] = F.normalize(plain.key(data.crops[1][group]))
    torch.testing.assert_close(labels.keys[0], expected)
    assert not torch.allclose(labels.keys[0], F.normalize(plain.key(data.crops[1])))
    assert not torch.equal(order, torch.arange(BATCH))


def by_hand(
    method: MoCo, query: torch.Tensor, permutation: torch.Tensor, share: float, kind: str
) -> torch.Tensor:
    """Cross-entropy of each mixed query against its written-out dictionary and soft label (F16)."""
    keys = method.pseudo_labels(batch(), None).keys[0]
    losses = []
    for i, j in enumerate(permutation.tolist()):
        columns = {
            "separate": ([i], [j]),
            "pair": 2 * (sorted({i, j}),),
            "batch": 2 * (range(BATCH),),
        }[kind]
        terms = []
        for own, shown in zip((i, j), columns, strict=True):
            dictionary = torch.cat([keys[list(shown)], method.queue])
            terms.append(
                -(dictionary @ query[i] / method.config.temperature).log_softmax(0)[
                    list(shown).index(own)
                ]
            )
        losses.append(share * terms[0] + (1 - share) * terms[1])
    return torch.stack(losses)


@pytest.mark.parametrize("kind", ["separate", "pair", "batch"])
def test_moco_mixed_positives(kind: str) -> None:
    method = moco(bn_groups=1, mixed_positives=kind)
    permutation = torch.tensor([1, 0, 2, 5, 3, 4, 7, 6])
    query = method.embed(method.anchors(batch()), MAIN).detach()
    own, other = method.pseudo_labels(batch(), None).mixed(permutation)
    ours = 0.7 * method.loss(query, own) + 0.3 * method.loss(query, other)
    expected = by_hand(method, query[0], permutation, 0.7, kind)
    torch.testing.assert_close(ours[0], expected)
