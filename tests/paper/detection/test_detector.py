"""The parts of the detector and what it is fed, each against another way to compute it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import roi_align

from hexa.data.sources.source import ArraySource
from hexa.runtime.random import Stream
from hexa.weights.pretrained import load_backbone
from hexa_paper.detection.boxes import Boxes
from hexa_paper.detection.detector import AlignedRegions, Anchors, Detector
from hexa_paper.detection.images import TrainingBatches, scaled
from hexa_paper.detection.options import DetectOptions


def detector(kind: Any) -> Detector:
    torch.manual_seed(0)
    options = DetectOptions(kind=kind, anchor_sizes=(8, 16, 32), regions=16, test_proposals=20)
    return Detector(load_backbone("random:small-resnet-16-16-16-16"), options, 2, "fp32")


def images() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(1)
    pixels = [
        torch.randint(
            0,
            256,
            (3, 40, 56),
            generator=generator,
            dtype=torch.uint8,
        )
        for _ in range(2)
    ]
    boxes = torch.tensor([[4.0, 4, 30, 30], [10, 5, 50, 38]])
    return pixels, [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in pixels]


def test_anchors_torchvision() -> None:
    """Anchors are torchvision's before rounding."""
    maps = [torch.zeros(1, 2, 6, 8), torch.zeros(1, 2, 3, 4)]
    listed = ImageList(torch.zeros(1, 3, 48, 64), [(48, 64)])
    sizes = ((32,), (64,))
    ratios = ((0.5, 1.0, 2.0),) * 2
    generator = AnchorGenerator(sizes, ratios)
    theirs = generator(listed, maps)[0]
    anchors = Anchors([(32,), (64,)], [8, 16])
    ours = anchors(listed, maps)[0]
    torch.testing.assert_close(ours, theirs, atol=0.5, rtol=0)
    sides = ours[:, 2:] - ours[:, :2]
    found = sides.prod(1).sqrt()
    expected = torch.tensor([32.0] * 144 + [64.0] * 36)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_region_levels() -> None:
    """Regions come from the level that suits them."""
    maps = OrderedDict()
    for number, side in enumerate((256, 128, 64)):  # strides 4, 8, 16
        maps[str(number)] = torch.rand(2, 3, side, side)
    boxes = [
        torch.tensor(
            [
                [0.0, 0, 50, 50],
                [10, 20, 122, 132],
                [5, 5, 1000, 900],
            ]
        ),
        torch.tensor([[8.0, 8, 130, 99]]),
    ]
    regions = AlignedRegions([4, 8, 16], 7)
    found = regions(maps, boxes, [(1024, 1024)] * 2)
    # √area: 50 -> ⌊4 + log₂(50 / 224)⌋ = 1, below the finest; 112 -> 3; 944 -> 6, above the coarsest; 105 -> 2
    cases = [
        (0, 0, 0),
        (0, 1, 1),
        (0, 2, 2),
        (1, 0, 0),
    ]
    for row, (image, place, level) in enumerate(cases):
        number = torch.tensor([[float(image)]])
        corners = boxes[image][place][None]
        box = torch.cat((number, corners), 1)
        stride = 4 * 2**level
        expected = roi_align(maps[str(level)], box, 7, 1 / stride, 0, aligned=True)
        torch.testing.assert_close(found[row : row + 1], expected)


@pytest.mark.parametrize("kind", ["c4", "fpn"])
def test_detector_gradients_and_boxes(kind: str) -> None:
    """Every part learns, and small images are searched too."""
    made = detector(kind).train()
    losses = made(*images())
    assert set(losses) == {
        "loss_objectness",
        "loss_rpn_box_reg",
        "loss_classifier",
        "loss_box_reg",
    }
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    with torch.no_grad():
        found = made.eval()(images()[0])
    assert len(found) == 2
    for one in found:
        right = one["boxes"][:, 2]
        bottom = one["boxes"][:, 3]
        assert (right <= 56).all()
        assert (bottom <= 40).all()


def test_padded_batch() -> None:
    """Padding is outside of the image: it may reach some pixels in, and no box may lie there."""
    made = detector("c4").eval()
    small = torch.full((3, 24, 24), 200, dtype=torch.uint8)
    large = torch.zeros(3, 40, 56, dtype=torch.uint8)
    batch = made._batch([small, large])
    assert batch.shape == (2, 3, 40, 56)
    assert (batch[0, :, 24:] == 0).all()
    assert (batch[0, :, :, 24:] == 0).all()
    expected = made._batch([small])
    torch.testing.assert_close(
        batch[:1, :, :24, :24],
        expected,
        rtol=0,
        atol=0,
    )


def test_flipped_and_scaled_boxes() -> None:
    """A white rectangle on black: wherever flips and sizes take it, its box is where the white pixels are."""
    pixels = torch.zeros(1, 3, 40, 80, dtype=torch.uint8)
    pixels[0, :, 8:24, 16:32] = 255
    source = ArraySource(pixels, None, name="rectangle")
    corners = torch.tensor([[16.0, 8, 32, 24]])
    label = torch.tensor([0])
    difficult = torch.tensor([False])
    boxes = [Boxes(corners, label, difficult, (40, 80))]
    order = torch.zeros(12, 1, dtype=torch.int64)
    data = TrainingBatches(source, boxes, order, (20, 40, 80), 1000, Stream(0))
    seen = set()
    for number in range(12):
        (view,), (objects,), _ = data[number]
        x0, y0, x1, y1 = objects["boxes"][0].tolist()
        rows = (view[0] > 127).any(1).nonzero()
        columns = (view[0] > 127).any(0).nonzero()
        white = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
        assert [x0, y0, x1, y1] == pytest.approx(white, abs=1)
        assert objects["labels"].tolist() == [1]
        seen.add((view.shape[1], x0 < view.shape[2] / 2))
        assert torch.equal(data[number][0][0], view)
    assert {size for size, _ in seen} == {20, 40, 80}
    assert {left for _, left in seen} == {True, False}, "flipped and not"
    resized = scaled(corners, (40, 80), (20, 160))
    assert resized.tolist() == [[32.0, 4, 64, 12]]
