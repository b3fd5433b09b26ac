"""Softmax regression on frozen features, in seconds; the weight decay is chosen on held-out training images. Presets
`full`: all labels; `few`: five labels per class, the mean over ten draws. With `--shots 1 2 4 8 16` that many labels
per class: the mean over five draws, with its interval.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from hexa.config import Config
from hexa.data.sources.source import Labels
from hexa.evaluation import few_labels
from hexa.evaluation.protocol import Outcome, Protocol, Task, accuracies
from hexa.evaluation.split import folds, whole_groups
from hexa.runtime.random import Stream

Array = NDArray[np.floating[Any]]

#: Weight decays tried, strongest first: each solution starts from the one before it.
WEIGHT_DECAYS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
#: Features of more numbers stay in fp32: twice as fast, and the noise of that many images is far larger.
_LARGE = 4_000_000
#: Held-out images that are enough to choose by, where a probe is fitted again and again: 242 classes take a minute.
ENOUGH = 250
#: p · (1 − p) of a likely probability: how the loss curves, up to the features' scale.
_CURVATURE = 0.1


def softmax_regression(
    x: Array,
    y: Labels,
    num_classes: int,
    weight_decay: float,
    start: Array | None = None,
    tolerance: float = 1e-4,
) -> Array:
    """Weights [D + 1, C], the bias last, that minimise mean cross-entropy + weight_decay/2 · Σ W², by L-BFGS.

    x: [N, D], y: [N]. The bias is not decayed. The minimum is that of scikit-learn's LogisticRegression with
    C = 1 / (N · weight_decay), whose steps are not scaled by direction. start: initial weights. L-BFGS moves v = W / s with s_d = (h · mean x_d² + weight_decay)^−½, which
    gives all directions a like curvature if the columns of x are orthogonal; `tolerance` bounds the largest component
    of the gradient by v.
    """
    from scipy.optimize import (
        minimize,
    )  # half a second, which commands that only may fit a probe do without

    num, width = x.shape
    rows = np.arange(num)
    square = np.append((x * x).mean(0, dtype=np.float64), 1.0)
    decay = np.append(np.full(width, weight_decay), 0.0)[:, None]  # [D + 1, 1]
    scale = (_CURVATURE * square[:, None] + decay) ** -0.5

    def objective(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(width + 1, num_classes) * scale
        logits = _scores(x, weights)  # [N, C]
        logits -= logits.max(1, keepdims=True)
        likelihood = np.exp(logits)
        total = likelihood.sum(1, keepdims=True)
        loss = float((np.log(total[:, 0]) - logits[rows, y]).mean(dtype=np.float64))
        likelihood /= total
        likelihood[rows, y] -= 1
        likelihood /= num
        slope = np.vstack([x.T @ likelihood, likelihood.sum(0)]) + decay * weights
        return loss + 0.5 * float((decay * weights * weights).sum()), (slope * scale).ravel()

    first = np.zeros((width + 1, num_classes)) if start is None else start / scale
    options = {"maxiter": 1000, "maxfun": 2000, "gtol": tolerance, "ftol": 1e-12, "maxls": 40}
    solved = np.asarray(
        minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", options=options).x
    )
    return cast(Array, solved.reshape(width + 1, num_classes) * scale)


def _scores(x: Array, weights: Array) -> Array:
    return cast(
        Array,
        x @ weights[:-1].astype(x.dtype, copy=False) + weights[-1].astype(x.dtype, copy=False),
    )


def _span(x: Array) -> tuple[Array, Array]:
    """x = reduced @ basis.T with [N, r] and [D, r], r ≤ min(N, D).

    The decayed solution lies in the span of the training features, so a probe with 50 labels on 2,048 features is a
    problem of 50 unknowns a class. The basis is orthonormal: Σ W² is the same in both coordinates.
    """
    left, values, right = np.linalg.svd(x, full_matrices=False)
    kept = values > values[:1].max(initial=0.0) * 1e-7
    return left[:, kept] * values[kept], right[kept].T


def choose_weight_decay(
    x: Array,
    y: Labels,
    num_classes: int,
    candidates: Sequence[float],
    parts: Sequence[Labels],
    by_loss: bool = False,
) -> float:
    """The candidate with the most right answers on the held-out parts; of equal ones that with the lower loss.

    by_loss: the one with the lowest loss, which chance changes less if few images are held out.

    `candidates` go from strong to weak: each solution starts from the one before. With nothing to hold out (one label a
    class) 0.01 is used.
    """
    from scipy.special import log_softmax  # a quarter of a second, which plans do without

    if not parts:
        return 1e-2
    right = np.zeros(len(candidates))
    loss = np.zeros(len(candidates))
    for part in parts:
        kept = np.setdiff1d(np.arange(len(y)), part)
        start: Array | None = None
        for number, decay in enumerate(candidates):
            start = softmax_regression(x[kept], y[kept], num_classes, decay, start, tolerance=1e-3)
            scores = _scores(x[part], start).astype(np.float64)
            right[number] += float((scores.argmax(1) == y[part]).sum())
            loss[number] -= float(log_softmax(scores, axis=1)[np.arange(len(part)), y[part]].sum())
    if by_loss:
        return float(candidates[int(loss.argmin())])
    return float(candidates[int(np.lexsort((loss, -right))[0])])


class FittedProbe(NamedTuple):
    """A softmax regression on features that are shifted and scaled: scores = ((x − mean) · scale) @ basis @ weights.

    mean, scale: [D]; basis: [D, r], or None for r = D; weights: [r + 1, C], the bias last. All float64, but for weights
    fitted in fp32.
    """

    mean: Tensor
    scale: Tensor
    basis: Array | None
    weights: Array
    weight_decay: float
    kind: type[np.float32 | np.float64]

    def scores(self, features: Tensor) -> Tensor:
        """Class scores [M, C], float64, of features [M, D]."""
        x = _standardised(features, self.mean, self.scale, self.kind)
        with _threads(self.kind):
            reduced = x if self.basis is None else x @ self.basis
            return torch.from_numpy(np.asarray(_scores(reduced, self.weights), dtype=np.float64))

    def linear(self) -> nn.Linear:
        """The same as one layer on features, in fp32."""
        trunk = torch.from_numpy(
            self.weights[:-1] if self.basis is None else self.basis @ self.weights[:-1]
        ).double()
        weight = self.scale[:, None] * trunk  # [D, C]
        layer = nn.Linear(*weight.shape)
        with torch.no_grad():
            layer.weight.copy_(weight.T)
            layer.bias.copy_(torch.from_numpy(self.weights[-1]).double() - self.mean @ weight)
        return layer


def _standardised(
    features: Tensor,
    mean: Tensor,
    scale: Tensor,
    kind: type[np.float32 | np.float64],
) -> Array:
    return cast(Array, ((features.cpu().double() - mean) * scale).numpy().astype(kind))


def _threads(kind: type[np.float32 | np.float64]) -> threadpool_limits:
    # small products don't gain by threads, and threads that wait for each other on a busy machine cost minutes
    return threadpool_limits(1 if kind is np.float64 else None, user_api="blas")


def fit_probe(
    train_x: Tensor,
    train_y: Tensor,
    num_classes: int,
    *,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    enough: float = math.inf,
    seed: int = 0,
    groups: Labels | None = None,
    by_loss: bool = False,
) -> FittedProbe:
    """Softmax regression on standardised features.

    Every feature is shifted and scaled to mean 0 and standard deviation 1 over the training images. The weight decay is
    the best of `weight_decays` on a held-out fifth of the training images, drawn class by class, and the
    probe is then fitted to all of them; with fewer than 50 labels per class, or if the fifth lacks a class, the folds
    take turns, until `enough` images were held out. train_x: [N, D], train_y: int64 [N]. groups: int64 [N], images of one group are held out together. by_loss:
    as for `choose_weight_decay`.
    """
    kind: type[np.float32 | np.float64] = np.float32 if train_x.numel() > _LARGE else np.float64
    exact = train_x.cpu().double()
    mean = exact.mean(0)
    deviation = exact.std(0, correction=0)
    # a feature that is constant in training tells nothing, and whatever it does in testing is noise
    scale = torch.where(
        deviation > 1e-6 * (1 + mean.abs()), 1 / deviation, torch.zeros_like(deviation)
    )
    x = _standardised(train_x, mean, scale, kind)
    basis = None
    y = train_y.cpu().numpy().astype(np.int64)
    with _threads(kind):
        if len(x) < x.shape[1]:
            x, basis = _span(x)
        decay = float(weight_decays[0])
        if len(weight_decays) > 1:
            parts = _parts(y, Stream(seed).child("probe", "weight-decay"), groups)
            classes = np.unique(y)
            # groups can leave a class out of a fold
            missing = bool(parts) and len(np.unique(y[parts[0]])) < len(classes)
            few = missing or np.bincount(y)[classes].min() < 50
            # as many as it takes until enough images were held out before
            turns = (
                max(1, int((np.cumsum([0, *map(len, parts)])[:-1] < enough).sum())) if few else 1
            )
            decay = choose_weight_decay(x, y, num_classes, weight_decays, parts[:turns], by_loss)
        return FittedProbe(
            mean, scale, basis, softmax_regression(x, y, num_classes, decay), decay, kind
        )


def _parts(y: Labels, stream: Stream, groups: Labels | None) -> list[Labels]:
    """Five folds in whole groups; groups are ignored if the folds hold fewer than two classes."""
    parts = folds(y, 5, stream, groups)
    if groups is not None:
        whole = [whole_groups(part, groups) for part in parts]
        parts = [part for part in whole if len(part)]
    held = np.concatenate([y[:0], *(y[part] for part in parts)])
    if groups is not None and len(np.unique(held)) < 2:
        return folds(y, 5, stream)
    return parts


def fast_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, **how: Any
) -> dict[str, float]:
    """{"top1", "top5", "balanced_accuracy" in percent, "weight_decay"} of `fit_probe`, which takes `how`, on other images."""
    probe = fit_probe(train_x, train_y, **how)
    return {**accuracies(probe.scores(test_x), test_y.cpu()), "weight_decay": probe.weight_decay}


class ProbeOptions(Config):
    """Options of the protocol `probe`."""

    shots: few_labels.Shots = ()
    """Labelled images per class to fit on, drawn again for every draw (default: all, once)."""
    draws: int = pydantic.Field(default=5, gt=0)
    """Draws of labelled images for each number of them; the mean is reported, with its deviation and interval."""


def run(task: Task, options: ProbeOptions) -> Outcome:
    """Softmax regression on features without augmentation; with few labels, mean and deviation over draws."""
    how: dict[str, Any] = {"num_classes": task.num_classes, "seed": task.seed}
    groups = task.fit_groups()
    grouped = groups is not None
    if options.shots:
        score = functools.partial(fast_probe, enough=ENOUGH, **how)
        outcome = few_labels.over_draws(task, options.shots, options.draws, score, groups)
        return replace(outcome, grouped=grouped)
    metrics = fast_probe(*task.both_features(), groups=groups, **how)
    return Outcome(metrics, {"weight_decay": metrics.pop("weight_decay")}, grouped=grouped)


def _identity(preset: str, options: ProbeOptions) -> str:
    return few_labels.identity(options.shots, options.draws) if options.shots else "full"


PROTOCOL = Protocol(
    run=run,
    presets={"full": ProbeOptions(), "few": ProbeOptions(shots=(5,), draws=10)},
    identity=_identity,
)
