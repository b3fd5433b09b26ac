"""PCL-v2 against its equations written out image by image, its warm-up, and its state."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.core import MAIN, Batch
from hexa.methods.pcl import PCL, PCLConfig, PCLLabels
from hexa.ops.proto_nce import concentrations
from hexa.runtime.random import Stream
from tests.methods.setting import small

DATA = 23
BATCH = 4
SIZE = 12
CLUSTERS = (15, 3)
STEPS = DATA // BATCH


def method(warmup_epochs: int = 0, **fields: object) -> PCL:
    values = {"num_clusters": CLUSTERS, "num_negatives": 4, "warmup_epochs": warmup_epochs}
    contrast = {"queue_size": 16, "dim": 6, **fields}
    return small(PCLConfig.model_validate(values | {"contrast": contrast}), data_size=DATA)


def test_pcl_notes() -> None:
    """A run as short as the warm-up is announced."""
    assert [len(method(warmup_epochs=epochs).notes()) for epochs in (0, 1)] == [1, 2]


def batch(step: int = 0) -> Batch:
    stream = Stream(3).child("step", step)
    generator = stream.child("pixels").generator()
    crops = tuple(
        torch.rand(BATCH, 3, SIZE, SIZE, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    return Batch(crops, torch.tensor([4, 20, 9, 0]), stream, step)


class Data:
    """All images but those of `missing`, in batches of five."""

    labels = torch.arange(DATA) % 3

    def __init__(self, missing: tuple[int, ...] = ()) -> None:
        self.stream = Stream(5).child("epoch")
        self.missing = missing

    def views(self) -> Iterator[Batch]:
        raise AssertionError("PCL clusters images as evaluation sees them")

    def images(self) -> Iterator[Batch]:
        pixels = torch.rand(
            DATA, 3, SIZE, SIZE, generator=self.stream.generator(), dtype=torch.float64
        )
        seen = torch.tensor([image for image in range(DATA) if image not in self.missing])
        for number, part in enumerate(seen.split(5)):
            yield Batch((pixels[part],), part, self.stream.child("batch", number), number)


def of_clustering(made: PCL, number: int) -> tuple[Tensor, Tensor]:
    """Return centroids and concentrations, computed by counting rows."""
    begin = sum(CLUSTERS[:number])
    part = slice(begin, begin + CLUSTERS[number])
    return made.centroids[part], made.concentrations[part]


def test_pcl_momentum_features() -> None:
    """All images are clustered by momentum features with running statistics."""
    made = method()
    made.train()
    for step in range(
        2
    ):  # so that the key encoder differs from the query's, and statistics from their start
        data = batch(step)
        made.commit(data, None, made.pseudo_labels(data, None))
    for p in made.contrast.key.parameters():
        p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    key = copy.deepcopy(made.contrast.key).eval()
    before = copy.deepcopy(made.contrast.state_dict())
    facts = made.start_epoch(0, Data())
    pixels = torch.cat([part.crops[0] for part in Data().images()])
    with torch.no_grad():
        features = F.normalize(key(pixels))
    for number, count in enumerate(CLUSTERS):
        centroids, found = of_clustering(made, number)
        torch.testing.assert_close(centroids.norm(dim=1), torch.ones(count, dtype=torch.float64))
        table = made.clusters[number].long()
        assert torch.equal(table, (features @ centroids.T).argmax(1))
        torch.testing.assert_close(found, concentrations(features, centroids, table, 0.2))
        for k in range(count):  # the centroid of its rows, up to the last assignment
            if bool((table == k).any()):
                assert float(F.normalize(features[table == k].sum(0), dim=0) @ centroids[k]) > 0.99
    assert all(
        torch.equal(value, before[name]) for name, value in made.contrast.state_dict().items()
    )
    assert all(module.training for module in made.modules())
    assert "clusters/nmi_previous" not in facts
    assert made.start_epoch(1, Data())["clusters/nmi_previous"] == pytest.approx(1)


def by_hand(made: PCL, query: Tensor, image: int, labels: PCLLabels) -> float:
    """InfoNCE + mean of ProtoNCE of one query [D], with the cluster of `image` looked up in the table."""
    parts = []
    for number, compared in enumerate(labels.compared):
        centroids, phi = of_clustering(made, number)
        own = int(made.clusters[number, image])
        scores = {
            j: math.exp(float(query @ centroids[j]) / float(phi[j])) for j in compared.tolist()
        }
        parts.append(
            -math.log(
                scores[own] / (scores[own] + sum(score for j, score in scores.items() if j != own))
            )
        )
    return sum(parts) / len(parts)


@pytest.mark.parametrize("symmetric", [False, True])
def test_pcl_loss(symmetric: bool) -> None:
    """The loss is InfoNCE plus the mean of ProtoNCE."""
    made = method(symmetric=symmetric)
    made.start_epoch(0, Data())
    data = batch()
    labels = made.pseudo_labels(data, None)
    assert [len(compared) for compared in labels.compared] == [
        8,
        3,
    ]  # r = 4 and a batch of 4; all there are
    embedding = made.embed(made.anchors(data), MAIN).detach()
    found = made.loss(embedding, labels)
    views = len(embedding)
    assert views == 1 + symmetric
    for view in range(views):
        for place, image in enumerate(data.index.tolist()):
            query = embedding[view, place]
            key = labels.contrast.keys[view, place]
            scores = [math.exp(float(query @ other) / 0.2) for other in (key, *made.contrast.queue)]
            expected = -math.log(scores[0] / sum(scores)) + by_hand(made, query, image, labels)
            assert float(found[view, place]) == pytest.approx(views * expected, rel=1e-12)


def test_pcl_negative_draws() -> None:
    """Negatives are drawn once per step."""
    made = method()
    made.start_epoch(0, Data())
    drawn = set()
    for step in range(20):
        data = batch(step)
        first = made.pseudo_labels(data, None).compared[0]
        assert torch.equal(first, made.pseudo_labels(data, None).compared[0])
        drawn.add(frozenset(first.tolist()))
    assert len(drawn) > 10


def test_pcl_warmup() -> None:
    """In the warm-up there is no clustering, and the loss equals MoCo's bit for bit; prototypes
    follow from the next step on."""
    made = method(warmup_epochs=2)
    before = copy.deepcopy(made.state_dict())
    assert made.start_epoch(1, Data()) == {}
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    for step, clustered in ((0, False), (2 * STEPS - 1, False), (2 * STEPS, True)):
        if clustered:
            assert made.start_epoch(2, Data())
        labels = made.pseudo_labels(batch(step), None)
        assert len(labels.compared) == 2 * clustered
        embedding = made.embed(made.anchors(batch(step)), MAIN)
        loss = made.loss(embedding, labels)
        instance = made.contrast.loss(embedding, labels.contrast)
        assert torch.equal(loss, instance) != clustered
        assert torch.equal(
            made.correct(embedding, labels), made.contrast.correct(embedding, labels.contrast)
        )


def test_pcl_unassigned_images() -> None:
    """Images without a cluster do not change the mean over the others."""
    made = method()
    made.start_epoch(0, Data(missing=(9, 17)))
    assert (made.clusters[:, [9, 17]] == -100).all()
    found = int((made.clusters >= 0).sum())
    assert found == 2 * (DATA - 2)
    data = batch()
    labels = made.pseudo_labels(data, None)
    embedding = made.embed(made.anchors(data), MAIN)
    ours = made.loss(embedding, labels) - made.contrast.loss(embedding, labels.contrast)
    seen = [place for place, image in enumerate(data.index.tolist()) if image != 9]
    expected = [
        by_hand(
            made,
            embedding[0, p].detach(),
            int(data.index[p]),
            labels,
        )
        for p in seen
    ]
    assert float(ours.mean().detach()) == pytest.approx(sum(expected) / 3, rel=1e-12)
    labels = made.pseudo_labels(
        replace(data, index=torch.tensor([9, 17, 9, 17])),
        None,
    )
    loss = made.loss(embedding, labels)
    instance = made.contrast.loss(embedding, labels.contrast)
    assert torch.equal(loss, instance)
    assert bool(torch.autograd.grad(loss.mean(), embedding)[0].isfinite().all())


def test_pcl_mixed_labels() -> None:
    """Mixing mixes both kinds of pseudo-label."""
    made = method()
    made.start_epoch(0, Data(missing=(9,)))
    data = batch()
    labels = made.pseudo_labels(data, None)
    order = torch.tensor([2, 1, 3, 0])
    embedding = made.embed(made.anchors(data), MAIN).detach()
    first, second = labels.mixed(order)
    mixed = 0.7 * made.loss(embedding, first) + 0.3 * made.loss(embedding, second)
    instance = [
        made.contrast.loss(embedding, part) for part in (labels.contrast, labels.contrast[order])
    ]
    for place in range(BATCH):
        expected = 0.0
        for share, image, part in zip(
            (0.7, 0.3), (place, int(order[place])), instance, strict=True
        ):
            position = int(data.index[image])
            proto = 0.0 if position == 9 else by_hand(made, embedding[0, place], position, labels)
            expected += share * (float(part[0, place]) + proto * 4 / 3)
        assert float(mixed[0, place]) == pytest.approx(expected, rel=1e-12)
