"""Builds the parts of an experiment: images, network, method, objective, optimizer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from hexa.config import ConfigError, UserError, field_error
from hexa.core import Method, Setting
from hexa.data import Source, draw_part, open_source
from hexa.data.loading.loaders import PretrainLoader, check_batch_size
from hexa.data.loading.statistics import measured
from hexa.data.views.config import COLOURED
from hexa.data.views.making import Views
from hexa.nn import backbones
from hexa.nn.branch_norm import BranchBatchNorm
from hexa.nn.checkpointing import checkpoint_blocks
from hexa.nn.encoder import Encoder
from hexa.nn.trunk import Trunk
from hexa.objective import STD, Objective
from hexa.objective.shares import branches, needed
from hexa.recipes.experiment import Experiment, override
from hexa.runtime import precision as precisions, processes
from hexa.runtime.processes import from_main
from hexa.runtime.random import Stream, global_draws
from hexa.training import optimizers
from hexa.training.optimizers import Pace, ScheduledOptimizer
from hexa.weights import start
from hexa.weights.fitting import exported, owner
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone


class Machine(NamedTuple):
    """Device and precision of a run."""

    device: torch.device
    precision: Literal["fp32", "bf16"]

    @classmethod
    def of(cls, experiment: Experiment) -> Machine:
        """Return device and precision of an experiment on this machine. Raises UserError for an unavailable device."""
        device = precisions.pick_device(experiment.training.device)
        network = backbones.outline(experiment.network)
        return cls(device, precisions.resolve(experiment.training.precision, device, network))

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of forward passes."""
        return precisions.autocast(self.precision, self.device)


def setting_of(experiment: Experiment, data_size: int) -> Setting:
    """Return the facts that a method needs to allocate its buffers. Raises ConfigError for incompatible sizes."""
    check_batch_size(experiment.batch_size, data_size, experiment.data)
    images = experiment.batch_size // processes.world_size()
    parts = experiment.training.accumulate
    if images % parts or 1 < parts == images:
        raise field_error(
            "training.accumulate",
            f"{parts} micro-batches do not divide the {images} images of a process into two or more each",
        )
    experiment.schedule.check(experiment.epochs)
    if experiment.views.test_scale != 1:
        outline = backbones.outline(experiment.network)
        try:
            backbones.num_features_at(
                outline, experiment.views.test_size, experiment.network.channels
            )
        except UserError as error:
            raise field_error("views.test_scale", str(error)) from None
    if refused := refusals(experiment):
        raise ConfigError(refused)
    setting = Setting(
        data_size=data_size,
        batch_size=experiment.batch_size,
        epochs=experiment.epochs,
        world_size=processes.world_size(),
        num_crops=experiment.views.total_views,
        branches=("main", *branches(experiment.hard_examples)),
        mean=experiment.network.mean,
        std=experiment.network.std,
        seed=experiment.seed,
        keep_statistics=experiment.start.keeps_statistics,
        streams=experiment.network.streams,
        view_size=experiment.views.size,
        begins_with=experiment.start.weights,
        load=partial(start.read, field="method.teacher"),
    )
    experiment.method.check(setting)
    return setting


def settled(experiment: Experiment, source: Source) -> tuple[Experiment, list[str]]:
    """Return the experiment with fields that depend on its images, and notes for the user.

    Mean and std that are `auto` are measured on rank 0 and sent to other ranks. Colour augmentations are switched off
    for images that are not RGB. Raises UserError on all ranks.
    """
    network = experiment.network
    views = experiment.views
    notes = []
    changes: dict[str, Any] = {}
    if not (network.mean and network.std):
        mean, std = from_main(lambda: measured(source))
        for name, values in {"mean": mean, "std": std}.items():
            if not getattr(network, name):
                changes[f"network.{name}"] = values
                notes.append(
                    f"network.{name}: {', '.join(map(str, values))} (measured on the images)"
                )
        if not network.std and min(std) == 0:
            raise UserError(
                f"data '{source.name}': channel {std.index(0)} is the same in all "
                "images; remove this channel, or give network.std"
            )
    if network.channels != 3:
        off = {name: type(value)() for name, value in views if name in COLOURED and value}
        changes |= {f"views.{name}": value for name, value in off.items()}
        if off:
            notes.append(
                f"images of {network.channels} channels have no colours; switched off: views.{', views.'.join(off)}"
            )
    return (override(experiment, changes) if changes else experiment), notes


def refusals(experiment: Experiment) -> list[tuple[str, str]]:
    """Return the hard examples that the method does not support, as (dotted path, reason)."""
    hard = experiment.hard_examples
    method = experiment.method
    reasons = {name: hard[name].refusal(method) for name in needed(hard)}
    refused = [
        (f"hard_examples.{name}", f"not for {method.name}: {why}")
        for name, why in reasons.items()
        if why
    ]
    if method.begins_at_minimum:
        why = f"the loss of {method.name} has its minimum at the clean view, so that its gradient is zero; give 1"
        still = (
            n
            for n in needed(hard)
            if hard[n].source == STD and hard[n].gradient_of_source is not None
        )
        refused += [
            (f"hard_examples.{name}.random_start", f"{why}, or 2 for N-FGSM") for name in still
        ]
    return refused


def open_images(experiment: Experiment) -> Source:
    """Open the training images: the whole source, or the drawn part. Raises UserError."""
    most = experiment.training.max_image_pixels
    channels = experiment.network.channels
    source = open_source(experiment.data, "train", most, channels)
    return draw_part(source, experiment.images, experiment.seed)


def build_loader(experiment: Experiment, source: Source, machine: Machine) -> PretrainLoader:
    """Return the loader of training batches, also used to time a training. Raises UserError."""
    training = experiment.training
    return PretrainLoader(
        source,
        Views(experiment.views),
        experiment.batch_size,
        Stream(experiment.seed),
        machine.device,
        num_workers=training.num_workers,
        resident_limit_bytes=training.resident_limit_bytes,
        tolerance=training.max_corrupt_share,
        sets=experiment.start.view_sets,
    )


def build_method(
    experiment: Experiment, setting: Setting, machine: Machine, *, filled: bool = True
) -> Method:
    """Return the method before training, on the device and in its memory format.

    Random weights depend on the seed alone. The backbone, its momentum encoder and auxiliary batch-norms get the weights
    of `start`. filled: False if a checkpoint will be loaded, which makes these weights unnecessary. Raises UserError
    if the method's backbone cannot be exported.
    """
    with global_draws(Stream(experiment.seed).child("initial weights")):
        begins = filled and experiment.start.weights is not None
        network = (
            start.begun(experiment.network, experiment.start)
            if begins
            else backbones.build(experiment.network)
        )
        method = experiment.method.build(network, setting)
    exported(method, experiment.network)  # raises before the training
    device = machine.device
    method = (
        precisions.place(method, device) if experiment.training.channels_last else method.to(device)
    )
    processes.broadcast_state(method)
    if experiment.network.checkpoint and not checkpoint_blocks(method):
        raise field_error(
            "network.checkpoint", f"no blocks were found in {experiment.network.name}; leave it out"
        )
    if experiment.training.compile:
        for network in [
            module for module in method.modules() if isinstance(module, Encoder)
        ] or method.children():
            network.compile()
    return method


def build_optimizer(
    experiment: Experiment, method: Method, steps_per_epoch: int
) -> ScheduledOptimizer:
    """Return the optimizer of the method's parameters with its schedule and the backbone's learning rates from `start`.

    Raises ConfigError if nothing learns in the first epoch.
    """
    config = experiment.optimizer
    pace_of = paces(method, experiment.start)
    later = {parameter for parameter, pace in pace_of.items() if pace.from_epoch}
    if later and not any(p.requires_grad and p not in later for p in method.parameters()):
        message = "only the backbone learns, because the method has no head; use 0"
        raise field_error("start.freeze_backbone", message)
    optimizer = optimizers.build(
        method.parameters(), config, experiment.batch_size, method.unscheduled(), pace_of
    )
    epochs = experiment.epochs
    most = experiment.max_steps
    return ScheduledOptimizer(optimizer, config, experiment.schedule, epochs, steps_per_epoch, most)


def paces(method: Method, config: start.StartConfig) -> dict[nn.Parameter, Pace]:
    """Return learning-rate factors of a backbone with initial weights; frozen parameters lose `requires_grad`."""
    if config.weights is None:
        return {}
    rates = start.rates(method, config)
    for parameter, rate in rates.items():
        if not rate:
            parameter.requires_grad_(False)
    return {parameter: Pace(rate, config.freeze_backbone) for parameter, rate in rates.items()}


def remembering(
    experiment: Experiment,
    method: Method,
    machine: Machine,
    learns: Mapping[nn.Parameter, float] | None = None,
) -> Trunk | None:
    """Return the trunk whose activations can be cached, or None.

    Caching needs frozen stages, and no hard example that uses the pixels. learns: learning rate of each parameter
    (default: the rates of the experiment).
    """
    fixed = method.embeds_plainly and experiment.start.keeps_statistics
    if not fixed or any(hard.weight for hard in experiment.hard_examples.values()):
        return None
    shares = learns or start.rates(method, experiment.start)
    side = experiment.views.size
    number = 2 * experiment.network.channels * side**2
    pixels = torch.linspace(0, 1, number, device=machine.device).view(2, -1, side, side)
    return Trunk.of(
        method, lambda parameter: shares.get(parameter, 1.0) > 0, pixels, machine.autocast
    )


def branch_notes(method: Method, setting: Setting) -> list[str]:
    """Return a note if the backbone has no batch-norms to separate the branches."""
    extra = [branch for branch in setting.branches if branch != "main"]
    if not extra or any(
        isinstance(module, BranchBatchNorm) for module in method.backbone.modules()
    ):
        return []
    return [
        f"the backbone has no batch-norm, so {' and '.join(extra)} examples use the same parameters as clean views"
    ]


def build_objective(
    experiment: Experiment,
    method: Method,
    machine: Machine,
    share_gradients: bool = True,
    steps: int | None = None,
) -> Objective:
    """Return the objective of the experiment for a method.

    steps: number of steps of the training; None, for pictures and timing, activates every hard example at once.
    """
    return Objective(
        method,
        experiment.hard_examples,
        experiment.objective,
        autocast=machine.autocast,
        share_gradients=share_gradients,
        steps=steps,
        accumulate=experiment.training.accumulate,
    )


def roomy_setting(experiment: Experiment, data_size: int) -> Setting:
    """Return a setting with as many images as the method needs, for pictures and timing without training."""
    for _ in range(20):
        try:
            return setting_of(experiment, data_size)
        except ConfigError as error:
            refused = error
            data_size *= 2
    raise refused


def fingerprint(experiment: Experiment, source: Source) -> str:
    """Return a hash of everything that determines the trajectory: images, and experiment without training and monitor."""
    others: dict[str, Any] = dict.fromkeys(("training", "monitor", "recipe", "data"), True)
    # the path of weights does not matter, because their digest is included
    others |= {"start": {"weights", "crop", "interpolation"}, "network": {"checkpoint"}}
    parts = [*experiment.essence(others), source.fingerprint]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def kernels(deterministic: bool) -> Iterator[None]:
    """Use deterministic kernels or, on a GPU, the fastest kernels for the given shapes; restore the settings on exit."""
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled()
    benchmark = cudnn.benchmark
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn.benchmark = not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        cudnn.benchmark = benchmark
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def backbone_of(
    experiment: Experiment, method: Method, step: int, epoch: float, images: Source
) -> Backbone:
    """Return the current backbone of a method as a plain network, with step, epoch and training images in its info."""
    network = backbones.build(experiment.network)
    path = next(name for name, module in method.named_modules() if module is method.backbone)
    network.load_state_dict(exported(method, experiment.network))
    info: dict[str, Any] = {
        "recipe": experiment.recipe,
        "method": experiment.method.name,
        "encoder": owner(path),
        "branch": "main",
        "step": step,
        "epoch": epoch,
        "seed": experiment.seed,
        "data": experiment.data,
        "data_fingerprint": images.whole.fingerprint,
    }
    if experiment.start.weights is not None:
        info |= {"start": experiment.start.weights, "start_sha256": experiment.start.sha256}
    config = experiment.network
    start = experiment.start
    preparation = Preparation(
        config.mean, config.std, experiment.views.test_size, start.crop, start.interpolation
    )
    return Backbone(network.eval(), preparation, config, info)
