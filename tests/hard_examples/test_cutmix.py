"""Cut-mix terms against two standard losses by hand (F15, F16)."""

from __future__ import annotations

import torch

from hexa.core import MAIN
from hexa.hard_examples.cutmix import CutMix
from hexa.objective import STD
from hexa.ops import draws
from tests.laws.cases import BATCH, Case, batch


def test_cutmix_score() -> None:
    """The score is the sum of two standard losses, weighted by area."""
    case = Case("moco", {"bn_groups": 1}, {"cutmix": {}})
    objective = case.objective(case.build())
    made = objective.examples(batch())
    mixed = made["cutmix"]
    labels = made[STD].mixture[0][0]
    stream = batch().stream.child("hard example", "cutmix")
    order = draws.partners(BATCH, stream)
    share = mixed.mixture[0][1]
    embedding = objective.method.embed(mixed.crops, MAIN)
    own = objective.method.loss(embedding, labels)
    other = objective.method.loss(embedding, labels[order])
    expected = share * own + (1 - share) * other
    torch.testing.assert_close(mixed.score(mixed), expected)
    assert 0 < float(share[0, 0]) < 1


def test_cutmix_permutation_and_boxes() -> None:
    """F15: V crops of an image meet the V crops of one partner; crops of other sizes get other boxes."""
    made = Case("moco", {"symmetric": True}, {"cutmix": {}}).examples()
    clean = made[STD]
    mixed = made["cutmix"]
    stream = batch().stream.child("hard example", "cutmix")
    order = draws.partners(BATCH, stream)
    boxes = []
    for v in range(2):
        changed = (mixed.crops[v] != clean.crops[v]).any(1)
        found = mixed.crops[v].movedim(1, -1)[changed]
        expected = clean.crops[v][order].movedim(1, -1)[changed]
        torch.testing.assert_close(found, expected)
        boxes.append(changed.any(0))
    assert not torch.equal(*boxes)
    assert len(CutMix(per_sample=True).boxes(4, 32, stream)) == 4


def test_cutmix_of_adversarial_views() -> None:
    """Cmx_A (D7, D23)."""
    hard = {
        "adversarial": {},
        "cmxA": {"kind": "cutmix", "source": "adversarial"},
        "cutmix": {},
    }
    made = Case("moco", {}, hard).examples()
    assert made["cmxA"].branch.name == "aux"
    assert made["cutmix"].branch.name == "main"
    same = made["cmxA"].crops[0] == made["adversarial"].crops[0]
    share = same.all(1).double().mean()
    assert float(share) > 0.3
