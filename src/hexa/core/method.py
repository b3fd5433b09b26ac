"""A self-supervised method: a classifier of pseudo-labels (F2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, cast, runtime_checkable

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from typing_extensions import TypeVar

from hexa.config import Config, ConfigError, UserError
from hexa.core.batch import Batch, Branch, PseudoLabels
from hexa.runtime.random import Stream


@dataclass(frozen=True)
class Setting:
    """Sizes and surroundings of a run, from which a method allocates its buffers."""

    data_size: int
    """Images that are trained on."""
    batch_size: int
    """Images per step, over all processes."""
    epochs: int = 1
    """Passes over the images that the run is to have, for schedules of the method's own."""
    world_size: int = 1
    """Number of processes."""
    num_crops: int = 2
    """Views of an image."""
    branches: tuple[str, ...] = ("main",)
    """Names of all sets of batch-norms that some pass will use."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel, for pixels in [0, 1]; the backbone subtracts it."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel; the backbone divides by it."""
    seed: int = 0
    """The run's seed."""
    keep_statistics: bool = False
    """The backbone's batch-norms normalise by the running statistics they begin with, which stay as they are."""
    streams: str = "one"
    """The value of `network.streams`: which networks the backbone's features come from."""
    view_size: int | None = None
    """Pixels of a view's side, if known."""
    begins_with: str | None = None
    """The weights that the backbone begins with, by name; None for random ones."""
    load: Callable[[str], tuple[nn.Module, int]] | None = None
    """Loads a further backbone by name: a network of pixels in [0, 1] -> features, and its image size."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch; images that do not fill one are left out."""
        return self.data_size // self.batch_size

    def check_groups(self, groups: int) -> None:
        """Raise ConfigError unless `groups` of images can be laid out over the processes, naming numbers that can."""
        world = self.world_size
        if groups % world and world % groups:
            fits = [n for n in range(1, world + 1) if world % n == 0]
            above = (groups // world + 1) * world
            remedy = f"use {', '.join(map(str, fits))} or {above}"
            message = f"{groups} groups can't be laid out over {world} processes; {remedy}"
            raise ConfigError([("method.bn_groups", message)])


def check_views(count: int, least: int, most: int | None, why: str) -> None:
    """Raise ConfigError unless the number of views of an image is in these bounds, `most` None for any."""
    if count < least or (most is not None and count > most):
        use = f"{least} in all" if most == least else f"at least {least}"
        message = f"{count} views of an image do not fit: {why}; use {use}"
        raise ConfigError([("views.num_views", message)])


def check_queue(length: int, rows: int, wraps: bool = False) -> None:
    """Raise UserError unless the rows that a step adds, on all processes, fill a queue without a remainder.

    wraps: the queue goes on at its beginning, so that any number of rows up to its length fits.
    """
    if rows > length or (length % rows and not wraps):
        problem = f"{rows} entries of this step do not fit a queue of {length}"
        remedy = "use batches of the size that the method was built for (Setting.batch_size)"
        raise UserError(f"method.queue_size: {problem}; {remedy}")


class Passes(Protocol):
    """What a method may ask of the data between epochs.

    labels: classes of all images, int64 [N] on the CPU, or None; for measuring only. stream: names the randomness of
    this epoch's start, the same on every process.
    """

    labels: Tensor | None
    stream: Stream

    def views(self) -> Iterator[Batch]:
        """This process's share of one pass over the images in views of their own, as an epoch has them."""

    def images(self) -> Iterator[Batch]:
        """This process's share of all images once, as evaluation sees them: a single crop each."""


@runtime_checkable
class Branching(Protocol):
    """A layer with a set of values for each branch."""

    def copy_main(self, branch: str) -> None:
        """Give this branch, if there is one, the values of the main one."""


def check_branches(method: nn.Module, needed: set[str]) -> None:
    """Raise UserError unless a method's batch-norms, if it has any, have a set for each branch that is needed."""
    norms = [module for module in method.modules() if isinstance(module, Branching)]
    opened = {name for norm in norms for name, _ in norm.named_children()}
    missing = sorted(needed - opened)
    if norms and missing:
        problem = f"the hard examples need the batch-norms of {', '.join(missing)}"
        remedy = f"build the method with Setting(branches={('main', *sorted(needed))})"
        raise UserError(f"{problem}, which the method was not built with; {remedy}")


class MethodConfig(Config):
    """The fields of a method. A sub-class gives `name` a default, which is how recipes and the command line find it."""

    name: str

    #: The method of these fields; set by `class MoCo(Method[MoCoLabels], config=MoCoConfig)`.
    method: ClassVar[type[Method]]
    #: The least and the largest number of views of an image (None: any), and why.
    num_views: ClassVar[tuple[int, int | None, str]] = (1, None, "")
    #: Why parts of two images can't be mixed into an example of this method; empty where they can.
    unmixable: ClassVar[str] = ""

    def views_needed(self) -> tuple[int, int | None, str]:
        """`num_views`, and more where one of the fields names further views."""
        return self.num_views

    @property
    def begins_at_minimum(self) -> bool:
        """True if the clean loss is already minimal at initialisation. Its input gradient is then zero, so attacks
        need a random start."""
        return False

    def check(self, setting: Setting) -> None:
        """Raise ConfigError if the method can't run in this setting, before anything is built or written."""
        check_views(setting.num_crops, *self.views_needed())

    def check_within(self, field: str, setting: Setting) -> None:
        """Like `check`, for a config nested in another method's `field`; error paths are prefixed."""
        try:
            self.check(setting)
        except ConfigError as error:
            prefix = f"method.{field}."
            problems = [(path.replace("method.", prefix, 1), what) for path, what in error.problems]
            raise ConfigError(problems) from None

    def build(self, backbone: nn.Module, setting: Setting) -> Method:
        """The method around `backbone`, a network of normalised images [B, 3, S, S] -> features [B, num_features]."""
        method = self.method(self, backbone, setting)
        method.check_remembered()
        return method


class EncoderConfig(MethodConfig):
    """The fields of a method with an encoder of its own."""

    bn_groups: PositiveInt = 1
    """Groups of images with batch statistics of their own, over all processes; 1 is SyncBN."""

    def check(self, setting: Setting) -> None:
        setting.check_groups(self.bn_groups)
        super().check(setting)


Labels = TypeVar("Labels", bound=PseudoLabels, default=Any)


class Method(nn.Module, ABC, Generic[Labels]):
    """The contract between a method and the engine; Labels is the type of its pseudo-labels.

    Everything it remembers exists once it is constructed and is a parameter or a buffer. `embed`, `pseudo_labels` and
    `loss` change nothing but the batch-norm statistics of the passes that count; `commit` is the only mutation.
    `pseudo_labels`, `commit` and `start_epoch` of its classes run without gradients.
    """

    #: The network of `embed`, a `hexa.nn.encoder.Encoder`; a method without one overrides `backbone` and `embed`.
    encoder: Any

    def __new__(
        cls, config: Any = None, backbone: Any = None, setting: Any = None, *_: Any, **__: Any
    ) -> Self:
        """Raise ConfigError for fields that do not fit the setting, whether built by `MethodConfig.build` or not."""
        made = super().__new__(cls)
        if isinstance(config, MethodConfig):
            if isinstance(setting, Setting):
                config.check(setting)
            object.__setattr__(made, "num_views", config.views_needed())
        return made

    #: Pseudo-labels are made of the clean embedding of the same images (SwAV's codes, SimCLR's dictionary).
    labels_from_embedding: bool = False
    #: True if the method only passes crops through `encoder`, so that activations may be cached.
    embeds_plainly: bool = False
    #: Steps of one `phase` make the same calls; a GPU then replays one for all (`training.graph`). The law
    #: `step_is_static` tries it. What differs must come from the batch, or through `ops.draws.drawn` and `of_step`.
    is_static: ClassVar[bool] = False
    #: Allowed number of views: (least, most, reason); the config's `views_needed`.
    num_views: tuple[int, int | None, str] = MethodConfig.num_views

    def __init_subclass__(cls, config: type[MethodConfig] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if config is not None:
            config.method = cls
            cls.num_views = config.num_views
        # what a method remembers carries no gradient
        for name in ("pseudo_labels", "commit", "start_epoch"):
            if name in vars(cls):
                setattr(cls, name, torch.no_grad()(vars(cls)[name]))

    def check_remembered(self) -> None:
        """Raise UserError for a tensor that is neither a parameter nor a buffer: no checkpoint would have it."""
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                held = any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
                if held and not name.startswith("_"):
                    where = ".".join(filter(None, (type(self).__name__, prefix, name)))
                    remedy = f'write self.register_buffer("{name}", …), or nn.Parameter(…) if it is trained'
                    raise UserError(
                        f"{where} is a plain tensor, which no checkpoint keeps; {remedy}"
                    )

    @property
    def backbone(self) -> nn.Module:
        """The network that evaluation and export receive: normalised images -> features [B, num_features]."""
        return cast(nn.Module, self.encoder.backbone)

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        """The crops that carry gradient: V tensors [B, 3, S_v, S_v]; all unless overridden. MoCo: the query."""
        return batch.crops

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """Crops in [0, 1] -> embedding [V, B, D], through the batch-norms of `branch`."""
        return cast(Tensor, self.encoder.embed(crops, branch))

    @abstractmethod
    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> Labels:
        """The pseudo-labels of all images of the batch, from clean views, without gradient.

        `embedding` is the detached clean embedding; None where not all images have one (`labels_from_embedding`).
        """

    @abstractmethod
    def loss(self, embedding: Tensor, labels: Labels) -> Tensor:
        """The loss [V, B] per anchor and image; its mean is the published reduction. Pure."""

    def clean_loss(self, embedding: Tensor, labels: Labels) -> Tensor:
        """The loss [V, B] of the clean views, where it differs (SimCLR back-propagates through both views)."""
        return self.loss(embedding, labels)

    def unscheduled(self) -> Iterable[nn.Parameter]:
        """Parameters whose learning rate stays at its largest value, whatever the schedule (SimSiam's predictor)."""
        return ()

    def commit(self, batch: Batch, embedding: Tensor, labels: Labels) -> None:
        """Remember the step: momentum twin, queue, bank … Called once, after the optimizer's step, on clean data only.

        `embedding` is the detached clean embedding of the first images of the batch (all, unless a `fraction` is set).
        """

    def phase(self, step: int) -> Hashable:
        """What step `step` does that others do not (frozen prototypes, a queue that fills); for `is_static`."""
        return None

    def open_branch(self, branch: str) -> None:
        """Called before the first step of a run, but the very first, that uses an additional batch-norm branch.

        The set becomes a copy of the main one, as it is at the start of a run.
        """
        for module in self.modules():
            if isinstance(module, Branching):
                module.copy_main(branch)

    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Called before the first step of every epoch (DeepCluster-v2 and PCL cluster here); returns facts to log.

        A function of the state, the epoch and the data alone: a resumed run calls it again where it stopped between
        two epochs.
        """
        return {}

    def checkpoint(self) -> dict[str, Any]:
        """All it remembers, whole on the main process, for one file. Every process calls it.

        A method that keeps a part of something in each process overrides this and `restore` (nn.MemoryBank).
        """
        return self.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, on every process, in whatever number of processes it was written."""
        self.load_state_dict(state)

    # -- for logs alone; a method may leave out all of these ----------------------------------------------------------

    def correct(self, embedding: Tensor, labels: Labels) -> Tensor | None:
        """Whether the pseudo-label is the most likely one, bool [V, B]: contrastive accuracy; None if unknown."""
        return None

    def directions(self, embedding: Tensor) -> Tensor | None:
        """The part of the embedding that should spread over the sphere, [V, B, D], for the logs; None for class scores.

        One point or few directions there are a collapse.
        """
        return embedding

    #: The loss of a network that outputs a constant, to recognise a run that does not learn; None if unknown.
    #: A number that sub-classes assign.
    chance_loss: float | None = None

    def notes(self) -> list[str]:
        """What a user should know before the run starts, a line each: the memory it will take …"""
        return []
