"""Several sets of batch-norms in one network, and batch statistics per group of images (F14,
F5)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from hexa.config import UserError
from hexa.core.batch import MAIN, Branch, run_sizes
from hexa.nn.norm_functions import FixedNorm, GroupedNorm
from hexa.nn.synchronized_norm import SynchronizedNorm
from hexa.runtime import processes


def groups_here(groups: int) -> int:
    """Return the number of groups in this process, of `groups` over all processes; each is a run of
    consecutive images."""
    return max(1, groups // processes.world_size())


class _Seen(NamedTuple):
    """The batch statistics of a batch-norm in one pass."""

    chosen: Any
    """Holds the running statistics."""
    momentum: float
    mean: Any = None
    """Tensor: mean of each group, [G, C]; None if the running statistics are up to date."""
    spread: Any = None
    """Tensor: unbiased variance of each group, [G, C]; if `counts` is given, 1 / √(Var[x] + eps) with the
    biased variance."""
    counts: tuple[int, ...] = ()
    """Number of values per channel in each group."""
    eps: float = 0.0


@dataclass
class Switch:
    """The current branch of a network's batch-norms; all of them share this object, so switching is
    free.

    apart: True if processes have different groups, so that running statistics must be averaged.
    images: number of images in a pass, each with the same number of rows; 0 if each row is an
    image.
    seen: batch statistics for the update of the running ones at the end of the pass; None outside
    of `use_branch`.
    kept: batch-norms with fixed statistics.
    """

    apart: bool
    branch: Branch = MAIN
    images: int = 0
    seen: list[_Seen] | None = None
    kept: list[BranchBatchNorm] = field(default_factory=list)

    @torch.no_grad()
    def prepare_scales(self) -> None:
        """Compute the scales of all batch-norms with fixed statistics at once, for a pass on a GPU."""
        if self.kept and self.kept[0].weight.is_cuda and self.branch.training:
            sets = [norm.chosen(self.branch) for norm in self.kept]
            spread = torch._foreach_add([s.running_var for s in sets], [n.eps for n in self.kept])
            torch._foreach_rsqrt_(spread)
            scales = torch._foreach_mul(spread, [s.weight for s in sets])
            for norm, scale in zip(self.kept, scales, strict=True):
                norm._scale = scale


@torch.no_grad()
def _follow(seen: list[_Seen]) -> None:
    """Update the running statistics and the counters of passes."""
    turns = defaultdict[int, list[_Seen]](list)
    times = Counter[int]()
    for one in seen:
        place = id(one.chosen)
        # a batch-norm that is used twice in a pass is updated twice, one after the other
        turns[times[place]].append(one)
        times[place] += 1
    for together in turns.values():
        _follow_at_once(together)


def _follow_at_once(seen: list[_Seen]) -> None:
    """r ← r + momentum · (mean over groups − r) for different batch-norms, in few calls of torch."""
    torch._foreach_add_([one.chosen.num_batches_tracked for one in seen], 1)
    alike = defaultdict[Any, list[_Seen]](list)
    for one in seen:
        if one.mean is not None:
            alike[one.momentum, len(one.mean), one.mean.dtype, not one.counts].append(one)
    for (momentum, *_), together in alike.items():
        widths = [one.chosen.running_mean.numel() for one in together]
        means = [one.mean for one in together]
        for name, values in (("running_mean", means), ("running_var", _variances(together))):
            running = [getattr(one.chosen, name) for one in together]
            found = torch.cat(values, 1).mean(0).to(running[0].dtype)  # [G, ΣC] -> [ΣC]
            torch._foreach_lerp_(running, torch.split(found, widths), momentum)


def _variances(seen: list[_Seen]) -> list[Tensor] | tuple[Tensor, ...]:
    """Return the unbiased variance of each group, [G, C], for batch-norms with the same kind of
    spread."""
    spreads = [one.spread for one in seen]
    if not seen[0].counts:
        return spreads
    found = torch._foreach_pow(spreads, -2)
    torch._foreach_sub_(found, [one.eps for one in seen])
    groups = [group for variances in found for group in variances]
    torch._foreach_mul_(groups, [n / (n - 1) for one in seen for n in one.counts])
    return found


class BranchBatchNorm(nn.Module):
    """A batch-norm with one complete set (weight, bias, running mean and variance, counter) per
    branch.

        y = (x − E[x]) / √(Var[x] + eps) · weight + bias

    The main set keeps the plain key names (`bn1.weight`); other sets are stored under their names
    (`bn1.aux.weight`). A plain checkpoint therefore loads, and dropping the extra keys gives a
    plain network.

    `groups` is the argument of `convert`, over all processes. If this process has several groups,
    they are runs of consecutive images; each is normalised with its own statistics, and running
    statistics follow the mean over groups. This equals one batch-norm per GPU (split BN, F5). If
    there are fewer groups than processes, consecutive processes share a group (SyncBN).
    """

    kept: bool = False
    """Normalise with fixed running statistics, also in training (`keep_statistics`)."""
    _scale: Tensor | None = None
    """weight / √(Var[x] + eps) in the current pass, if the statistics are fixed."""

    def __init__(
        self, plain: _BatchNorm, branches: Iterable[str], groups: int, switch: Switch
    ) -> None:
        super().__init__()
        if plain.momentum is None or not (plain.affine and plain.track_running_stats):
            raise UserError(f"{plain}: batch-norms need momentum, affine and track_running_stats")
        self.eps = plain.eps
        self.momentum = plain.momentum
        self.groups = groups_here(groups)
        self.part = max(1, processes.world_size() // groups)
        self.weight = plain.weight
        self.bias = plain.bias
        self.running_mean = nn.Buffer(plain.get_buffer("running_mean"))
        self.running_var = nn.Buffer(plain.get_buffer("running_var"))
        self.num_batches_tracked = nn.Buffer(plain.get_buffer("num_batches_tracked"))
        # timm fuses normalisation, dropout and activation into one module
        self.drop = getattr(plain, "drop", None)
        self.act = getattr(plain, "act", None)
        for branch in branches:
            if branch != "main":
                self.add_module(branch, _one_more(plain))
        self.switch = switch

    def forward(self, x: Tensor) -> Tensor:
        branch = self.switch.branch
        chosen = self.chosen(branch)
        weight = chosen.weight if branch.learns else chosen.weight.detach()
        bias = chosen.bias if branch.learns else chosen.bias.detach()
        if self.kept or not (self.training and branch.training):
            mean = chosen.running_mean
            var = chosen.running_var
            if x.is_cuda and torch.is_grad_enabled():
                y = FixedNorm.apply(x, mean, var, weight, bias, self.eps, self._scale)
            else:
                y = F.batch_norm(x, mean, var, weight, bias, False, 0.0, self.eps)
            return self._acted(y)
        groups = max(1, self.groups // branch.parts)
        momentum = branch.momentum(self.momentum)
        seen = _Seen(chosen, momentum)
        if self.part > 1:
            if torch.compiler.is_compiling():
                torch._dynamo.graph_break()  # compiled graphs cannot contain collectives
            y, mean, var = SynchronizedNorm.apply(x, weight, bias, self.eps, self.part)
            seen = _Seen(chosen, momentum, mean, var)
        elif groups > 1 and len(x) > 1:
            rows = self._rows(x, groups)
            y, mean, invstd = self._grouped(x, weight, bias, rows)
            counts = tuple(number * x[0, 0].numel() for number in rows)
            seen = _Seen(chosen, momentum, mean, invstd, counts, self.eps)
        elif branch.update:
            mean = chosen.running_mean
            var = chosen.running_var
            y = F.batch_norm(x, mean, var, weight, bias, True, momentum, self.eps)
        else:
            y = F.batch_norm(x, None, None, weight, bias, True, 0.0, self.eps)
        pending = self.switch.seen
        if branch.update and pending is not None:
            pending.append(seen)
        elif branch.update:
            _follow([seen])
        return self._acted(y)

    def chosen(self, branch: Branch) -> Any:
        """Return the module that holds the values of this branch."""
        return self if branch.name == "main" else getattr(self, branch.name)

    def _acted(self, y: Tensor) -> Tensor:
        """Apply dropout and activation, which timm fuses with the normalisation."""
        if self.drop is not None:
            y = self.drop(y)
        return y if self.act is None else self.act(y)

    def _rows(self, x: Tensor, groups: int) -> list[int]:
        """Return the number of rows of each group: at least two, and all rows of its images."""
        images = self.switch.images or len(x)
        sizes = run_sizes(images, min(groups, images, len(x) // 2))
        return [len(x) // images * size for size in sizes]

    def _grouped(
        self, x: Tensor, weight: Tensor, bias: Tensor, rows: list[int]
    ) -> tuple[Tensor, ...]:
        """Normalise each group separately; return y, and mean and 1 / √(Var[x] + eps) per group."""
        together = x.is_cuda and rows[0] == rows[-1]
        return GroupedNorm.apply(x, weight, bias, rows, self.eps, together)  # type: ignore[no-any-return]

    @torch.no_grad()
    def copy_main(self, branch: str) -> None:
        """Copy the main set, including running statistics and counter, into the set of `branch`, if
        it exists."""
        further = dict(self.named_children()).get(branch)
        for name, value in further.state_dict().items() if further is not None else ():
            value.copy_(getattr(self, name))


def _one_more(plain: _BatchNorm) -> nn.BatchNorm2d:
    """Return an additional set, initialised with a copy of the first."""
    extra = nn.BatchNorm2d(plain.num_features, plain.eps, plain.momentum)
    extra.load_state_dict(
        plain.state_dict(), strict=False
    )  # not strict: a batch-norm of timm may have an activation with parameters
    for name, parameter in extra.named_parameters():
        parameter.requires_grad_(plain.get_parameter(name).requires_grad)
    return extra.to(plain.weight.device, plain.weight.dtype)


def convert(
    network: nn.Module, branches: Iterable[str] = ("main", "aux"), groups: int = 1
) -> nn.Module:
    """Replace every batch-norm of a torchvision or timm network in place; return the network.

    branches: names of the sets, including "main".
    groups: number of groups of images with separate statistics, over all processes, so W processes
    compute the same as one. Each process has G / W of G groups as runs of its consecutive images
    (split BN). If G < W, W / G consecutive processes share a group (SyncBN; with 1 all of them).
    `Setting.check_groups` checks the numbers.
    Every process must call this in the same way. Training passes go through `use_branch`, which
    keeps running statistics equal on all processes.
    Raises UserError for a batch-norm without scale and shift, running statistics or momentum.
    """
    world = processes.world_size()
    processes.make_parts(max(1, world // groups))
    switch = Switch(apart=groups > 1 and world > 1)
    branches = tuple(branches)

    def replace(module: nn.Module) -> nn.Module:
        if isinstance(module, _BatchNorm):
            return BranchBatchNorm(module, branches, groups, switch)
        for name, child in module.named_children():
            if (swapped := replace(child)) is not child:
                setattr(module, name, swapped)
        return module

    return replace(network)


def keep_statistics(network: nn.Module) -> None:
    """Freeze the statistics of all batch-norms of a converted network: they normalise with the
    current ones from now on.

    Scale and shift still learn. Training and evaluation passes then see the same network, and no
    pass changes statistics.
    """
    for module in network.modules():
        if isinstance(module, BranchBatchNorm):
            module.kept = True
            module.switch.kept.append(module)


@contextmanager
def use_branch(network: nn.Module, branch: Branch = MAIN, images: int = 0) -> Iterator[None]:
    """Use the batch-norms of one branch inside the context.

    images: number of images, if an image has several rows (crops, tiles), ordered by runs of
    images. If processes have different groups, passes that update running statistics end in a
    collective; then all processes have the mean over all groups, as a single process would. Has no
    effect on a network without batch-norm (a ViT).
    """
    switch = next((m.switch for m in network.modules() if isinstance(m, BranchBatchNorm)), None)
    if switch is None:
        yield
        return
    before = switch.branch, switch.images, switch.seen
    switch.branch = branch
    switch.images = images
    switch.seen = []
    switch.prepare_scales()
    try:
        yield
        _follow(switch.seen)
        if switch.apart and branch.training and branch.update and network.training:
            _average_statistics(network, branch.name)
    finally:
        switch.branch, switch.images, switch.seen = before
        for norm in switch.kept:
            norm._scale = None


def _average_statistics(network: nn.Module, branch: str) -> None:
    """Set the running statistics of every process to their mean over processes.

    Running statistics are linear in the batch statistics, so this equals following the mean over
    all groups.
    """
    norms = [
        module
        for module in network.modules()
        if isinstance(module, BranchBatchNorm) and not module.kept
    ]
    sets: list[Any] = [norm if branch == "main" else getattr(norm, branch) for norm in norms]
    # .data: torch's batch-norm saves these tensors for backward, but does not use them in training
    processes.average(
        [s.data for chosen in sets for s in (chosen.running_mean, chosen.running_var)]
    )
