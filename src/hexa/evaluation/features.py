"""Features of a frozen backbone: every image once, evaluation transform, no augmentation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hexa.config import UserError, some
from hexa.data import Source
from hexa.data.loading.loaders import evaluation_batches
from hexa.data.loading.store import check_problems
from hexa.data.sources.decode import DecodeError
from hexa.data.views.evaluation import EvaluationTransform, OwnAspect
from hexa.evaluation.collective import in_step
from hexa.evaluation.protocol import Part, Task
from hexa.evaluation.transforms import transform_of
from hexa.runtime import precision as precisions, processes
from hexa.weights.pretrained import Backbone

#: Pixels that go through a network at a time: 256 images of 224 px.
_PIXELS = 256 * 224**2


@torch.no_grad()
def extract(
    backbone: Backbone,
    source: Source,
    transform: EvaluationTransform | None = None,
    progress: Callable[[int, int], None] | None = None,
    share: tuple[int, int] = (0, 1),
    **how: Any,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Features [N, D] float32, labels int64 [N] or None, and positions int64 [N], on the CPU.

    The backbone goes to `device`, in eval mode, and stays there. Unreadable images are left out, which the positions
    show and `problems` explains. Extracted in bf16 where `precision` says so, kept in fp32. progress: called with
    (images done, of all). share: (r, n), only every n-th batch from the r-th on.
    Raises UserError if more than the share `tolerance` of the images, or all, cannot be read, and for features that are
    not finite.
    """
    features = []
    labels = []
    positions = []
    done = 0
    transform = transform or transform_of(backbone)
    tell = progress or (lambda done, total: None)
    tell(0, len(source))
    for of_batch, wanted, index in batches(
        backbone, backbone, source, transform, share=share, **how
    ):
        features.append(of_batch)
        labels += [] if wanted is None else [wanted]
        positions.append(index)
        done = max(done, int(index[-1]) + 1)
        tell(done, len(source))
    if not features and share[1] > 1:  # others may have some
        return torch.empty(0, backbone.num_features), None, torch.empty(0, dtype=torch.int64)
    if not features:
        raise nothing_read(source)
    together = torch.cat(features)
    index = torch.cat(positions)
    known = torch.cat(labels) if labels else None
    check_finite(together, source)
    if isinstance(transform, OwnAspect):  # batches came shape by shape
        index, order = index.sort()
        together = together[order]
        known = None if known is None else known[order]
    return together, known, index


@torch.no_grad()
def batches(
    backbone: Backbone,
    forward: Callable[[Tensor], Tensor],
    source: Source,
    transform: EvaluationTransform,
    device: torch.device | str = "cpu",
    precision: precisions.Precision = "auto",
    **how: Any,
) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
    """What `forward` makes of pixels [B, 3, S, S], float32, with labels and positions, batch by batch; as `extract`."""
    device = torch.device(device)
    precisions.place(backbone.eval(), device)
    resolved = precisions.resolve(precision, device)
    for images, wanted, index in evaluation_batches(source, transform, device=device, **how):
        parts = torch.split(images, max(1, _PIXELS // images[0, 0].numel()))
        with precisions.autocast(resolved, device):
            made = torch.cat(
                [
                    forward(part.contiguous(memory_format=torch.channels_last)).float().cpu()
                    for part in parts
                ]
            )
        yield made, None if wanted is None else wanted.cpu(), index


def check_finite(features: Tensor, source: Source) -> None:
    """Raise UserError for features or maps [N, …] that are not numbers."""
    finite = features.isfinite().flatten(1).all(1)
    if not finite.all():
        some = 100 * float((~finite).float().mean())
        raise UserError(
            f"features of {some:.0f} % of the images of {source!r} are not finite: look at the weights"
        )


def nothing_read(source: Source) -> UserError:
    """The error for a source of which no image can be read; it says why for the first one."""
    why = ""
    try:
        source.decode(0)
    except DecodeError as error:
        why = f"; {source.paths[0]}: {error}"
    return UserError(f"data '{source.title}': holds no image that can be read{why}")


def note_lost(task: Task, source: Source, lost: Sequence[int], which: str) -> None:
    """Note how many images of a source could not be read, and the first of them. which: training or test."""
    names = some(source.paths[place] for place in lost)
    task.notes.append(f"{len(lost)} of {len(source):,} {which} images could not be read: {names}")


def extract_part(task: Task, part: Part) -> tuple[Tensor, Tensor]:
    """Features [N, D] and labels of one of the two sources of a task, on the CPU; extracted once for a task.

    Several processes call it alike and extract a share each; the main process has all features afterwards. The backbone
    is left in eval mode on the task's device. Raises UserError, in all processes.
    """
    if part in task.extracted:
        return task.extracted[part]
    source: Source = getattr(task, part)
    assert source.labels is not None, "a task has labelled sources"
    which = "training" if part == "fit" else "test"
    tell = functools.partial(task.report, f"extracting features ({which} images)")
    features, positions = extract_together(task.backbone, source, progress=tell, **task.extraction)
    if len(features) < len(source):
        note_lost(task, source, sorted(set(range(len(source))) - set(positions.tolist())), which)
    task.extracted[part] = features, torch.from_numpy(source.labels)[positions]
    return task.extracted[part]


def extract_pair(task: Task) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and labels to fit on, features and labels to score, on the CPU."""
    return *extract_part(task, "fit"), *extract_part(task, "test")


def extract_together(
    backbone: Backbone, source: Source, tolerance: float = 0.01, **how: Any
) -> tuple[Tensor, Tensor]:
    """Features [N, D] and positions int64 [N] as `extract` with `how`, shared out as by `share_and_gather`."""

    def make(share: tuple[int, int], problems: dict[int, str]) -> tuple[Tensor, Tensor]:
        features, _, positions = extract(
            backbone, source, share=share, problems=problems, tolerance=tolerance, **how
        )
        return features, positions

    return share_and_gather(make, source, tolerance)


def share_and_gather(
    make: Callable[[tuple[int, int], dict[int, str]], tuple[Tensor, Tensor]],
    source: Source,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Rows [N, D] and positions int64 [N] of a source, of which every process makes a share, in the main one.

    The others get none. Shares are whole batches, so that every row is computed as by one process, bit for bit on the
    same kind of device and number of threads. make: (share, problems) -> this process's rows and positions. Raises
    UserError in all processes.
    """
    count = 1 + processes.helpers()
    problems = dict[int, str]()
    features, positions = in_step(
        lambda: make((processes.rank() if count > 1 else 0, count), problems)
    )
    shares = processes.exchange((len(features), problems))
    if not any(read for read, _ in shares):
        raise nothing_read(source)
    check_problems(
        source, {place: text for _, lost in shares for place, text in lost.items()}, tolerance
    )
    if count == 1:
        return features, positions
    # helpers get empty lists
    together, places = (
        torch.cat([rows[:0], *processes.gather_rows(rows)]) for rows in (features, positions)
    )
    order = places.argsort()
    return together[order], places[order]
