"""The state of a training for a checkpoint, and resuming from it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils._pytree import tree_leaves

from hexa.config import UserError
from hexa.runtime import processes
from hexa.runtime.checkpoints import State

if TYPE_CHECKING:
    from hexa.training.trainer import Trainer


def state_of(trainer: Trainer) -> State:
    """Return everything that later steps depend on; in processes other than the main one, their
    rows of sharded entries. Random states are not needed: randomness is a function of the step.

    Every process calls this.
    """
    method = trainer.objective.method
    own = method.checkpoint()
    sums = trainer.window.state
    if not processes.is_main():
        return {"method": {name: own[name] for name in method.sharded}}
    return {
        "method": own,
        "parts": processes.world_size() if method.sharded else 1,
        "optimizer": trainer.optimizer.optimizer.state_dict(),
        "step": trainer.step,
        "total_steps": trainer.optimizer.total_steps,
        "sets": trainer.loader.sets,
        "starts": trainer.objective.starts,
        "epoch": trainer.epoch,
        "seconds": trainer.clock.total,
        "pauses": trainer.clock.pauses,
        "steps_per_epoch": trainer.steps_per_epoch,
        "fingerprint": trainer.fingerprint,
        "code": trainer.code,
        "world_size": processes.world_size(),
        "window": sums,
        "watch": trainer.watch.state,
        "best": trainer.scoring.state,
    }


def on_host(state: State) -> State:
    """Return a copy of a state in the host's memory, which later steps do not change."""
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    return copy.deepcopy(state, {id(one): one.detach().to("cpu", copy=True) for one in tensors})


def restore(trainer: Trainer, state: State) -> list[str]:
    """Resume from a checkpoint's state; return warnings. Raises UserError if experiment or data
    have changed."""
    changed = None
    if state["fingerprint"] != trainer.fingerprint:
        changed = "config.yaml or the images have changed"
    elif state["steps_per_epoch"] != trainer.steps_per_epoch:
        changed = "the data has changed"
    if changed is not None:
        raise UserError(
            f"{changed} since the checkpoint at step {state['step']}; undo the change, or "
            "start a new run with 'hexa pretrain'"
        )
    trainer.objective.method.restore(state["method"])
    # copy, because the loaded tensors may be memory-mapped
    trainer.optimizer.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    trainer.step = state["step"]
    trainer.seconds = state["seconds"]
    trainer.pauses = state.get("pauses", 0.0)
    if trainer.config.max_seconds is not None:
        trainer.optimizer.total_steps = state.get("total_steps", trainer.optimizer.total_steps)
        trainer.loader.sets = state.get("sets", trainer.loader.sets)
    trainer.objective.starts = state.get("starts", trainer.objective.starts)
    trainer.objective.stretch(trainer.step, trainer.optimizer.step_of)
    trainer.saved_step = trainer.step
    trainer.window.state = state["window"]
    trainer.watch.state = state["watch"]
    trainer.scoring.state = state["best"]
    warnings = []
    before = state["world_size"]
    now = processes.world_size()
    if before != now:
        warnings.append(
            f"{before} processes before, {now} now: results differ by rounding and by the "
            "random draws of each process for its images"
        )
    code = state.get("code", "")
    if code and trainer.code and code != trainer.code:
        warnings.append(
            f"the file of the recipe has changed since the checkpoint at step {state['step']}; "
            "from here on the run follows the changed file"
        )
    return warnings
