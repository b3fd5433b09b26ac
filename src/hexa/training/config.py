"""Execution of a run: none of these fields changes what is learned, beyond rounding and the batch
statistics that `accumulate` describes."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from hexa.config import Config, Share
from hexa.data.sources.decode import MAX_IMAGE_PIXELS
from hexa.training import trackers


class TrainingConfig(Config):
    """Device, precision, logging and checkpoints of a run."""

    device: str = "auto"
    """Device: auto, cpu, cuda or cuda:N; auto uses a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the networks: auto is bf16 if the hardware supports it, otherwise fp32."""
    channels_last: bool = True
    """Store images and filters with channels innermost, which is faster for convolutions."""
    accumulate: PositiveInt = 1
    """Number of micro-batches per step: activations are stored for one micro-batch at a time, and
    gradients add up to those of the whole batch. Exact for every method. If the loss compares the
    images of a batch (SimCLR, CPC, SimSiam, SwAV), each pass needs one more forward pass; with
    objective.split, and in the own passes of attacks, this holds for all methods. Queue,
    memory bank and momentum network see the whole batch, once per step. Batch statistics of the
    trained network are exact if each process has a multiple of this number of method.bn_groups
    that divides the images of each term; otherwise they are those of a micro-batch, like the
    statistics of one GPU. A micro-batch has two images or more."""
    compile: bool = False
    """Compile the networks with torch.compile: takes about a minute at the beginning, makes steps
    faster on a GPU."""
    graph: Literal["auto"] | bool = False
    """Replay steps as CUDA graphs, which launch thousands of small kernels at once; auto and true
    do so if possible (experimental: not yet tried on a GPU)."""
    deterministic: bool = False
    """Use only deterministic GPU kernels, so that two runs agree bit for bit on a GPU too. On a CPU
    fp32 runs always agree; in bf16 some CPU kernels differ from call to call."""
    num_workers: NonNegativeInt | None = None
    """Number of processes that decode photographs; none chooses it from the number of cores.
    Sources below `resident_limit_bytes` need no processes."""
    resident_limit_bytes: NonNegativeInt = 4 * 1024**3
    """Keep a source in the device's memory if its decoded images have at most this size in
    bytes."""
    max_corrupt_share: Share = 0.01
    """Stop the run if a larger share of the images cannot be read."""
    max_image_pixels: PositiveInt = MAX_IMAGE_PIXELS
    """Treat images with more pixels, according to their header, as unreadable, because a file of a
    few kilobytes can decode to gigabytes. Above the default Pillow warns; above twice the default
    it does not open WebP and TIFF files."""
    max_seconds: PositiveFloat | None = None
    """Time limit for training and scores, in seconds. During the run, the number of steps and thus
    the schedule are adjusted to the time left, at the throughput of the last steps. none: `epochs`
    and `max_steps` set the length."""
    log_every: PositiveInt = 20
    """Steps between two log lines."""
    checkpoint_every: PositiveInt = 1
    """Epochs between two checkpoints; the last epoch always ends with one."""
    checkpoint_every_steps: PositiveInt | None = None
    """Steps between two additional checkpoints; none saves after epochs only."""
    keep: PositiveInt = 2
    """Number of checkpoints to keep; older ones are deleted."""
    keep_every: PositiveInt | None = None
    """Epochs between two checkpoints that are never deleted; none keeps the newest only."""
    tensorboard: bool = True
    """Write TensorBoard events in addition to metrics.jsonl."""
    tracker: trackers.Name | None = None
    """Also report to wandb (Weights & Biases); the account comes from its own settings."""
    report: bool = True
    """Write report.html at the end."""
