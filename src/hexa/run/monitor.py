"""The monitor: k-NN scores of the features during training (F22)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hexa.config import UserError, field_error
from hexa.core import Method
from hexa.data import Source, open_source
from hexa.data.loading.evaluation_stream import EvaluationTransform, evaluation_batches
from hexa.data.loading.store import describe_problems
from hexa.data.loading.workers import alike
from hexa.data.sources.decode import unit
from hexa.data.sources.source import Subset
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.split import draw_images
from hexa.recipes.experiment import Experiment
from hexa.run.build import Machine
from hexa.runtime.random import Stream

_BATCH = 512
#: Share of images that serve as queries if the source has no test split.
_HELD_OUT = 0.2
#: Images, uint8 or float in [0, 1], and their labels, on the CPU.
_Images = tuple[Tensor, Tensor]


@dataclass
class KnnMonitor:
    """k-NN classifier for the top-1 accuracy in percent, with main batch-norms and without augmentation.

    The bank holds labelled images of the training split. Queries are images of the test split or, without a test split,
    other images of the training split. Bank and queries have at most `max_images` images each, which are the same in
    every call and every session. The first call decodes them. Unreadable images are left out with a warning.
    """

    experiment: Experiment
    source: Source
    """The training images, or `monitor.data`."""
    method: Method
    machine: Machine
    held: Source | None = None
    """Held-out images that replace the test split as queries."""
    _images: tuple[_Images, _Images] | None = None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        source: Source,
        method: Method,
        machine: Machine,
        held: Source | None = None,
    ) -> KnnMonitor | None:
        """Return the monitor; None if it is off or has no labels. Raises UserError for invalid `monitor.data`."""
        config = experiment.monitor
        if not config.knn_every:
            return None
        if config.data is not None:
            most = experiment.training.max_image_pixels
            source = open_source(config.data, "train", most, source.channels)
            held = None
        if source.classes is not None:
            return cls(experiment, source, method, machine, held)
        for field in ("keep_best", "until", "holdout", "data"):
            if getattr(config, field):
                raise field_error(
                    f"monitor.{field}", f"{source!r} has no labels; give labelled monitor.data"
                )
        return None

    @property
    def num_classes(self) -> int:
        assert self.source.classes is not None, "a monitor needs labels"
        return len(self.source.class_names or ()) or int(self.source.classes.max()) + 1

    @torch.no_grad()
    def __call__(self, warn: Callable[[str], object] = lambda message: None) -> float:
        """Return the accuracy; the method stays in evaluation mode."""
        if self._images is None:
            voting, asking = self.parts()
            self._images = self._read(voting, warn), self._read(asking, warn)
        self.method.eval()
        (bank, votes), (queries, labels) = self._images
        config = self.experiment.monitor
        features = self._features(bank), self._features(queries)
        scores = knn_classify(features[0], votes, features[1], config.k, config.temperature)
        return 100 * float((scores.argmax(1).cpu() == labels).double().mean())

    def parts(self) -> tuple[Source, Source]:
        """Return the sources of the bank and of the queries."""
        source = self.source
        most = self.experiment.monitor.max_images
        stream = Stream(self.experiment.seed).child("knn monitor")
        order = torch.randperm(len(source), generator=stream.child("train").generator())
        if self.held is not None:
            drawn = draw_images(len(self.held), most, stream.child("held"))
            return Subset(source, order[:most].numpy()), Subset(self.held, drawn)
        if source.has_test:
            test = open_source(source.name, "test", source.max_image_pixels, source.channels)
            if test.split != source.split and test.classes is not None:
                other = torch.randperm(len(test), generator=stream.child("test").generator())
                return Subset(source, order[:most].numpy()), Subset(test, other[:most].numpy())
        asking = max(1, round(_HELD_OUT * len(source)))
        return Subset(source, order[asking:][:most].numpy()), Subset(
            source, order[:asking][:most].numpy()
        )

    def _read(self, source: Source, warn: Callable[[str], object]) -> _Images:
        images = []
        rows = []
        problems: dict[int, str] = {}
        transform = EvaluationTransform(self.experiment.views.test_size)
        cpu = torch.device("cpu")
        for batch, index in evaluation_batches(source, transform, _BATCH, cpu, None, problems, 1.0):
            images.append(batch)
            rows.append(index)
        if problems:
            first = describe_problems(source, problems, 1)[0]
            warn(
                f"the k-NN monitor leaves out {len(problems)} of {len(source)} images of "
                f"{source.title}, that cannot be read: {first}{' …' * (len(problems) > 1)}"
            )
        if not images:
            raise UserError(
                "the k-NN monitor: no image could be read; check monitor.data and the training images"
            )
        return torch.cat(alike(images)), torch.from_numpy(source.classes)[torch.cat(rows)]

    def _features(self, images: Tensor) -> Tensor:
        """Return features [N, D], fp32 on the device, of images [N, C, S, S], uint8 or float in [0, 1]."""
        features = []
        device = self.machine.device
        network = self.experiment.network
        mean, std = (
            torch.tensor(x, device=device).view(-1, 1, 1) for x in (network.mean, network.std)
        )
        for part in torch.split(images, _BATCH):
            pixels = unit(part.to(device, non_blocking=True))
            if self.experiment.training.channels_last:
                pixels = pixels.contiguous(memory_format=torch.channels_last)
            with self.machine.autocast():
                features.append(self.method.backbone((pixels - mean) / std).float())
        return torch.cat(features)


def without_holdout(experiment: Experiment, source: Source) -> tuple[Source, Source | None]:
    """Split off the images that `monitor.holdout` reserves for the monitor; return training and held-out images."""
    count = round(experiment.monitor.holdout * len(source))
    if not count:
        return source, None
    order = torch.randperm(
        len(source), generator=Stream(experiment.seed).child("monitor holdout").generator()
    )
    held, rest = (rows.sort().values.numpy() for rows in (order[:count], order[count:]))
    return Subset(source, rest), Subset(source, held)
