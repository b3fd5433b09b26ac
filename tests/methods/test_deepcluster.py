"""DeepCluster-v2 against the published iteration written out image by image (F8)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from hexa.core import MAIN, Batch
from hexa.hard_examples.cutmix import CutMix
from hexa.methods.deepcluster import DeepCluster, DeepClusterConfig
from hexa.objective import Objective
from hexa.ops.kmeans import UNASSIGNED
from hexa.runtime.random import Stream
from tests.laws.cases import backward
from tests.methods.setting import small

DATA = 22
BATCH = 4
SIZES = (12, 12, 8)
HEADS = (3, 4, 2)
SEEN = DATA // BATCH * BATCH


def method(**fields: object) -> DeepCluster:
    config = DeepClusterConfig(dim=6, hidden=10, num_prototypes=HEADS, **fields)  # type: ignore[arg-type]
    return small(config, data_size=DATA)


def batch(number: int, stream: Stream) -> Batch:
    generator = stream.child(number).generator()
    crops = tuple(
        torch.rand(BATCH, 3, size, size, generator=generator, dtype=torch.float64) for size in SIZES
    )
    index = torch.randperm(DATA, generator=stream.generator())[
        number * BATCH : (number + 1) * BATCH
    ]
    return Batch(crops, index, stream.child(number), number)


class Data:
    labels = torch.arange(DATA) % 3

    def __init__(self) -> None:
        self.stream = Stream(5)

    def views(self) -> Iterator[Batch]:
        return (batch(number, self.stream) for number in range(SEEN // BATCH))

    def images(self) -> Iterator[Batch]:
        raise AssertionError("DeepCluster-v2 clusters views")


def test_deepcluster_bank() -> None:
    """The bank holds clean embeddings of the crops to assign."""
    made = method()
    twin = method()
    made.start_epoch(0, Data())
    for part in Data().views():
        for crop in (0, 1):
            torch.testing.assert_close(
                made.bank.embeddings[crop, part.index], twin.embed((part.crops[crop],), MAIN)[0]
            )
    step = batch(0, Stream(9))
    objective = Objective(made, {"cutmix": CutMix()})
    embedding = backward(objective, step)["std"].embedding
    objective.commit(step)
    assert torch.equal(made.bank.embeddings[:, step.index], embedding[:2])
    assert set(made.bank.seen[:DATA].nonzero()[:, 0].tolist()) == set(step.index.tolist())


def test_deepcluster_assignments() -> None:
    """Heads cluster banks 0, 1, 0, and centroids become prototypes."""
    made = method()
    facts = made.start_epoch(0, Data())
    missing = set(range(DATA)) - {int(i) for part in Data().views() for i in part.index}
    assert len(missing) == DATA - SEEN
    for head, bank in enumerate((0, 1, 0)):
        prototypes = made.prototypes[head].weight
        table = made.clusters[head]
        torch.testing.assert_close(
            prototypes.norm(dim=1), torch.ones(HEADS[head], dtype=torch.float64)
        )
        for image in range(DATA):
            if image in missing:
                assert int(table[image]) == UNASSIGNED
            else:
                assert int(table[image]) == int(
                    (prototypes @ made.bank.embeddings[bank, image]).argmax()
                )
    assert facts["clusters/non_empty"] == 1.0
    assert 0 <= facts["clusters/nmi_labels"] <= 1
    assert "clusters/nmi_previous" not in facts
    for part in Data().views():
        with torch.no_grad():
            embedding = made.embed(part.crops, MAIN)
        made.commit(part, embedding, made.pseudo_labels(part, embedding))
    assert "clusters/nmi_previous" in made.start_epoch(1, Data())


def test_deepcluster_loss() -> None:
    """The loss is the mean over heads of cross-entropies over seen rows."""
    made = method()
    made.start_epoch(0, Data())
    missing = next(image for image in range(DATA) if int(made.clusters[0, image]) == UNASSIGNED)
    step = batch(0, Stream(3))
    step = replace(step, index=torch.tensor([missing, *step.index[1:].tolist()]))
    embedding = made.embed(step.crops, MAIN)
    labels = made.pseudo_labels(step, None)
    heads = []
    for head in range(3):
        rows = []
        for view in range(3):
            for image in range(BATCH):
                cluster = int(made.clusters[head, step.index[image]])
                if cluster != UNASSIGNED:
                    scores = [
                        float(embedding[view, image].detach() @ c) / 0.1
                        for c in made.prototypes[head].weight
                    ]
                    rows.append(-scores[cluster] + math.log(sum(math.exp(s) for s in scores)))
        heads.append(sum(rows) / len(rows))
    assert float(made.loss(embedding, labels).mean().detach()) == pytest.approx(
        sum(heads) / 3, rel=1e-12
    )


def test_deepcluster_unassigned_batch() -> None:
    """A batch without any cluster has loss 0, not NaN."""
    made = method()
    step = batch(0, Stream(3))  # nothing was clustered yet
    loss = made.loss(made.embed(step.crops, MAIN), made.pseudo_labels(step, None)).mean()
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(bool(p.grad.isfinite().all()) for p in made.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("steps", "step", "learns"),
    [
        (None, 100, False),
        (2, 1, False),
        (2, 2, True),
    ],
)
def test_deepcluster_prototype_gradient(steps: int | None, step: int, learns: bool) -> None:
    """Prototypes learn only when asked to."""
    made = method(freeze_prototypes_steps=steps)
    made.start_epoch(0, Data())
    data = replace(batch(0, Stream(3)), step=step)
    made.loss(made.embed(data.crops, MAIN), made.pseudo_labels(data, None)).mean().backward()
    assert (made.prototypes[0].weight.grad is not None) == learns
