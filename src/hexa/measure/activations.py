"""Memory of training on a GPU, estimated without one from the sizes of tensors on the meta device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hexa.core import MAIN, Batch
from hexa.nn.branch_norm import BranchBatchNorm
from hexa.nn.encoder import Encoder
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import Machine, build_method, roomy_setting
from hexa.runtime.random import Stream


def memory_of(experiment: Experiment, images: int, dtype: torch.dtype) -> int:
    """Bytes for this number of images in one pass, with activations of type `dtype`.

    The sum of what autograd keeps of the clean pass, and of weights, gradients and optimizer state in
    fp32. Kernels need some more while they work; a memory bank is not counted.
    """
    experiment = override(experiment, {"training.compile": False})
    setting = roomy_setting(experiment, experiment.batch_size)
    machine = Machine(torch.device("cpu"), "fp32")
    method = build_method(experiment, setting, machine, filled=False)
    method = method.to("meta", dtype)
    for module in method.modules():
        if isinstance(module, BranchBatchNorm | Encoder):
            module.groups = 1  # the same tensors in any number of groups
    with torch.device("meta"):
        crops = []
        for group in experiment.views.groups:
            side = group.size or experiment.views.size
            crop = torch.rand(images, experiment.network.channels, side, side, dtype=dtype)
            crops += [crop] * group.count
        batch = Batch(tuple(crops), torch.arange(images), Stream(0))
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            method.embed(method.anchors(batch), MAIN)
    standing = list(method.state_dict().values())
    for tensor in standing:
        kept.pop(tensor.untyped_storage()._cdata, None)
    activations = sum(storage.nbytes() for storage in kept.values())
    numbers = sum(tensor.numel() for tensor in standing)
    learning = sum(p.numel() for p in method.parameters() if p.requires_grad)
    copies = 3 if experiment.optimizer.name == "adamw" else 2
    state: int = 4 * (numbers + copies * learning)
    return activations + state
