"""Loads a state dict into its network, and names what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hexa.config import UserError, some
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.weights.files import State

#: Types of stored weights.
_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Parts of the names of momentum twins, which have the same keys as the encoder.
_TWINS = ("key", "encoder_k", "momentum", "teacher", "target", "ema")


def find_backbone(
    state: State, network: nn.Module, where: str, branch: str = "main"
) -> tuple[dict[str, Tensor], str]:
    """The tensors of `network` in the state of a method, with plain key names, and the name of the encoder: query, …

    A prefix with all keys of the network is a candidate. Of several, the first that is not a momentum twin is chosen,
    but of a student and its teacher the teacher (DINO). branch: the set of batch-norms
    (`bn1.aux.weight`) that takes the place of the main one (`bn1.weight`).
    """
    own = network.state_dict()
    first = next(iter(own))
    prefixes = [
        key.removesuffix(first) for key in state if key == first or key.endswith("." + first)
    ]
    whole = {
        prefix: prefix.split(".")
        for prefix in prefixes
        if all(prefix + key in state for key in own)
    }
    if not whole:
        raise UserError(
            f"{where}: does not have the network in config.yaml; one of the two has been changed"
        )
    taught = [prefix for prefix, parts in whole.items() if "teacher" in parts]
    if not taught or not any("student" in parts for parts in whole.values()):
        taught = [
            prefix for prefix, parts in whole.items() if not any(word in parts for word in _TWINS)
        ]
    chosen = [*taught, *whole][0]
    found = {
        key.removeprefix(chosen): value for key, value in state.items() if key.startswith(chosen)
    }
    mark = f".{branch}."
    of_branch = {
        key.replace(mark, "."): value
        for key, value in found.items()
        if mark in key and branch != "main"
    }
    if branch != "main" and not of_branch.keys() & found.keys():
        raise UserError(
            f"{where}: its backbone has no batch-norms '{branch}'; give the branch main"
        )
    return found | {key: value for key, value in of_branch.items() if key in found}, owner(chosen)


def owner(path: str) -> str:
    """The last encoder in a path such as `contrast.query.backbone`: query."""
    parts = path.rstrip(".").split(".")
    return parts[-2] if len(parts) > 1 else "encoder"


def filled(
    config: NetworkConfig,
    state: State,
    where: str,
    remedy: str,
    check: Callable[[State], None] = lambda used: None,
) -> nn.Module:
    """The network with a backbone's state; every key must match, or UserError lists those that do not.

    Exceptions: further batch-norm sets (`bn1.aux.weight` beside `bn1.weight`) are dropped, and the counter
    `num_batches_tracked`, which old files lack, stays 0. remedy: what to do about tensors that do not match. check:
    raises for unusable tensors.
    """
    pixels = config.name == "pixels"
    outline = nn.Flatten() if pixels else outlined(config, where)
    own = outline.state_dict()
    plain = own_branch(state, own)
    if problem := misfit(own, plain):
        raise UserError(
            f"{where}: not the state of this network: {problem}{remedy and f'; {remedy}'}"
        )
    check(plain)
    learnt = {name for name, _ in outline.named_parameters()}
    for key, value in plain.items():
        if own[key].is_floating_point() and value.dtype not in _REAL:
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(
                f"{where}: {key} has type {kind}; weights must be floats of 16 bits or more"
            )
        # masks may be infinite
        if (
            key in learnt or key.endswith(("running_mean", "running_var"))
        ) and not value.isfinite().all():
            raise UserError(f"{where}: {key} has values that are not finite; use an earlier file")
    network = nn.Flatten() if pixels else backbones.build(config)
    network.load_state_dict(network.state_dict() | plain, strict=True)
    return network


def outlined(config: NetworkConfig, where: str) -> nn.Module:
    """`backbones.outline` of a file's network. Raises UserError that names the file."""
    try:
        return backbones.outline(config)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def misfit(own: State, state: State) -> str:
    """Which keys a state lacks, has in excess, or has with another shape than a network's own; empty if it fits."""
    shapes = [k for k in own if k in state and state[k].shape != own[k].shape]
    problems = {
        "it lacks": [k for k in own if k not in state and not k.endswith("num_batches_tracked")],
        "unknown keys are": [k for k in state if k not in own],
        "of another shape are": [
            f"{k} ({list(state[k].shape)}, not {list(own[k].shape)})" for k in shapes
        ],
    }
    return "; ".join(f"{problem} {some(keys)}" for problem, keys in problems.items() if keys)


def own_branch(state: State, own: State) -> dict[str, Tensor]:
    """A state without further batch-norm sets."""
    return {key: value for key, value in state.items() if not _is_further_branch(key, own)}


def _is_further_branch(key: str, own: Mapping[str, Tensor]) -> bool:
    """Whether a key is like `layer.aux.weight`, with `layer` a batch-norm."""
    layer, *rest = key.rsplit(".", 2)
    return (
        key not in own
        and len(rest) == 2
        and {f"{layer}.running_mean", f"{layer}.{rest[1]}"} <= own.keys()
    )
