"""Self-supervised methods: classifiers of pseudo-labels (F2)."""

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

from hexa.config import Config, ConfigError, UserError, field_error
from hexa.core.batch import Batch, Branch, PseudoLabels
from hexa.runtime.random import Stream


@dataclass(frozen=True)
class Setting:
    """Sizes and environment of a run; a method allocates its buffers from them."""

    data_size: int
    """Number of training images."""
    batch_size: int
    """Images per step over all processes."""
    epochs: int = 1
    """Number of epochs of the run, for schedules inside the method."""
    world_size: int = 1
    """Number of processes."""
    num_crops: int = 2
    """Views per image."""
    branches: tuple[str, ...] = ("main",)
    """Names of all batch-norm sets of the run."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel, for pixels in [0, 1]; the encoder subtracts it."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel; the encoder divides by it."""
    seed: int = 0
    """Seed of the run."""
    keep_statistics: bool = False
    """Freeze the batch-norms of the backbone: normalise with the initial running statistics."""
    streams: str = "one"
    """Value of `network.streams`: networks that the backbone combines."""
    view_size: int | None = None
    """Side of a view in pixels; None if unknown."""
    begins_with: str | None = None
    """Name of the backbone's initial weights; None for random ones."""
    load: Callable[[str], Any] | None = None
    """Function that loads another backbone by name: returns a network (pixels in [0, 1] ->
    features) with its `image_size`."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch; the last incomplete batch is dropped."""
        return self.data_size // self.batch_size

    def check_groups(self, groups: int) -> None:
        """Raise ConfigError, which lists valid numbers, unless `groups` of images can be divided
        over the processes."""
        world = self.world_size
        if groups % world and world % groups:
            fits = [n for n in range(1, world + 1) if world % n == 0]
            above = max(2, groups // world + 1) * world
            remedy = f"use {', '.join(map(str, fits))} or {above}"
            raise field_error(
                "method.bn_groups",
                f"{groups} groups cannot be divided over {world} processes; {remedy}",
            )


def check_views(count: int, least: int, most: int | None, why: str) -> None:
    """Raise ConfigError if the number of views per image is below `least` or above `most` (None: no
    limit)."""
    if count < least or (most is not None and count > most):
        use = f"exactly {least}" if most == least else f"at least {least}"
        raise field_error(
            "views.num_views", f"{count} views per image do not fit: {why}; use {use}"
        )


def check_queue(length: int, rows: int, wraps: bool = False) -> None:
    """Raise UserError unless the rows that a step adds, on all processes, divide the queue's
    length.

    wraps: the queue continues at its beginning, so any number of rows up to its length is valid.
    """
    if rows > length or (length % rows and not wraps):
        raise UserError(
            f"method.queue_size: a step adds {rows} entries, which do not fit into a queue "
            f"of {length}; use the batch size that the method was built with "
            "(Setting.batch_size)"
        )


class Passes(Protocol):
    """Access to the data between epochs.

    labels: classes of all images, int64 [N] on the CPU, or None; for metrics only.
    stream: random stream of the start of this epoch, the same on every process.
    """

    labels: Tensor | None
    stream: Stream

    def views(self) -> Iterator[Batch]:
        """Yield this process's share of one pass over the images, with the training views of an
        epoch."""

    def images(self) -> Iterator[Batch]:
        """Yield this process's share of all images once, with the evaluation transform: one crop
        per image."""


@runtime_checkable
class Branching(Protocol):
    """A layer with separate parameters for each branch."""

    def copy_main(self, branch: str) -> None:
        """Copy the main set into the set of `branch`, if the layer has that branch."""


def check_branches(method: nn.Module, needed: set[str]) -> None:
    """Raise UserError if the method has batch-norms but lacks the set of a branch in `needed`."""
    norms = [module for module in method.modules() if isinstance(module, Branching)]
    opened = {name for norm in norms for name, _ in norm.named_children()}
    missing = sorted(needed - opened)
    if norms and missing:
        raise UserError(
            f"the hard examples need the batch-norms of {', '.join(missing)}, which the "
            "method was not built with; build the method with "
            f"Setting(branches={('main', *sorted(needed))})"
        )


class MethodConfig(Config):
    """The fields of a method.

    A sub-class gives `name` a default; recipes and the command line select the method by it.
    """

    name: str

    #: The method class; set by `class MoCo(Method[MoCoLabels], config=MoCoConfig)`.
    method: ClassVar[type[Method]]
    #: Allowed number of views per image: (least, most or None, reason).
    num_views: ClassVar[tuple[int, int | None, str]] = (1, None, "")
    #: Reason why two images cannot be mixed for this method; empty if they can.
    unmixable: ClassVar[str] = ""

    def views_needed(self) -> tuple[int, int | None, str]:
        """Return the allowed number of views: `num_views`, raised if a field refers to further
        views."""
        return self.num_views

    @property
    def begins_at_minimum(self) -> bool:
        """True if the clean loss is already minimal at initialisation.

        Its input gradient is then zero, so attacks need a random start.
        """
        return False

    def check(self, setting: Setting) -> None:
        """Raise ConfigError if the method cannot run in this setting; called before anything is
        built or written."""
        check_views(setting.num_crops, *self.views_needed())

    def check_within(self, field: str, setting: Setting) -> None:
        """Like `check`, for a config nested in another method's `field`; error paths get that
        prefix."""
        try:
            self.check(setting)
        except ConfigError as error:
            prefix = f"method.{field}."
            problems = [(path.replace("method.", prefix, 1), what) for path, what in error.problems]
            raise ConfigError(problems) from None

    def build(self, backbone: nn.Module, setting: Setting) -> Method:
        """Build the method around `backbone`, a network of normalised images [B, 3, S, S] ->
        features [B, num_features]."""
        method = self.method(self, backbone, setting)
        method.check_remembered()
        return method


class EncoderConfig(MethodConfig):
    """The fields of a method that has its own encoder."""

    bn_groups: PositiveInt = 1
    """Number of groups of images with separate batch statistics, over all processes; 1 is
    SyncBN."""

    def check(self, setting: Setting) -> None:
        setting.check_groups(self.bn_groups)
        super().check(setting)


Labels = TypeVar("Labels", bound=PseudoLabels, default=Any)


class Method(nn.Module, ABC, Generic[Labels]):
    """The contract between a method and the training engine; `Labels` is the type of its
    pseudo-labels.

    All state exists after construction, as parameters or buffers. `embed`, `pseudo_labels` and
    `loss` change nothing except the batch-norm statistics of passes that update them; `commit` is
    the only mutation. `pseudo_labels`, `commit` and `start_epoch` run without gradients.
    """

    #: The network of `embed`, a `hexa.nn.encoder.Encoder`.
    #: A method without an encoder overrides `backbone` and `embed`.
    encoder: Any

    def __new__(
        cls, config: Any = None, backbone: Any = None, setting: Any = None, *_: Any, **__: Any
    ) -> Self:
        """Raise ConfigError if fields do not fit the setting, also without `MethodConfig.build`."""
        made = super().__new__(cls)
        if isinstance(config, MethodConfig):
            if isinstance(setting, Setting):
                config.check(setting)
            object.__setattr__(made, "num_views", config.views_needed())
        return made

    #: True if pseudo-labels are computed from the clean embedding of the images (SwAV, SimCLR).
    labels_from_embedding: bool = False
    #: True if the loss of an image depends on no other image's embedding, so that micro-batches add up to the batch.
    loss_per_image: bool = False
    #: True if the method only passes crops through `encoder`, so that activations may be cached.
    embeds_plainly: bool = False
    #: True if all steps of one `phase` call torch in the same way, so that a GPU can replay one of
    #: them (`training.graph`); the law `step_is_static` tests it. Whatever differs between steps
    #: must come from the batch, or from `ops.draws.drawn` or `of_step`.
    is_static: ClassVar[bool] = False
    #: Names in `checkpoint()` of which every process holds its own rows; each writes them itself.
    sharded: ClassVar[tuple[str, ...]] = ()
    #: Number of steps of the run, for schedules over the whole run; a time limit changes it during the run.
    total_steps: int
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
        """Raise UserError if state is in a tensor that is neither a parameter nor a buffer:
        checkpoints would lack it."""
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                held = any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
                if held and not name.startswith("_"):
                    where = ".".join(filter(None, (type(self).__name__, prefix, name)))
                    remedy = f'use self.register_buffer("{name}", …), or nn.Parameter if trained'
                    raise UserError(
                        f"{where} is a plain tensor, which checkpoints do not save; {remedy}"
                    )

    @property
    def backbone(self) -> nn.Module:
        """The network for evaluation and export: normalised images -> features [B,
        num_features]."""
        return cast(nn.Module, self.encoder.backbone)

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the crops that carry gradient: V tensors [B, 3, S_v, S_v]. Default: all; MoCo: the
        query."""
        return batch.crops

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """Return the embedding [V, B, D] of crops in [0, 1], through the batch-norms of
        `branch`."""
        return cast(Tensor, self.encoder.embed(crops, branch))

    @abstractmethod
    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> Labels:
        """Return the pseudo-labels of all images of the batch, from clean views, without gradient.

        `embedding` is the detached clean embedding; None if only a part of the images has one (see
        `labels_from_embedding`).
        """

    @abstractmethod
    def loss(self, embedding: Tensor, labels: Labels) -> Tensor:
        """Return the loss [V, B] per anchor and image; its mean is the published reduction.
        Pure.

        If a number changes from step to step (a temperature), take it from `ops.draws.of_step`.
        """

    def clean_loss(self, embedding: Tensor, labels: Labels) -> Tensor:
        """Return the loss [V, B] of clean views. Default: `loss` (SimCLR differs: gradient through
        both views)."""
        return self.loss(embedding, labels)

    def unscheduled(self) -> Iterable[nn.Parameter]:
        """Return the parameters whose learning rate stays at its maximum (SimSiam's predictor)."""
        return ()

    def commit(self, batch: Batch, embedding: Tensor, labels: Labels) -> None:
        """Update the state: momentum twin, queue, bank … Called once per step, after the optimizer,
        with clean data only.

        `embedding` is the detached clean embedding of the first images of the batch (all, unless a
        `fraction` is set).
        """

    def phase(self, step: int) -> Hashable:
        """Return what distinguishes step `step` from others, such as frozen prototypes; see
        `is_static`."""
        return None

    def open_branch(self, branch: str) -> None:
        """Initialise an additional batch-norm branch with a copy of the main one.

        Called before the first step that uses the branch, unless that is the first step of the run.
        """
        for module in self.modules():
            if isinstance(module, Branching):
                module.copy_main(branch)

    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Prepare an epoch (DeepCluster-v2 and PCL cluster here) and return metrics for the log.

        Called before the first step of every epoch. The result depends only on state, epoch and
        data, because a run that resumes between two epochs calls this again.
        """
        return {}

    def checkpoint(self) -> dict[str, Any]:
        """Return the full state of this process; of entries in `sharded`, its own rows.

        A method that splits its state over processes overrides this and `restore` (nn.MemoryBank).
        """
        return self.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint. Every process calls this; the number of processes may
        have changed.

        An entry in `sharded` is the list of all processes' rows, in rank order, or a tensor if
        there was one process.
        """
        self.load_state_dict(state)

    # -- for the logs only; all of these are optional -------------------------------------------

    def correct(self, embedding: Tensor, labels: Labels) -> Tensor | None:
        """Return whether the pseudo-label is the most likely class, bool [V, B]: contrastive
        accuracy. None if unknown."""
        return None

    def directions(self, embedding: Tensor) -> Tensor | None:
        """Return the part of the embedding that should spread over the sphere, [V, B, D]; None for
        class scores.

        The logs report a collapse if these vectors share one point or few directions.
        """
        return embedding

    #: Loss of a network with constant output, to detect a run that does not learn; None if unknown.
    #: Sub-classes assign a number.
    chance_loss: float | None = None

    def notes(self) -> list[str]:
        """Return notes for the user before the run starts, one line each, such as the memory
        needed."""
        return []
