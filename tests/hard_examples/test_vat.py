"""Virtual adversarial views: stronger than noise, equal length, independent of labels."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from hexa.core import MAIN, Example
from hexa.hard_examples.vat import VAT
from hexa.objective import STD
from hexa.runtime.random import Stream
from tests.laws.cases import Case


def clean_example(network: nn.Module | None = None) -> Example:
    return Case("moco", {"bn_groups": 1}, {"vat": {}}).examples(network)[STD]


def inside(source: Example) -> Example:
    """Return views away from black and white, where clipping has no effect."""
    return source.at(tuple(0.25 + crop / 2 for crop in source.crops))


def test_vat_length() -> None:
    """Every image moves by the same length."""
    source = inside(clean_example())
    made = VAT(epsilon=3.0)(source, Stream(0))
    delta = made.crops[0] - source.crops[0]
    length = 255 * delta.square().mean((1, 2, 3)).sqrt()
    torch.testing.assert_close(length, torch.full_like(length, 3.0))
    assert made.branch.name == "aux"


def test_vat_top_eigenvector() -> None:
    """The direction is the top eigenvector of the Hessian of 1 − cos, computed per image for a
    linear encoder."""
    linear = nn.Linear(3 * 12 * 12, 8)
    network = nn.Sequential(nn.Flatten(), linear)
    network.num_features = 8  # type: ignore[assignment]
    source = inside(clean_example(network))
    made = VAT(iterations=60, probe=0.05, epsilon=0.1)(
        source,
        Stream(0),
    )
    method = source.score.method
    for i in range(2):
        crop = source.crops[0][i : i + 1]
        still = method.embed((crop,), MAIN).detach()

        def distance(
            flat: Tensor,
            crop: Tensor = crop,
            still: Tensor = still,
        ) -> Tensor:
            moved = crop + flat.view_as(crop)
            embedding = method.embed((moved,), MAIN)
            return -(embedding * still).sum()

        origin = torch.zeros(crop.numel(), dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(distance, origin)
        top = torch.linalg.eigh(hessian).eigenvectors[:, -1]
        delta = (made.crops[0][i] - crop[0]).flatten()
        cosine = (delta @ top).abs() / delta.norm()
        assert float(cosine) > 0.99


def test_vat_pseudo_labels() -> None:
    """Pseudo-labels do not change the result."""
    source = clean_example()
    labels, weight = source.mixture[0]
    reverse = torch.arange(len(source)).flip(0)
    other = replace(source, mixture=((labels[reverse], weight),))
    first = VAT()(source, Stream(0))
    second = VAT()(other, Stream(0))
    assert torch.equal(first.crops[0], second.crops[0])
    assert second.mixture is other.mixture
