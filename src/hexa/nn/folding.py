"""Folding: merge the batch-norms of a frozen network into the preceding convolutions, for equal
outputs in less time."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

Network = TypeVar("Network", bound=nn.Module)

#: Largest output difference that counts as rounding, as a share of the largest output.
_ROUNDING = 1e-4


def folded(network: Network, images: Tensor) -> Network:
    """Return a copy of a network in evaluation mode, with batch-norms folded into the preceding
    convolutions.

        w' = w · γ / √(Var + eps),  b' = (b − E) · γ / √(Var + eps) + β

    A batch-norm is folded if its input is always the output of one convolution and of nothing else,
    as observed in a pass of `images` [B, C, H, W] (one image is enough). The copy shares no tensor
    with the network, and its outputs are equal up to rounding. Returns the network itself, in
    evaluation mode, if it has no such batch-norm, if it cannot be copied, or if its outputs change
    by more than rounding. If there are several sets of batch-norms, the main set is folded.
    """
    network.eval()
    if not any(map(_has_statistics, network.modules())):
        return network
    device = next(network.parameters()).device
    try:
        # on the CPU, whose convolutions are not rounded to TF32
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return _folded(network, images.cpu()).to(device)
    except Exception:  # networks raise all sorts of exceptions if they are copied or changed
        return network


def _folded(network: Network, images: Tensor) -> Network:
    """Return the folded copy, on the CPU. Raises ValueError if its outputs differ."""
    copied = copy.deepcopy(network).cpu()
    expected, pairs = _followers(copied, images)
    if not pairs:
        raise ValueError("nothing to fold")
    names = {module: name for name, module in copied.named_modules()}
    for conv, norm in pairs:
        copied.set_submodule(names[conv], fuse_conv_bn_eval(conv, norm))
        # keep dropout and activation, which some batch-norms apply after the normalisation
        further = [getattr(norm, name, None) for name in ("drop", "act")]
        kept = [module for module in further if module is not None]
        copied.set_submodule(names[norm], nn.Sequential(*kept))
    difference = (copied(images) - expected).abs().max()
    if not difference <= _ROUNDING * expected.abs().max():
        raise ValueError("outputs differ")
    return copied


def _has_statistics(module: nn.Module) -> bool:
    """Return whether a module is a batch-norm with running statistics: torch's, timm's, or one with
    branches."""
    return getattr(module, "running_mean", None) is not None


def _followers(network: nn.Module, images: Tensor) -> tuple[Tensor, list[tuple[Any, Any]]]:
    """Return the output for `images`, and each convolution with the batch-norm that always takes
    its output."""
    last: list[tuple[nn.Module, Tensor]] = []
    calls = Counter[nn.Module]()
    followed = Counter[tuple[nn.Module, nn.Module]]()

    def after(conv: nn.Module, _: object, output: Tensor) -> None:
        calls[conv] += 1
        last[:] = [(conv, output)]

    def before(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls[norm] += 1
        for conv, output in last:
            if inputs[0] is output:
                followed[conv, norm] += 1

    handles = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            handles.append(module.register_forward_hook(after))
        elif _has_statistics(module):
            handles.append(module.register_forward_pre_hook(before))
    try:
        output: Tensor = network(images)
    finally:
        for handle in handles:
            handle.remove()
    pairs = [pair for pair, count in followed.items() if calls[pair[0]] == count == calls[pair[1]]]
    return output, pairs
