"""The k-NN monitor: what the frozen features are worth while they are being trained (REFERENCE §7.3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.core import Method
from hexa.data import Source, open_source
from hexa.data.loaders import evaluation_batches
from hexa.data.store import describe_problems
from hexa.data.views import evaluation_transform
from hexa.data.workers import alike, unit
from hexa.experiment import Experiment
from hexa.runtime.random import Stream
from hexa.training.assembly import Machine

_BATCH = 512
#: The share of images that ask, where the source has no test split.
_HELD_OUT = 0.2


class KnnMonitor:
    """Top-1 accuracy in percent of a k-NN vote, main batch-norms, no augmentation.

    Labelled images of the training split vote on the test split; where the source has none, on others of their own
    split. At most `max_images` of each, the same in every call and every session; they are decoded at the first call.
    Those that can't be read are left out, however many they are, and `say` is told so.
    """

    def __init__(self, experiment: Experiment, source: Source, method: Method, machine: Machine) -> None:
        self.config, self.size = experiment.monitor, experiment.views.size
        self.method, self.machine, self.source = method, machine, source
        self.channels_last = experiment.training.channels_last
        self.mean = torch.tensor(experiment.network.mean, device=machine.device).view(1, -1, 1, 1)
        self.std = torch.tensor(experiment.network.std, device=machine.device).view(1, -1, 1, 1)
        self.stream = Stream(experiment.seed).child("knn monitor")
        self.say: Callable[[str], object] = lambda message: None
        self._images: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    @classmethod
    def of(cls, experiment: Experiment, source: Source, method: Method, machine: Machine) -> KnnMonitor | None:
        """The monitor, or None if it is turned off or there are no labels."""
        if not experiment.monitor.knn_every or source.classes is None:
            return None
        return cls(experiment, source, method, machine)

    @property
    def num_classes(self) -> int:
        labels = self.source.classes
        assert labels is not None
        return len(self.source.class_names) if self.source.class_names else int(labels.max()) + 1

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """{"knn": percent}. Leaves the method in evaluation mode."""
        from hexa.evaluation.knn import knn_classify

        if self._images is None:
            self._images = self._decoded()
        self.method.eval()
        (bank, bank_labels), (queries, labels) = [(self._features(images), y) for images, y in self._images]
        classes = max(self.num_classes, int(labels.max()) + 1)
        k = min(self.config.k, len(bank))
        scores = knn_classify(bank, bank_labels.to(bank.device), queries, k, self.config.temperature, classes)
        return {"knn": 100 * float((scores.argmax(1).cpu() == labels).double().mean())}

    def _decoded(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(images, uint8 where that is exact, labels) of those that vote and those that ask, on the CPU."""
        bank, queries = self._parts()
        return self._read(bank), self._read(queries)

    def _parts(self) -> tuple[Source, Source]:
        from hexa.evaluation.features import Subset

        source, most = self.source, self.config.max_images
        order = torch.randperm(len(source), generator=self.stream.child("train").generator())
        if source.split != "test" and "test" in source.splits():
            test = open_source(source.name, "test", source.max_image_pixels, source.channels)
            if test.classes is not None:
                other = torch.randperm(len(test), generator=self.stream.child("test").generator())
                return Subset(source, order[:most].numpy()), Subset(test, other[:most].numpy())
        asking = max(1, round(_HELD_OUT * len(source)))
        return Subset(source, order[asking:][:most].numpy()), Subset(source, order[:asking][:most].numpy())

    def _read(self, source: Source) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        problems: dict[int, str] = {}
        transform = evaluation_transform(self.size)
        for batch, batch_labels, _ in evaluation_batches(source, transform, _BATCH, problems=problems, tolerance=1.0):
            assert batch_labels is not None
            levels = (batch * 255).round()
            images.append(levels.to(torch.uint8) if torch.equal(levels / 255, batch) else batch)
            labels.append(batch_labels)
        if problems:
            which = f"{len(problems)} of {len(source)} images of {source.name}#{source.split}"
            first = describe_problems(source, problems, 1)[0]
            self.say(f"the k-NN monitor leaves out {which}, which can't be read: {first}{' …' * (len(problems) > 1)}")
        if not images:
            raise UserError("there is no image left to ask, or to vote")
        return torch.cat(alike(images)), torch.cat(labels)

    def _features(self, images: Tensor) -> Tensor:
        """Features [N, D] fp32 on the device of images [N, C, S, S], uint8 or float in [0, 1]."""
        found = []
        for start in range(0, len(images), _BATCH):
            part = images[start : start + _BATCH]
            pixels = unit(part.to(self.machine.device, non_blocking=True))
            if self.channels_last:
                pixels = pixels.contiguous(memory_format=torch.channels_last)
            with self.machine.autocast():
                found.append(self.method.backbone((pixels - self.mean) / self.std).float())
        return torch.cat(found)
