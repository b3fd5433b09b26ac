"""Features of a frozen backbone: every image once, evaluation transform, no augmentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.data import Source
from hexa.data.loading.evaluation_stream import EvaluationTransform, evaluation_batches, floats
from hexa.data.loading.store import check_problems
from hexa.data.sources.decode import DecodeError
from hexa.nn.folding import folded
from hexa.runtime import precision as precisions, processes
from hexa.runtime.processes import in_step
from hexa.weights.pretrained import Backbone

#: Pixels that go through a network at a time: 256 images of 224 px.
_PIXELS = 256 * 224**2


def transform_of(backbone: Backbone) -> EvaluationTransform:
    """The transform by which evaluation prepares images for this backbone."""
    how = backbone.preparation
    return EvaluationTransform(backbone.image_size, how.crop, how.interpolation)


def for_inference(backbone: Backbone, device: torch.device) -> Backbone:
    """The backbone on the device, in eval mode, with batch-norms folded into convolutions (`hexa.nn.folding`).

    A copy, unless the backbone has none that can be folded; features are equal up to rounding.
    """
    shape = (1, len(backbone.mean), backbone.image_size, backbone.image_size)
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return precisions.place(folded(backbone, pixels), device)


@torch.no_grad()
def extract(
    backbone: Backbone,
    source: Source,
    progress: Callable[[int, int], object] | None = None,
    device: torch.device | str = "cpu",
    precision: precisions.Precision = "auto",
    share: tuple[int, int] = (0, 1),
    forward: Callable[[Tensor], Tensor] | None = None,
    **how: Any,
) -> tuple[Tensor, Tensor]:
    """Features [N, D] float32 and positions int64 [N], on the CPU.

    The network that computes is `for_inference`. Unreadable images are left out, which the positions show and
    `problems` explains. Extracted in bf16 where `precision` says so, kept in fp32. progress: called with
    (images done, of all). share: (r, n), only every n-th batch from the r-th on.
    forward: makes the features [B, …] of pixels [B, 3, S, S] on `device` instead. how: further options of
    `evaluation_batches`.
    Raises UserError if more than the share `tolerance` of the images, or all, cannot be read, and for features that are
    not finite.
    """
    device = torch.device(device)
    forward = forward or for_inference(backbone, device)
    resolved = precisions.resolve(precision, device)
    tell = progress or (lambda done, total: None)
    tell(0, len(source))
    features = []
    positions = []
    batches = evaluation_batches(source, transform_of(backbone), device=device, share=share, **how)
    for images, index in batches:
        pixels = floats(images, device)
        with precisions.autocast(resolved, device):
            for part in torch.split(pixels, max(1, _PIXELS // pixels[0, 0].numel())):
                made = forward(part.contiguous(memory_format=torch.channels_last))
                features.append(made.float().cpu())
        positions.append(index)
        tell(int(index[-1]) + 1, len(source))
    if not features and share[1] > 1:  # others may have some
        return torch.empty(0, backbone.num_features), torch.empty(0, dtype=torch.int64)
    if not features:
        raise nothing_read(source)
    together = torch.cat(features)
    finite = together.isfinite().flatten(1).all(1)
    if not finite.all():
        some = 100 * float((~finite).float().mean())
        raise UserError(
            f"features of {some:.0f} % of the images of {source!r} are not finite: look at the weights"
        )
    return together, torch.cat(positions)


def nothing_read(source: Source) -> UserError:
    """The error for a source of which no image can be read; it says why for the first one."""
    why = ""
    try:
        source.decode(0)
    except DecodeError as error:
        why = f"; {source.paths[0]}: {error}"
    return UserError(f"data '{source.title}': holds no image that can be read{why}")


def extract_together(
    backbone: Backbone, source: Source, tolerance: float = 0.01, **how: Any
) -> tuple[Tensor, Tensor]:
    """Features [N, D] and positions int64 [N] as `extract` with `how`; each process extracts a share.

    The main process gets all, the others get none. Shares are whole batches, so that every row is computed as by one
    process, bit for bit on the same kind of device and number of threads. Raises UserError in all processes.
    """
    count = 1 + processes.helpers()
    share = (processes.rank() if count > 1 else 0, count)
    problems = dict[int, str]()
    how |= {"share": share, "problems": problems, "tolerance": tolerance}
    features, positions = in_step(lambda: extract(backbone, source, **how))
    shares = processes.exchange((len(features), problems))
    if not any(read for read, _ in shares):
        raise nothing_read(source)
    lost = {place: text for _, of_share in shares for place, text in of_share.items()}
    check_problems(source, lost, tolerance)
    if count == 1:
        return features, positions
    # helpers get empty lists
    features = torch.cat([features[:0], *processes.gather_rows(features)])
    positions = torch.cat([positions[:0], *processes.gather_rows(positions)])
    order = positions.argsort()
    return features[order], positions[order]
