"""Loading a state dict into its network, and reporting tensors that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hexa.config import UserError, some
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.weights.files import State

if TYPE_CHECKING:
    from hexa.core import Method

#: Types of stored weights.
_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def owner(path: str) -> str:
    """Return the last encoder in a path such as `contrast.query.backbone`: query."""
    parts = path.rstrip(".").split(".")
    return parts[-2] if len(parts) > 1 else "encoder"


def filled(config: NetworkConfig, state: State, where: str, remedy: str = "") -> nn.Module:
    """Return the network with a backbone's state; every key must match, otherwise UserError lists
    those that do not.

    Exceptions: additional batch-norm sets (`bn1.aux.weight` next to `bn1.weight`) are dropped, and
    the counter `num_batches_tracked`, which old files lack, stays 0.
    remedy: advice for tensors that do not match.
    """
    outline = outlined(config, where)
    own = outline.state_dict()
    plain = own_branch(state, own)
    problem = misfit(own, plain)
    if problem:
        said = f"{problem}; {remedy}" if remedy else problem
        raise UserError(f"{where}: not the state of this network: {said}")
    learnt = {name for name, _ in outline.named_parameters()}
    for key, value in plain.items():
        if own[key].is_floating_point() and value.dtype not in _REAL:
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(
                f"{where}: {key} has type {kind}; weights must be floats of 16 bits or more"
            )
            # masks may be infinite
        is_number = key in learnt or key.endswith(("running_mean", "running_var"))
        if is_number and not value.isfinite().all():
            raise UserError(f"{where}: {key} has values that are not finite; use an earlier file")
    network = backbones.build(config)
    network.load_state_dict(network.state_dict() | plain, strict=True)
    return network


def outlined(config: NetworkConfig, where: str) -> nn.Module:
    """`backbones.outline` for a network in a file. Raises UserError that names the file."""
    try:
        return backbones.outline(config)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def exported(method: Method, config: NetworkConfig) -> dict[str, Tensor]:
    """Return the weights of a method's backbone as those of the plain network. Raises UserError
    that lists tensors that do not fit."""
    own = backbones.outline(config).state_dict()
    state = own_branch(method.backbone.state_dict(), own)
    if problem := misfit(own, state):
        name = type(method).__name__
        raise UserError(f"{name}.backbone is not the network that {name} was given: {problem}")
    return state


def misfit(own: State, state: State) -> str:
    """Return the keys that a state lacks, has in excess, or has with another shape than the
    network; empty if it fits."""
    shapes = [
        f"{key} ({list(state[key].shape)}, not {list(value.shape)})"
        for key, value in own.items()
        if key in state and state[key].shape != value.shape
    ]
    lacking = own.keys() - state.keys()
    problems = {
        "it lacks": [
            key for key in own if key in lacking and not key.endswith("num_batches_tracked")
        ],
        "unknown keys are": [key for key in state if key not in own],
        "of another shape are": shapes,
    }
    return "; ".join(f"{problem} {some(keys)}" for problem, keys in problems.items() if keys)


def own_branch(state: State, own: State) -> dict[str, Tensor]:
    """Return a state without additional batch-norm sets."""
    found = {}
    for key, value in state.items():
        # `layer.aux.weight`, with `layer` a batch-norm
        layer, *rest = key.rsplit(".", 2)
        is_branch = len(rest) == 2 and {f"{layer}.running_mean", f"{layer}.{rest[1]}"} <= own.keys()
        if key in own or not is_branch:
            found[key] = value
    return found
