"""The k = 200 nearest training images vote, weighted by exp(similarity / 0.07); features of the frozen backbone. With
`--shots 1 2 4 8 16` only that many labelled images of each class vote: the mean over five draws, with its interval.

F22.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from hexa.config import Config
from hexa.evaluation import few_labels
from hexa.evaluation.protocol import Outcome, Protocol, Task, accuracies

#: Similarities held at a time: 2^25 in fp32 are 128 MiB.
_SIMILARITIES = 2**25


@torch.no_grad()
def knn_classify(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int = 200,
    temperature: float = 0.07,
    num_classes: int | None = None,
) -> Tensor:
    """Class scores [M, C] of M test images from the labels of their k nearest of N training images.

    Features are normalised; s_ij = cos(f_i, g_j); score_ic = Σ exp((s_ij − max_j s_ij) / T) over the k most similar j
    of class c. Against the published exp(s / T) a row has a factor: it changes no ranking, and nothing leaves fp32.

    train_features: [N, D] and train_labels: int64 [N] on one device, test_features: [M, D]; any float type, computed in
    fp32. k is capped at N. The similarity matrix is built in chunks of rows. Source: F22.
    """
    bank = functional.normalize(train_features.float(), dim=1).T.contiguous()  # [D, N]
    train_labels = train_labels.to(bank.device)
    classes = num_classes if num_classes is not None else int(train_labels.max()) + 1
    rows = max(1, _SIMILARITIES // bank.shape[1])
    scores = torch.zeros(len(test_features), classes, device=bank.device)  # [M, C]
    for start in range(0, len(test_features), rows):
        queries = functional.normalize(
            test_features[start : start + rows].to(bank.device).float(), dim=1
        )
        similarity, neighbour = (queries @ bank).topk(min(k, bank.shape[1]), dim=1)  # [rows, k]
        weight = ((similarity - similarity[:, :1]) / temperature).exp()  # topk has sorted them
        scores[start : start + rows].scatter_add_(1, train_labels[neighbour], weight)
    return scores


class KnnOptions(Config):
    """Options of the protocol `knn`."""

    k: int = pydantic.Field(default=200, gt=0)
    """Neighbours that vote."""
    temperature: float = pydantic.Field(default=0.07, gt=0)
    """T of the vote's weight exp(similarity / T)."""
    shots: few_labels.Shots = ()
    """Labelled images per class that vote, drawn again for every draw (default: all)."""
    draws: int = pydantic.Field(default=5, gt=0)
    """Draws of labelled images for each number of them."""


def run(task: Task, options: KnnOptions) -> Outcome:
    """Accuracies of the vote, of all labels or for each number of them; no augmentation, backbone features."""

    def score(fit: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> dict[str, float]:
        how = (options.k, options.temperature, task.num_classes)
        return accuracies(knn_classify(fit.to(task.device), labels, test, *how).cpu(), test_labels)

    if options.shots:
        return few_labels.over_draws(task, options.shots, options.draws, score)
    pair = task.both_features()
    metrics = score(*pair)
    most = len(pair[0])
    if options.k > most:
        note = f"k = {options.k} exceeds the {most} labelled images; k = {most} was used"
        return Outcome(metrics, notes=[note], effective={"k": most})
    return Outcome(metrics)


def _identity(preset: str, options: KnnOptions) -> str:
    few = f"-{few_labels.identity(options.shots, options.draws)}" if options.shots else ""
    return f"k{options.k}-t{options.temperature:g}{few}"


# InstDisc's temperature, and the one of the MoCo CIFAR demo, which also votes with the projected embedding
PROTOCOL = Protocol(
    run=run,
    presets={"default": KnnOptions(), "moco-demo": KnnOptions(temperature=0.1)},
    identity=_identity,
)
