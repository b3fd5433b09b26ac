"""Hard views against a loop over images and candidates, cut and resized by torchvision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torchvision.transforms.v2.functional import resized_crop

from hexa.core import MAIN, Branch, Example
from hexa.hard_examples.hard_views import HardViews
from hexa.objective import STD
from hexa.ops import draws
from hexa.ops.geometry import UNIFORMS_PER_BOX, random_boxes
from hexa.runtime.random import Stream
from tests.laws.cases import BATCH, Case


def by_loop(
    maker: HardViews, source: Example, stream: Stream
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The views, and which candidate of each image they are."""
    through = Branch("main", update=False)
    every = []
    for n in range(maker.candidates):
        sides = []
        for v, crop in enumerate(source.crops):
            size = crop.shape[-1]
            drawn = draws.uniforms(BATCH, UNIFORMS_PER_BOX, stream.child("crop", v, n))
            boxes = random_boxes(drawn, size, size, (maker.scale, 1.0))
            sides.append(
                [
                    (0, 0, size, size) if n == 0 else tuple(int(s[i]) for s in boxes)
                    for i in range(BATCH)
                ]
            )
        every.append(sides)
    scores = []
    for sides in every:
        small = []
        for v, crop in enumerate(source.crops):
            side = round(maker.scored_at * crop.shape[-1])
            small.append(
                torch.stack(
                    [
                        resized_crop(crop[i], *sides[v][i], [side, side], antialias=True)
                        for i in range(BATCH)
                    ]
                )
            )
        scores.append(
            source.score(replace(source.at(tuple(small)), branch=through)).detach().sum(0)
        )
    best = torch.stack(scores).argmax(0)
    views = []
    for v, crop in enumerate(source.crops):
        size = [crop.shape[-1]] * 2
        cut = [
            resized_crop(crop[i], *every[int(best[i])][v][i], size, antialias=True)
            for i in range(BATCH)
        ]
        views.append(torch.stack(cut))
    return views, best


@pytest.mark.parametrize("fields", [{}, {"candidates": 6, "scale": 0.2, "scored_at": 1.0}])
@pytest.mark.parametrize("method", ["moco", "simclr", "deepcluster-v2"])
def test_the_hardest_candidates_against_a_loop(method: str, fields: dict[str, float]) -> None:
    case = Case(method, {}, {"hard_views": fields})
    data = case.batch()
    made = case.objective(case.build()).examples(data)
    views, best = by_loop(
        HardViews(**fields), made[STD], data.stream.child("hard example", "hard_views")
    )
    for view, expected in zip(made["hard_views"].crops, views, strict=True):
        torch.testing.assert_close(view, expected, atol=1e-5, rtol=0)
    assert len(set(best.tolist())) > 1
    assert made["hard_views"].mixture is made[STD].mixture
    assert made["hard_views"].branch == MAIN
    assert float(made["hard_views"].facts["moved"]) == pytest.approx(
        float((best != 0).float().mean())
    )


def test_a_view_that_is_hardest_as_it_is_stays_exactly() -> None:
    """Whole views are resized to their own size, which changes no bit of them."""
    clean = Case("moco", {"bn_groups": 1}, {"hard_views": {"scored_at": 1.0}}).examples()[STD]
    clean = replace(
        clean, crops=tuple(crop.float().double() for crop in clean.crops)
    )  # what resizing computes in
    rises = HardViews(candidates=2)(replace(clean, score=Easy(clean.score)), Stream(0))  # type: ignore[arg-type]
    assert float(rises.facts["moved"]) == 0
    assert all(torch.equal(a, b) for a, b in zip(rises.crops, clean.crops, strict=True))
    assert float(rises.facts["rise"]) == 0


class Easy:
    """The first candidate is harder than all later ones."""

    def __init__(self, score: object) -> None:
        self.asked = 0

    def __call__(self, example: Example) -> torch.Tensor:
        self.asked -= 1
        return torch.full((len(example.crops), len(example)), float(self.asked))


def test_puzzles_refuse() -> None:
    assert not Case("jigsaw", {}, {"hard_views": {}}).fits
    assert Case("dino", {}, {"hard_views": {}}).fits
