"""The verdict on a hardening: the most robust weights within the allowed loss, compared with the initial weights."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hexa.adaptation.harden_plan import ATTACKED, ATTACKING, FORWARDS
from hexa.adaptation.request import Outcome, Trained
from hexa.adaptation.robustness import (
    CLEAN,
    Rows,
    Shown,
    Side,
    attack_all,
    attack_of,
    crossed,
    decide,
    difference,
    halves_of,
    lost_by,
    table,
)
from hexa.comparison.extraction import common, features_of, images_per_second
from hexa.comparison.labelled import Judge, can_judge, labels_of
from hexa.comparison.leakage import apart
from hexa.comparison.wording import groups_note
from hexa.data import Source
from hexa.data.sources.source import Subset
from hexa.evaluation.split import draw_classes, draw_images
from hexa.runtime import precision
from hexa.runtime.console import Progress
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Back-off factor of the interpolation share if the accuracy loss exceeds --price.
_BACK = 0.85
#: Maximum number of interpolated weights that one half of the labels evaluates.
_TRIED = 5
#: Smallest interpolation share.
_NEAREST = 1 / 16
#: Interpolation share without labels: 6 to 40 % of the final accuracy loss and 68 to 88 % of the final robustness at
#: ε = 1/255.
_UNTOLD = 0.5
#: Names of the compared networks on progress bars.
_NAMES = ("initial weights", "result", "initial weights at native resolution")


def outcome(trained: Trained, price: float, seconds: float, progress: Progress) -> Outcome:
    """Compare the initial weights with the most robust weights within the allowed loss, at the same image size.

    price: allowed loss of clean accuracy in points. seconds: time limit of the whole command; attacks take a share.
    """
    how = trained.how
    device = precision.pick_device(how.device)
    native = trained.start
    size = trained.result.image_size
    start = native.prepared(size=size)
    result = trained.result.prepared(size=size)
    networks = [start, result]
    if native.image_size != size:
        networks.append(native)
    images, notes = drawn(trained, progress)
    found = []
    for name, network in zip(_NAMES, networks, strict=False):
        told = functools.partial(progress, name)
        found.append(features_of(network, images, how, device, told))
    features, shared = common(found)
    if len(shared) < len(images):
        notes.append(f"{len(images) - len(shared)} of {len(images):,} images cannot be read")
    images = Subset(images, shared.numpy())
    judge = None
    if can_judge(images.classes):
        judge = Judge(labels_of(images), how.seed, images.groups())
        notes.append(groups_note(judge, images))
    elif can_judge(trained.judging.classes):
        notes.append(
            "--price could not be applied: too few labelled images are left; give more by --labelled"
        )
    before = Side.of(start, features[0], judge)

    @functools.cache
    def side(share: float) -> Side:
        if share == 1:
            return Side.of(result, features[1], judge)
        network = between(start, result, share)
        return Side.of(network, features_of(network, images, how, device)[0], judge)

    after, shares, share, within = _choose(price, before, side, judge)
    affordable = ATTACKING * seconds * images_per_second(start, device) / FORWARDS
    count = int(np.clip(affordable, *ATTACKED))
    shown = Shown.of(images, start, count, judge, device, how.seed)
    told = functools.partial(progress, "initial weights and result under attack")
    attack_all((before, after), shown, judge, told)
    made = table(before, after, size)
    own = ""
    if len(features) > 2 and judge is not None:
        at_own = Side.of(native, features[2], judge)
        own = (
            f" (initial weights at their native {native.image_size} px: {at_own.mean(CLEAN):.1f} %)"
        )
        for name in at_own.values:
            label = f"{name} at {native.image_size} px, % ↑"
            row = [label, f"{at_own.mean(name):.1f}", "", ""]
            made = replace(made, rows=[*made.rows, row])
    attack = attack_of(judge)
    attacked = f"{attack['name']} of {len(shown.places)} images"
    where = f" at {size} px"
    better, verdict = decide(before, after, price, within, attacked, where, own)
    notes.append(
        f"{len(shown.places)} of the {len(images):,} images were corrupted, and attacked by {attack['name']}; "
        "for a stronger attack, run hexa evaluate robust"
    )
    notes += _notes(share, shares, price, judge)
    record = {
        "images": len(images),
        "attacked": len(shown.places),
        "attack": {**attack, "images": len(shown.places)},
        "share": share,
        "chosen": shares,
        "within price": within,
        "size": size,
        **_numbers(before, after),
    }
    winner = after.backbone if better else native
    return Outcome(winner, verdict, made, notes, judge is not None, record)


def _choose(
    price: float, before: Side, side: Callable[[float], Side], judge: Judge | None
) -> tuple[Side, list[float], float, bool]:
    """Return the most robust weights within the allowed loss; without labels, the mean of initial and final weights.

    Each half of the labels scores the weights that the other half chose. Returned with them: the share of final weights
    that each half chose, their own share, and True if the loss is within --price on the labels that chose the share.
    """
    if judge is None:
        return side(_UNTOLD), [_UNTOLD], _UNTOLD, True
    halves = halves_of(judge)
    shares = []
    within = True
    for half in halves:
        cost = functools.partial(_lost, before, side, half)
        shares.append(at_price(price, cost))
        within = within and cost(shares[-1]) <= price
    share = mean_share(shares, halves)
    values = crossed([side(one) for one in shares], halves)
    return replace(side(share), values=values), shares, share, within


def _lost(before: Side, side: Callable[[float], Side], half: Rows, share: float) -> float:
    """Return the loss of clean accuracy in points at an interpolation share, on one half of the labels."""
    return lost_by(before, side(share), half)


def _notes(
    share: float, shares: Sequence[float], price: float, judge: Judge | None
) -> Iterator[str]:
    """Return notes on weights that are not the final weights."""
    if share < 1:
        why = f"to keep --price {price:g}"
        if judge is None:
            why = "without labels"
        yield f"{why}, the result averages {share:.4g} parts final and {1 - share:.4g} parts initial weights"
    if len(set(shares)) > 1:
        ways = " and ".join(f"{one:.4g}" for one in shares)
        yield (
            "each half of the labels scores the weights that the other half chose; "
            f"the shares of final weights are {ways}"
        )


def _numbers(before: Side, after: Side) -> dict[str, Any]:
    """Return the mean of every measure for initial weights and result, and their difference with half of the interval."""
    means: dict[str, Any] = {name: [before.mean(name), after.mean(name)] for name in before.values}
    changes = {}
    for name in before.values:
        change = difference(before, after, name)
        changes[name] = [change.points, min(change.half, 100.0)]
    return means | {"changes": changes}


def at_price(price: float, cost: Callable[[float], float]) -> float:
    """Return the interpolation share, from 1 / 16 to 1, at which clean accuracy falls by at most `price` points.

    cost: share -> loss in points. The loss grows roughly with the square of the share
    (docs/decisions/adapt-and-harden.md), so the first candidate is √(price / cost(1)); the large loss at 1 is measured
    more reliably than small losses. While the loss exceeds `price`, the share is reduced by 15 %, at most three times.
    """
    share = math.sqrt(price / cost(1.0)) if cost(1.0) > price else 1.0
    shares = [max(_NEAREST, share * _BACK**steps) for steps in range(_TRIED - 1)]
    return next((one for one in shares if cost(one) <= price), shares[-1])


def mean_share(shares: Sequence[float], halves: Sequence[Rows]) -> float:
    """Return the share whose expected loss equals the mean loss over both halves of the labels.

    Each half is scored at the share that the other half chose. Losses grow roughly with the square of the share, so the
    result is the root of the mean square.
    """
    others = [len(halves[1]), len(halves[0])]
    return math.sqrt(np.average(np.square(shares), weights=others))


def drawn(trained: Trained, progress: Progress) -> tuple[Source, list[str]]:
    """Draw the images of the evaluation, without near-duplicates if there are labels; also return notes."""
    judging = trained.judging
    how = trained.how
    notes = list[str]()
    stream = Stream(how.seed).child("judged")
    if can_judge(judging.classes):
        found = draw_classes(labels_of(judging), how.most or len(judging), stream)
        rows, _ = apart(trained.data, judging, found, how, notes, progress)
    else:
        rows = draw_images(len(judging), how.most, stream)
    return Subset(judging, rows), notes


def between(start: Backbone, result: Backbone, share: float) -> Backbone:
    """Return the network with weights (1 − share) · start + share · result.

    After a short training, the interpolated weights combine properties of both networks (WiSE-FT, Wortsman et al., CVPR
    2022; for robustness Croce et al., CVPR 2023).
    """
    made = copy.deepcopy(result)
    end = start.state_dict()
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if value.is_floating_point():
                value.lerp_(end[name].to(value), 1 - share)
    return made
