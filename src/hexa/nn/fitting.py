"""Putting a state dict into the network that it belongs to, and naming what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from hexa.config import UserError
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig

State = Mapping[str, Tensor]

#: Types that weights are stored in.
_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Momentum twins of the encoder that is meant, by words of their names: they hold the same keys.
_TWINS = ("key", "encoder_k", "momentum", "teacher", "target", "ema")


def find_backbone(state: State, network: nn.Module, where: str) -> tuple[dict[str, Tensor], str]:
    """The tensors of `network` inside the state of a method, under the plain key names, and its encoder: query, …

    Every prefix under which all keys of the network lie is a candidate; of several, the first that is not a momentum
    twin. But of a student and its teacher, the teacher is what was trained for (DINO).
    """
    own = network.state_dict()
    probe = next(iter(own))
    prefixes = [key.removesuffix(probe) for key in state if key == probe or key.endswith("." + probe)]
    whole = [prefix for prefix in prefixes if all(prefix + key in state for key in own)]
    trained = [prefix for prefix in whole if not any(word in prefix.split(".") for word in _TWINS)]
    if not whole:
        raise UserError(f"{where}: holds no network as config.yaml describes it; the run has been changed since")
    taught = [prefix for prefix in whole if "teacher" in prefix.split(".")]
    if taught and any("student" in prefix.split(".") for prefix in whole):
        trained = taught
    chosen = (trained or whole)[0]
    return {key.removeprefix(chosen): value for key, value in state.items() if key.startswith(chosen)}, owner(chosen)


def with_branch(state: State, branch: str, where: str) -> dict[str, Tensor]:
    """The state with a further set of batch-norms (`bn1.aux.weight`) in the place of the main one (`bn1.weight`)."""
    plain = {key: key.replace(f".{branch}.", ".") for key in state if f".{branch}." in key}
    chosen = {name: state[key] for key, name in plain.items() if name in state}
    if not chosen:
        raise UserError(f"{where}: its backbone has no batch-norms '{branch}'; leave out --branch for the main ones")
    return {**state, **chosen}


def owner(path: str) -> str:
    """The encoder that a path such as `contrast.query.backbone` goes through last: query."""
    parts = path.rstrip(".").split(".")
    return parts[-2] if len(parts) > 1 else "encoder"


def filled(
    config: NetworkConfig, state: State, where: str, check: Callable[[State], None], remedy: str = ""
) -> nn.Module:
    """The network with a backbone's state; every key must match, and all that don't are listed in the UserError.

    What may differ: a further batch-norm set (`bn1.aux.weight` beside `bn1.weight`) is dropped, and the counter
    `num_batches_tracked`, which old files lack, stays 0. check: raises for tensors that can't be used.
    remedy: what to do about tensors that don't match.
    """
    outline = nn.Flatten() if config.name == "pixels" else outlined(config, where)
    own = outline.state_dict()
    plain = {key: value for key, value in state.items() if not _is_further_branch(key, own)}
    problem = misfit(own, plain)
    if problem:
        raise UserError(f"{where}: not the state of this network: {problem}{remedy and f'; {remedy}'}")
    check(plain)
    learnt = {name for name, _ in outline.named_parameters()}
    for key, value in plain.items():
        if own[key].is_floating_point() and value.dtype not in _REAL:
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{where}: {key} holds {kind}; weights are real numbers of 16 bits or more")
        # buffers of masks may be infinite
        if (key in learnt or key.endswith(("running_mean", "running_var"))) and not value.isfinite().all():
            raise UserError(f"{where}: {key} holds values that are not finite; take an earlier file")
    network = nn.Flatten() if config.name == "pixels" else backbones.build(config)
    network.load_state_dict(network.state_dict() | plain, strict=True)
    return network


def outlined(config: NetworkConfig, where: str) -> nn.Module:
    """`backbones.outline` of what a file describes. Raises UserError that names the file."""
    try:
        return backbones.outline(config)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def misfit(own: State, given: State) -> str:
    """Which keys a state lacks, has too much, or has in another shape than a network's own; empty if it fits."""
    problems = {
        "it lacks": [k for k in own if k not in given and not k.endswith("num_batches_tracked")],
        "it has the unknown": [k for k in given if k not in own],
        "of another shape are": [
            f"{k} ({list(given[k].shape)}, not {list(own[k].shape)})"
            for k in own
            if k in given and given[k].shape != own[k].shape
        ],
    }
    return "; ".join(f"{what} {listed(keys)}" for what, keys in problems.items() if keys)


def _is_further_branch(key: str, own: Mapping[str, Tensor]) -> bool:
    """`layer.aux.weight` where `layer` is a batch-norm."""
    parts = key.split(".")
    if key in own or len(parts) < 3:
        return False
    base = ".".join(parts[:-2])
    return f"{base}.running_mean" in own and f"{base}.{parts[-1]}" in own


def listed(keys: Sequence[str], most: int = 4) -> str:
    """The first few keys, and how many there are."""
    more = f" … ({len(keys)} in all)" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
