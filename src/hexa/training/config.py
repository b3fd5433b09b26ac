"""How a run is carried out: none of it changes what is learned, beyond rounding."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from hexa.config import Config, Share
from hexa.data.sources.decode import MAX_IMAGE_PIXELS
from hexa.training import trackers


class TrainingConfig(Config):
    """Device, precision, logging and checkpoints of a run."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto is bf16 where the hardware has it, else fp32."""
    channels_last: bool = True
    """Keep images and filters with channels innermost, which convolutions prefer."""
    compile: bool = False
    """Compile the networks with torch.compile: a minute at the start, faster steps on a GPU."""
    graph: Literal["auto"] | bool = False
    """auto: on a GPU, repeat steps as CUDA graphs, which launch thousands of small kernels at once; true: say so if that
    is not possible. It was tried on the CPU alone, with a stand-in for the graph."""
    deterministic: bool = False
    """Take only deterministic GPU kernels, so that two runs agree bit for bit there too. On a CPU they do so anyway in
    fp32; in bf16 some of its kernels differ from call to call."""
    num_workers: NonNegativeInt | None = None
    """Processes that decode photographs; none: chosen from the number of cores. Sources that fit the memory limit need
    none."""
    resident_limit_bytes: NonNegativeInt = 4 * 1024**3
    """Sources up to this size, decoded, are kept in the device's memory."""
    max_corrupt_share: Share = 0.01
    """The run stops when a larger share of the images cannot be read."""
    max_image_pixels: PositiveInt = MAX_IMAGE_PIXELS
    """Larger images, judged by their header, count as unreadable: a file of some kilobytes can unfold to
    gigabytes. As given, the size from which on Pillow warns; it opens no WebP or TIFF of twice as many."""
    max_seconds: PositiveFloat | None = None
    """The time for training and scores: as the run goes, its number of steps, and with it the schedule, is fitted to
    what is left of this time at the speed of the last steps. None: `epochs` and `max_steps` say how long it is."""
    log_every: PositiveInt = 20
    """Steps between two lines of metrics."""
    checkpoint_every: PositiveInt = 1
    """Epochs between two checkpoints; the last epoch always ends with one."""
    checkpoint_every_steps: PositiveInt | None = None
    """Also a checkpoint whenever this number of steps is done; none for epochs only."""
    keep: PositiveInt = 2
    """How many checkpoints are kept, the newest ones."""
    keep_every: PositiveInt | None = None
    """Epochs between two further checkpoints, which stay however many are newer; none for no such checkpoints."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    tracker: trackers.Name | None = None
    """Report to wandb (Weights & Biases) too; the account comes from its own settings."""
    report: bool = True
    """Write report.html at the end."""
