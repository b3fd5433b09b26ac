"""Cross-validated scores against naive loops, paired intervals against scipy, and the rule of
decision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from hexa.comparison.labelled import (
    DECIDING,
    GROUPED_WIDTH,
    MEASURES,
    SPLITS,
    WIDTH,
    Judge,
    Scores,
    difference,
    over_draws,
    paired,
)
from hexa.comparison.verdict import Pair
from hexa.config import UserError
from hexa.evaluation.protocols.probe import fit_probe

LABELS = np.array([0] * 30 + [1] * 25 + [2] * 20 + [3] * 3 + [4])  # 4 stands alone
DRAW = np.random.default_rng(0)
FEATURES = torch.from_numpy(
    (DRAW.normal(size=(79, 8)) + 1.2 * np.eye(8)[LABELS]).astype(np.float32)
)


def test_knn_cross_fold_votes() -> None:
    """Votes are those of the other folds; images alone in their class only vote."""
    judge = Judge(LABELS, splits=1)
    x = FEATURES.numpy().astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert judge.judged.tolist() == list(range(78))
    assert sorted(np.concatenate(judge.parts)) == list(range(78))
    expected = []
    for image in judge.judged:
        part = next(part for part in judge.parts if image in part)
        votes = np.zeros(5)
        others = [other for other in range(79) if other not in part]
        for other in sorted(
            others,
            key=lambda other: -x[image] @ x[other],
        )[:15]:
            votes[LABELS[other]] += np.exp(x[image] @ x[other] / 0.07)
        expected.append(100 * (votes.argmax() == LABELS[image]))
    assert judge.scores(FEATURES).right["k-NN"].tolist() == expected


def test_random_split_means() -> None:
    """Outcomes are means over random splits."""
    judge = Judge(LABELS)
    assert len(judge.splits) == SPLITS > 1
    for split in judge.splits:
        assert sorted(np.concatenate(split)) == judge.judged.tolist()
    assert not np.array_equal(
        judge.splits[0][0],
        judge.splits[1][0],
    )
    found = judge.scores(FEATURES).right
    for measure in MEASURES:
        times = found[measure] * SPLITS / 100
        assert np.allclose(times, times.round())
        assert len(np.unique(times.round())) > 2
    probes = judge.probes(FEATURES)
    again = judge.scores(FEATURES, probes).right
    assert (found["k-NN"] == again["k-NN"]).all()


def test_probe_other_folds() -> None:
    """The probe is fitted to the other folds."""
    judge = Judge(LABELS, splits=1)
    y = torch.from_numpy(LABELS)
    found = judge.scores(FEATURES).right["linear probe"]
    part = judge.parts[0]
    rest = np.setdiff1d(np.arange(79), part)
    scores = fit_probe(
        FEATURES[rest],
        y[rest],
        5,
        by_loss=True,
    ).scores(FEATURES[part])
    right = 100 * (scores.argmax(1) == y[part])
    assert found[np.isin(judge.judged, part)].tolist() == right.tolist()


@pytest.mark.parametrize("comparisons", [1, 6])
def test_paired_t_intervals(comparisons: int) -> None:
    """Intervals are those of the paired t-test."""
    before, after = 100 * DRAW.random((2, 5))
    found = over_draws(before, after, comparisons)
    test = stats.ttest_rel(after, before).confidence_interval(1 - 0.05 / comparisons)
    assert [found.points - found.half, found.points + found.half] == pytest.approx(
        [test.low, test.high]
    )


@pytest.mark.parametrize("comparisons", [1, 6])
@pytest.mark.parametrize(
    ("won", "lost"),
    [
        (20, 5),
        (1, 0),
        (0, 0),
    ],
)
def test_paired_interval_pseudo_counts(won: int, lost: int, comparisons: int) -> None:
    """Intervals of images hold half an image more in each cell."""
    place = np.arange(50)
    before = 100.0 * (place < lost)
    after = 100.0 * ((place >= lost) & (place < won + lost))
    found = paired(before, after, DECIDING, comparisons)
    n = 52
    wins = (won + 0.5) / n
    losses = (lost + 0.5) / n
    variance = n / (n - 1) * (wins + losses - (wins - losses) ** 2)
    reach = stats.t.ppf(1 - 0.025 / comparisons, n - 1)
    assert (found.points, found.half) == pytest.approx(
        (2 * (won - lost), WIDTH * 100 * reach * (variance / n) ** 0.5)
    )
    few = paired(
        np.zeros(19),
        np.full(19, 100.0),
        DECIDING,
    )
    assert few.sign == 0
    assert str(few) == "+100.0, too few images or groups to tell"
    assert Pair(0, 1, 0, {DECIDING: few}).record["differences"] == {DECIDING: [100.0, 100.0]}


def reached(knn: float, probe: float) -> Scores:
    """Return outcomes that are right for the first images, up to these shares of 400."""
    shares = zip(MEASURES, (knn, probe), strict=True)
    right = {name: 100.0 * (np.arange(400) < 400 * share) for name, share in shares}
    return Scores(right, np.arange(400) % 2)


@pytest.mark.parametrize(
    ("other", "trials", "better"),
    [
        (reached(0.4, 0.6), 1, 1),  # k-NN does not decide
        (reached(0.6, 0.5), 1, 0),
        (reached(0.5, 0.4), 1, -1),
        (reached(0.5, 0.505), 1, 0),
        (reached(0.5, 0.53), 1, 1),
        (reached(0.5, 0.53), 100, 0),  # the best of many states
    ],
)
def test_probe_decision(other: Scores, trials: int, better: int) -> None:
    """The probe alone decides."""
    assert difference(reached(0.5, 0.5), other, DECIDING, trials).sign == better
    assert other.majority is None  # classes of equal size


def test_group_judging_and_count() -> None:
    """Images of a group neither evaluate each other nor count as many."""
    groups = np.array([*np.arange(75) % 9, 8, 8, 8, 9])  # all of class 3 are in one
    judge = Judge(LABELS, groups=groups, splits=1)
    assert judge.judged.tolist() == list(range(75))
    for part, rest in zip(judge.parts, judge.rests, strict=True):
        assert not {*groups[part]} & {*groups[rest]}
        assert (np.bincount(LABELS[part])[:3] > 0).all()
    before = judge.scores(FEATURES[:, slice(4)])
    after = judge.scores(FEATURES[:, slice(8)])
    d = after.right[DECIDING] - before.right[DECIDING]
    sizes = np.bincount(groups[:75])
    squares = 0.0
    for group, size in enumerate(sizes):
        own = d[groups[:75] == group]
        total = (own - d.mean()).sum()
        squares += total**2 / (1 - size / 75)
    freedom = 75**2 / (sizes**2).sum() - 1
    reach = stats.t.ppf(1 - 0.025 / 2, freedom)
    grouped = GROUPED_WIDTH * reach * squares**0.5 / 75
    alone = paired(
        before.right[DECIDING],
        after.right[DECIDING],
        DECIDING,
        2,
    )
    half = max(grouped, alone.half)
    assert difference(before, after, DECIDING, 2).half == pytest.approx(half)
    copies = np.arange(120) // 3
    alike = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 40))[copies])
    apart = Judge(copies % 2).probes(alike)[0]
    together = Judge(copies % 2, groups=copies).probes(alike)[0]
    assert (
        apart.weight_decay < together.weight_decay
    )  # noise is learned by heart where its copies judge it


def test_too_few_and_useless_groups() -> None:
    """Few groups decide nothing, and useless ones are not used."""
    none = np.zeros(60)
    four = np.arange(60) % 4
    five = np.arange(60) % 5
    few = paired(none, 100.0 * (four == 0), DECIDING, groups=four)
    assert str(few) == "+25.0, too few images or groups to tell"
    enough = paired(none, 100.0 * (five == 0), DECIDING, groups=five)
    assert enough.half == pytest.approx(GROUPED_WIDTH * 20 * stats.t.ppf(0.975, 4))
    moved = np.maximum(five, np.arange(60) < 1)
    almost = paired(none, 100.0 * (five == 0), DECIDING, groups=moved)
    assert almost.half == pytest.approx(enough.half, rel=0.15)
    assert Judge(LABELS, groups=np.arange(79) % 2).scores(FEATURES).accuracy("linear probe") > 50
    useless = [Judge(LABELS, groups=groups) for groups in (np.zeros(79, np.int64), LABELS)]
    assert [(judge.groups, len(judge.judged)) for judge in useless] == [(None, 78)] * 2


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([500, *[1] * 100], 1.0),  # one group has most of the images
        ([250, 250, *[1] * 20], 1.0),
        ([100] * 2 + [1] * 85, 0.99),
        ([100] * 4 + [1] * 100, 0.99),
        ([300 // rank for rank in range(1, 21)], 0.99),
        ([60] * 10, 0.99),
    ],
)
def test_unequal_group_coverage(sizes: list[int], most: float) -> None:
    """Intervals hold 0 as often as they say if groups are alike inside, whatever their sizes."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    held = []
    for _ in range(400):
        deviations = generator.normal(size=(2, len(sizes)))
        accuracies = np.clip(0.75 + 0.15 * deviations, 0, 1)
        difficulty = generator.random(len(groups))
        before, after = (100.0 * (difficulty < accuracy[groups]) for accuracy in accuracies)
        found = paired(before, after, DECIDING, groups=groups)
        held.append(abs(found.points) <= found.half)
    assert 0.93 <= np.mean(held) <= most


def test_judge_minimum_classes() -> None:
    """Two classes with two images each are needed."""
    with pytest.raises(
        UserError,
        match="1 of 3 classes have two labelled images or more, and a comparison needs two",
    ):
        Judge(np.array([0, 0, 0, 1, 2]))
