"""Re-estimates batch-norm statistics on other images, without learning."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hexa.config import UserError
from hexa.data import Source
from hexa.data.loaders import evaluation_batches
from hexa.data.source import Subset
from hexa.evaluation.transforms import transform_of
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Images that suffice: a thousand and more (Wu & Johnson 2021).
MOST = 2048
_BATCH = 256


def re_estimate(
    backbone: Backbone, source: Source, seed: int = 0, most: int = MOST, device: torch.device | str = "cpu"
) -> Backbone:
    """Set the running statistics of the backbone's batch-norms to those of `source`, in place; returns the backbone.

    At most `most` images, chosen by the seed, without augmentation, prepared as for evaluation; fp32. A function of
    weights, images, seed and type of device alone, so every process of a run computes the same. Raises UserError for a
    network without batch-norms, and for unreadable images.
    """
    order = torch.randperm(len(source), generator=Stream(seed).child("re-estimated statistics").generator())
    chosen = order[:most].sort().values
    size = -(-len(chosen) // -(-len(chosen) // _BATCH))  # batches of nearly equal size
    images = evaluation_batches(Subset(source, chosen.numpy()), transform_of(backbone), size, device)
    backbone.to(device)
    accumulate(backbone, (pixels for pixels, _, _ in images))
    backbone.info["statistics"] = f"re-estimated on {len(chosen)} images of {source.name}#{source.split}"
    return backbone.cpu()


@torch.no_grad()
def accumulate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set the running statistics of every batch-norm to mean and variance of its input over all batches (PreciseBN).

        μ = Σ n_b·μ_b / n        σ² = (Σ n_b·(σ_b² + μ_b²) / n − μ²) · n / (n − 1)

    n_b is the number of values per channel in batch b, n that of all; sums are fp64. Each batch is normalised with its
    own μ_b and σ_b², as in training (Wu & Johnson 2021, "Rethinking 'Batch' in BatchNorm"). The network is left in
    evaluation mode. Raises UserError if it has no batch-norm.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        raise UserError("start.batch_norm: the network has no batch-norms to re-estimate; leave it out")
    sums: dict[_BatchNorm, Tensor] = {}  # [3, C]: n, Σ x, Σ x²

    def look(norm: _BatchNorm, inputs: tuple[Tensor]) -> None:
        x = inputs[0]  # [B, C] or [B, C, H, W]
        var, mean = torch.var_mean(x, [d for d in range(x.ndim) if d != 1], correction=0)
        _set(norm, mean, var)
        count = torch.full_like(mean, x.numel() // x.shape[1], dtype=torch.float64)
        mean, var = mean.double(), var.double()
        part = torch.stack([count, count * mean, count * (var + mean.square())])
        sums[norm] = sums[norm] + part if norm in sums else part

    network.eval()
    hooks = [norm.register_forward_pre_hook(look) for norm in norms]
    try:
        for images in batches:
            network(images)
    finally:
        for hook in hooks:
            hook.remove()
    for norm, (count, first, second) in sums.items():
        mean = first / count
        _set(norm, mean, (second / count - mean.square()).clamp_min(0) * count / (count - 1).clamp_min(1))


def _set(norm: _BatchNorm, mean: Tensor, var: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
