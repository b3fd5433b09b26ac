"""Faster R-CNN on any backbone that gives feature maps, of torchvision's parts (F28)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork, roi_align

from hexa.config import UserError
from hexa.evaluation.protocol import Resolved
from hexa.runtime import precision as precisions
from hexa.weights.pretrained import Backbone
from hexa_paper.detection.options import DetectOptions
from hexa_paper.detection.parts import NetworkPart, parts

Maps = OrderedDict[str, Tensor]
Objects = dict[str, Tensor]
"""boxes fp32 [n, 4] in pixels of the image as it is given, labels int64 [n] from 1 on; detections have scores [n]."""

#: Channels of every map of the pyramid.
_PYRAMID_WIDTH = 256
#: Width of the box head of a pyramid.
_HIDDEN = 1024


class Detector(nn.Module):
    """Images -> losses in training, detected objects otherwise.

    c4: proposals and regions (14×14 by RoIAlign) come from the maps before the network's last halving; its last part,
    a new batch-norm and the mean over positions are the box head (ResNet: layer1–3, and layer4).
    fpn: a feature pyramid of width 256 over the last four resolutions from stride 4 on, and as many coarser ones as
    there are sizes of anchors left; the box head is two linear layers of 1024 on regions of 7×7.
    New weights are drawn as in Detectron2, from torch's global generator. The backbone's modules are taken, not copied.
    """

    def __init__(
        self,
        backbone: Backbone,
        options: DetectOptions,
        num_classes: int,
        precision: Resolved,
    ) -> None:
        super().__init__()
        stages = parts(backbone.network, backbone.network_config.name)
        self.normalize = backbone.normalize
        self.frozen = options.frozen
        self.precision = precision
        self.multiple = stages[-1].stride
        c4 = options.kind == "c4"
        body = stages[:-1] if c4 else stages
        self.body = nn.ModuleList(part.module for part in body)
        used = body[-1:] if c4 else [part for part in body if part.stride >= 4][-4:]
        self.unused = len(body) - len(used)
        tail = stages[-1].module
        # a list, which registers nothing: the tail is a part of the box head
        self._of_backbone: list[nn.Module] = [self.body, tail] if c4 else [self.body]
        self.pyramid = (
            nn.Identity()
            if c4
            else FeaturePyramidNetwork([p.channels for p in used], _PYRAMID_WIDTH)
        )
        width = used[-1].channels if c4 else _PYRAMID_WIDTH
        anchors = _anchors(used, options)
        self.num_levels = len(anchors.strides)
        self.rpn = RegionProposalNetwork(
            anchors,
            RPNHead(width, len(anchors.sizes[0]) * len(_RATIOS)),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=256,
            positive_fraction=0.5,
            pre_nms_top_n={"training": 12000, "testing": 6000}
            if c4
            else {"training": 2000, "testing": 1000},
            post_nms_top_n={"training": 2000 if c4 else 1000, "testing": options.test_proposals},
            nms_thresh=0.7,
        )
        head: Any
        if c4:
            features = stages[-1].channels
            head = nn.Sequential(
                tail, nn.BatchNorm2d(features), nn.AdaptiveAvgPool2d(1), nn.Flatten()
            )
        else:
            features = _HIDDEN
            head = TwoMLPHead(width * 7**2, _HIDDEN)
            for layer in (head.fc6, head.fc7):
                nn.init.kaiming_uniform_(layer.weight, a=1)
                nn.init.zeros_(layer.bias)
        self.roi_heads = RoIHeads(
            AlignedRegions([part.stride for part in used], 14 if c4 else 7),
            _InPrecision(head, precision),
            _predictor(features, 1 + num_classes),
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=options.regions,
            positive_fraction=0.25,
            bbox_reg_weights=None,
            score_thresh=0.05,
            nms_thresh=0.5,
            detections_per_img=100,
        )
        for module in self._of_backbone:
            module.requires_grad_(not options.frozen)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            for module in self._of_backbone:
                module.eval()
        return self

    def forward(self, images: Sequence[Tensor], objects: Sequence[Objects] | None = None) -> Any:
        """images: uint8 [3, H, W] of any sizes, on the device. In training {name: loss}, else the objects of each."""
        sizes = [(int(image.shape[1]), int(image.shape[2])) for image in images]
        listed = ImageList(self._batch(images), sizes)
        with precisions.autocast(self.precision, listed.tensors.device):
            maps = self._maps(listed.tensors)
        targets = None if objects is None else list(objects)
        # what follows is about places, to which bf16 is too coarse
        proposals, losses = self.rpn(listed, maps, targets)
        detected, more = self.roi_heads(maps, proposals, sizes, targets)
        return {**losses, **more} if self.training else detected

    def _batch(self, images: Sequence[Tensor]) -> Tensor:
        """Normalised, and 0 beyond the right and lower edges up to the largest of them, a multiple of the stride."""
        largest = [max(image.shape[side] for image in images) for side in (1, 2)]
        high, wide = (math.ceil(side / self.multiple) * self.multiple for side in largest)
        pixels = [self.normalize(image[None].float().div_(255)) for image in images]
        batch = torch.cat([F.pad(p, (0, wide - p.shape[3], 0, high - p.shape[2])) for p in pixels])
        # on CPUs torch 2.15 writes out of bounds going back through 1×1 convolutions of few channels in this format
        return batch.contiguous(memory_format=torch.channels_last) if batch.is_cuda else batch

    def _maps(self, x: Tensor) -> Maps:
        maps: Maps = OrderedDict()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            for number, part in enumerate(self.body):
                x = part(x)
                if number >= self.unused:
                    maps[str(number)] = x
        maps = OrderedDict((name, value.float()) for name, value in self.pyramid(maps).items())
        while len(maps) < self.num_levels:
            maps[f"coarser{len(maps)}"] = F.max_pool2d(next(reversed(maps.values())), 1, 2)
        return maps


_RATIOS = (0.5, 1.0, 2.0)


class Anchors(nn.Module):
    """Boxes of h / w = ½, 1, 2 and each area size² around every position of each level, at (column, row) · stride.

    Unlike torchvision's they are not rounded, and strides are what they are where a map's last column is incomplete.
    """

    def __init__(self, sizes: Sequence[Sequence[float]], strides: Sequence[int]) -> None:
        super().__init__()
        self.sizes = sizes
        self.strides = strides

    def forward(self, images: ImageList, maps: Sequence[Tensor]) -> list[Tensor]:
        levels = []
        for sizes, stride, level in zip(self.sizes, self.strides, maps, strict=True):
            shapes = [(size / ratio**0.5, size * ratio**0.5) for size in sizes for ratio in _RATIOS]
            around = torch.tensor(
                [(-w / 2, -h / 2, w / 2, h / 2) for w, h in shapes], device=level.device
            )
            y, x = (
                torch.arange(n, device=level.device, dtype=torch.float32) * stride
                for n in level.shape[2:]
            )
            y, x = torch.meshgrid(y, x, indexing="ij")
            levels.append((torch.stack((x, y, x, y), 2).view(-1, 1, 4) + around).view(-1, 4))
        return [torch.cat(levels)] * len(images.image_sizes)


def _anchors(used: Sequence[NetworkPart], options: DetectOptions) -> Anchors:
    """All sizes on the one level of c4; on a pyramid one size per level, from the finest to the coarsest."""
    strides = [part.stride for part in used]
    if options.kind == "c4":
        return Anchors([options.anchor_sizes], strides)
    if len(options.anchor_sizes) < len(strides):
        raise UserError(
            f"anchor_sizes: {len(strides)} levels of the pyramid need a size each, and may have more"
        )
    while len(strides) < len(options.anchor_sizes):
        strides.append(2 * strides[-1])
    return Anchors([(size,) for size in options.anchor_sizes], strides)


class AlignedRegions(nn.Module):
    """RoIAlign with half-pixel alignment and as many samples as there are pixels, of the level that suits each box.

    Level: ⌊4 + log₂(√area / 224)⌋ where 4 is stride 16, within those there are (Lin et al. 2017, equation 1).
    """

    def __init__(self, strides: Sequence[int], size: int) -> None:
        super().__init__()
        self.strides = strides
        self.size = size

    def forward(
        self,
        maps: Maps,
        boxes: list[Tensor],
        image_sizes: list[tuple[int, int]],
    ) -> Tensor:
        """Maps [B, C, H_l, W_l] by level, boxes [n, 4] of each image -> regions [Σn, C, S, S]."""
        owner = torch.cat([torch.full_like(b[:, :1], number) for number, b in enumerate(boxes)])
        joined = torch.cat(boxes)
        rows = torch.cat((owner, joined), 1)
        levels = list(maps.values())[: len(self.strides)]
        side = (joined[:, 2:] - joined[:, :2]).clamp(min=0).prod(1).sqrt()
        finest = math.log2(self.strides[0])
        coarsest = math.log2(self.strides[-1])
        wanted = torch.floor(4 + torch.log2(side / 224 + 1e-8)).clamp(finest, coarsest)
        out = levels[0].new_zeros(len(rows), levels[0].shape[1], self.size, self.size)
        for stride, level in zip(self.strides, levels, strict=True):
            here = (wanted == math.log2(stride)).nonzero()[:, 0]
            regions = roi_align(
                level, rows[here], self.size, 1 / stride, sampling_ratio=0, aligned=True
            )
            out = out.index_copy(0, here, regions) if len(levels) > 1 else regions
        return out


class _InPrecision(nn.Module):
    """A module whose passes run in a precision and give fp32."""

    def __init__(self, module: nn.Module, precision: Resolved) -> None:
        super().__init__()
        self.module = module
        self.precision = precision

    def forward(self, x: Tensor) -> Tensor:
        with precisions.autocast(self.precision, x.device):
            out: Tensor = self.module(x)
        return out.float()


def _predictor(features: int, num_classes: int) -> nn.Module:
    """A linear layer for classes, N(0, 0.01), and one for the boxes of each, N(0, 0.001); biases 0, as Detectron2."""
    made: Any = FastRCNNPredictor(features, num_classes)
    for layer, std in ((made.cls_score, 0.01), (made.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=std)
        nn.init.zeros_(layer.bias)
    return made  # type: ignore[no-any-return]
