"""The loop around an objective (DESIGN §3.2). It knows the contract of `hexa.core` and no method by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.core import Batch, Objective
from hexa.runtime import checkpoints, processes
from hexa.runtime.progress import Reporter
from hexa.runtime.signals import Interrupted, Interrupts
from hexa.runtime.turns import turns
from hexa.training.clock import Clock
from hexa.training.journal import Journal
from hexa.training.looking import Looking
from hexa.training.losses import LossWindow, NonFiniteError, StepFacts, is_finite
from hexa.training.monitor import PERCENT, Best, Watch
from hexa.training.optimizers import clip_each_gradient, thaw
from hexa.training.plan import Loader, Plan, Prepared
from hexa.training.schedules import learning_rate_share

__all__ = ["Loader", "Plan", "Trainer"]


@dataclass
class Trainer:
    """Trains, logs, saves; `run` returns at the end or raises Interrupted or NonFiniteError.

    folder: the run's folder, None to write no checkpoints. monitor: metrics of the frozen features, in percent.
    Every process holds one; only the main one writes. `step` counts finished steps.
    """

    objective: Objective
    optimizer: torch.optim.Optimizer
    loader: Loader
    plan: Plan
    device: torch.device
    folder: Path | None = None
    journal: Journal = field(default_factory=lambda: Journal(None))
    reporter: Reporter = field(default_factory=lambda: Reporter(None, 0))
    monitor: Callable[[], dict[str, float]] | None = None
    watch: Watch | None = None
    best: Best = field(default_factory=lambda: Best(None))
    keep: Callable[[], object] = lambda: None
    """Keeps the weights as they are, the best so far."""
    step: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._window = LossWindow(self.device)
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._interrupts = Interrupts(lambda message: self.reporter.say(message))
        self._offer_cores: Callable[[], None] = lambda: None
        self._saved_step = -1
        self._ended: int | None = None
        self._problems: set[str] = set()
        self.looking = Looking(self.warn)
        self._clock = Clock(self.loader)

    @property
    def steps_per_epoch(self) -> int:
        return self.loader.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """The step after which the run ends."""
        ends = (self.plan.epochs * self.steps_per_epoch, self.plan.max_steps, self._ended)
        return min(end for end in ends if end is not None)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train to the end from wherever the state stands."""
        method = self.objective.method
        with self._interrupts, turns(self.device) as self._offer_cores:
            self._clock.start(self.seconds)
            self._monitor_if_due(self.journal.there)
            self._end_if_due(self.journal.there)
            while self.step < self.total_steps:
                epoch, start = divmod(self.step, self.steps_per_epoch)
                method.train()
                thaw(self.optimizer, epoch)
                if start == 0:
                    self._start_epoch(epoch)
                for batch in self.loader.epoch(epoch, start):
                    self._train_step(self._prepared(batch))
                    self._after_step()
                    if self.step == self.total_steps:
                        break
                self._list_problems()

    def _start_epoch(self, epoch: int) -> None:
        """What the method does between epochs; its time counts as training.

        A pass over the data may take long: a process that is alone saves its state first, and stops in the middle if
        it is asked to. Several, which may see different numbers of batches there, stop after the next step.
        """
        method = self.objective.method

        def prepared(batch: Batch) -> Batch:
            if processes.world_size() == 1:
                if self.step:
                    self.save()
                if self._interrupts.received is not None:
                    raise Interrupted(self._interrupts.received, self.step, self.folder)
            return self._prepared(batch)

        with self.objective.score.autocast():
            facts = method.start_epoch(epoch, Prepared(self.loader.passes(epoch), prepared))
        method.train()
        if facts:
            self.journal.write("epoch", self.step, epoch=epoch, seconds=self._clock.total, **facts)
            if self.watch is not None:
                self.warn(self.watch.epoch(facts))

    def _prepared(self, batch: Batch) -> Batch:
        """Layers that draw numbers (dropout) draw those of this step and process, as everything else does.

        Between two batches, of a step or of what a method does between epochs, other trainings may have the cores.
        """
        self._offer_cores()
        torch.manual_seed(batch.stream.child("layers", processes.rank()).integer())
        if not self.plan.training.channels_last:
            return batch
        crops = tuple(crop.contiguous(memory_format=torch.channels_last) for crop in batch.crops)
        return replace(batch, crops=crops)

    def _train_step(self, batch: Batch) -> None:
        learning_rate = self.learning_rate
        decay = self.plan.optimizer.weight_decay_at(self.step / self.total_steps)
        for group in self.optimizer.param_groups:
            rate = learning_rate if group.get("scheduled", True) else self.plan.learning_rate
            group["lr"] = rate * group.get("rate", 1.0)
            group["weight_decay"] = decay if group.get("decayed", True) else 0.0
        seen = StepFacts(wanted=self._logs(self.step + 1))
        losses: dict[str, Tensor] = {}
        total = torch.zeros((), device=self.device)
        for term in self.objective.losses(batch):
            term.loss.backward()  # type: ignore[no-untyped-call]  # frees the graph before the next term is built
            total = total + term.loss.detach()
            for name, part in term.parts.items():
                losses[name] = part.loss
                seen.look(name, part)
            losses |= term.beside
        processes.average_gradients(self._parameters)
        if self.objective.origin is not None:
            self.objective.origin.pull()
        self._window.add(losses, total, self.step + 1)
        if self.device.type == "cpu":  # where asking makes nothing wait: stop before the weights are touched
            self._raise_if_not_finite()
        if self.plan.optimizer.max_gradient_norm is not None:
            clip_each_gradient(self._parameters, self.plan.optimizer.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.objective.commit(batch)
        self.step += 1
        if seen.wanted:
            self._raise_if_not_finite()
            self._log(learning_rate, seen)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the step that comes next."""
        share = learning_rate_share(self.plan.schedule, self.step, self.plan.epochs, self.steps_per_epoch)
        return self.plan.learning_rate * share

    def _logs(self, step: int) -> bool:
        return step % self.plan.training.log_every == 0 or step == self.total_steps

    def _after_step(self) -> None:
        """Whatever is due after a step: a checkpoint first, the monitor, and stopping when asked to."""
        training, at_end = self.plan.training, self.step == self.total_steps
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        self.reporter.step(self.step)
        steps = training.checkpoint_every_steps
        due = at_end or (rest == 0 and epoch % training.checkpoint_every == 0)
        if due or (steps and self.step % steps == 0):
            self.save()
        self._monitor_if_due()
        self._end_if_due()
        at_end = self.step == self.total_steps
        # a collective answer is asked for now and then on a GPU, where it makes the host wait
        asks = processes.world_size() == 1 or self.device.type == "cpu" or self.step % 10 == 0
        stop = self._interrupts.agreed(self.device) if asks and not at_end else None
        if stop is not None:
            self.save()
            self.journal.write("interrupted", self.step)
            raise Interrupted(stop, self.step, self.folder)

    # -- metrics ----------------------------------------------------------------------------------------------------

    def _log(self, learning_rate: float, seen: StepFacts) -> None:
        """One line of metrics: losses as means since the last one, all else of this step. Here the device is read.

        Losses are averaged over processes; what a term notes beside (accuracy, facts) too.
        """
        names, values = self._window.means()
        facts = {**seen.facts, **seen.spread()}
        if facts:
            values = torch.cat(
                [values, torch.stack([value.to(self.device, torch.float32) for value in facts.values()])]
            )
        read = processes.all_gather(values[None]).mean(0).tolist()
        line = dict(zip([*names, *facts], read, strict=True))
        lap = self._clock.lap()
        line["learning_rate"] = learning_rate
        line["images_per_second"] = self._window.count * self.plan.batch_size / max(lap.seconds, 1e-9)
        line["data_wait"] = lap.waited / max(lap.seconds, 1e-9)
        self._window.clear()
        line = {"epoch": self.step / self.steps_per_epoch, "seconds": self._clock.total, **line}
        self.journal.write("train", self.step, **line)
        self.reporter.metrics(self.step, line)
        if self.watch is not None:
            self.warn(self.watch.train(line, seen.directions))

    def _monitor_if_due(self, there: Sequence[Mapping[str, Any]] = ()) -> None:
        """Run the monitor at its epochs and at the end; its time does not count as training.

        A run that goes on from a step that is monitored begins with it: it may have been stopped after it had saved.
        there: what the journal has of this step; of a monitor that is among it only the watch is told again.
        """
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        every, at_end = self.plan.monitor_every, self.step == self.total_steps
        if self.monitor is None or not self.step or not every or ((rest or epoch % every) and not at_end):
            return
        with self._clock.paused():
            if processes.is_main():
                known = next((line for line in there if line["event"] == "monitor"), None)
                if known is None:
                    self._run_monitor(self.monitor)
                else:
                    self._judged(known)
                    self._keep_if_best(known)
            processes.barrier()

    def _end_if_due(self, there: Sequence[Mapping[str, Any]] = ()) -> None:
        """End early after an epoch, if patience or time is at an end, or was when a run that goes on was stopped."""
        if self.step % self.steps_per_epoch or not 0 < self.step < self.total_steps:
            return
        limit, why = self.plan.training.max_seconds, None
        if self.best.is_past:
            why = f"{self.best.measure} has not risen since epoch {self.best.step / self.steps_per_epoch:g}"
        elif limit is not None and self._clock.total >= limit:
            why = f"its {limit:g} seconds are over"
        known = any(line["event"] == "ended" for line in there)
        if processes.any_of(processes.is_main() and (known or why is not None), self.device):
            if not known:
                self.journal.write("ended", self.step, message=why)
                self.reporter.say(f"epoch {self.step / self.steps_per_epoch:g}: the run ends here, {why}")
            self._ended = self.step

    def _run_monitor(self, monitor: Callable[[], dict[str, float]]) -> None:
        found: dict[str, float] = {}
        with self.looking("the k-NN monitor"):
            found = monitor()
        self.objective.method.train()
        if not found:
            return
        self.warn(self._judged(found))  # first: where there is a line of the monitor, there are its warnings
        self._keep_if_best(found)
        line = {"epoch": self.step / self.steps_per_epoch, "seconds": self._clock.total, **found}
        self.journal.write("monitor", self.step, **line)
        scores = " · ".join(f"{name} {value:.2f}{' %' * (name in PERCENT)}" for name, value in found.items())
        self.reporter.say(f"epoch {line['epoch']:g}: {scores}")

    def _keep_if_best(self, found: Mapping[str, Any]) -> None:
        if self.best.judge(found, self.step):
            self.keep()

    def _judged(self, found: Mapping[str, Any]) -> list[str]:
        """What the watch has to say of a line of the monitor."""
        percent = found.get("knn")
        return self.watch.knn(percent) if self.watch is not None and isinstance(percent, int | float) else []

    def warn(self, messages: Iterable[str]) -> None:
        """Write warnings down and show them."""
        for message in messages:
            self.journal.write("warning", self.step, message=message)
            self.reporter.say(f"warning: {message}")

    def _list_problems(self) -> None:
        """Images that could not be read, at the end of the epoch in which they were met."""
        new = [problem for problem in self.loader.problems if problem not in self._problems]
        self._problems.update(new)
        if new:
            listed = "; ".join(str(problem) for problem in new[:10]) + (" …" if len(new) > 10 else "")
            self.warn([f"{len(new)} images could not be read and were replaced: {listed}"])

    def _raise_if_not_finite(self) -> None:
        found = self._window.first_non_finite()
        if found is not None:
            raise self._non_finite(*found)

    def _non_finite(self, step: int, term: str) -> NonFiniteError:
        share = learning_rate_share(self.plan.schedule, step - 1, self.plan.epochs, self.steps_per_epoch)
        good = checkpoints.checkpoints(self.folder / "checkpoints") if self.folder is not None else []
        error = NonFiniteError(step, term, self.plan.learning_rate * share, good[-1] if good else None)
        self.journal.write("non-finite", step, message=str(error))
        return error

    # -- state ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of this step, unless there is one. Raises NonFiniteError rather than save a bad state."""
        if self.folder is None or self._saved_step == self.step:
            return
        with self._clock.paused():
            self._raise_if_not_finite()
            state = self.state()
            bad = torch.tensor(float(not is_finite([state["method"], state["optimizer"]])), device=self.device)
            if processes.all_reduce_max(bad).item():
                raise self._non_finite(self.step, "weights")
            if processes.is_main():
                path = checkpoints.save(self.folder / "checkpoints", self.step, state, self.plan.training.keep)
                self.journal.write("checkpoint", self.step, path=path.name)
            self._saved_step = self.step
            processes.barrier()

    def state(self) -> checkpoints.State:
        """Everything that the steps to come depend on; all randomness is a function of the step."""
        origin = self.objective.origin
        return {
            "method": self.objective.method.checkpoint(),
            **({"start": origin.network.state_dict()} if origin is not None else {}),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": self.step / self.steps_per_epoch,
            "seconds": self._clock.total,
            "steps_per_epoch": self.steps_per_epoch,
            "fingerprint": self.plan.fingerprint,
            "world_size": processes.world_size(),
            "window": self._window.state,
            "watch": self.watch.state if self.watch is not None else {},
            "best": self.best.state,
        }

    def load(self, state: checkpoints.State) -> list[str]:
        """Go on from a checkpoint's state; returns warnings. Raises UserError if experiment or data are others now."""
        fingerprints = (self.plan.fingerprint, self.plan.former_fingerprint)
        for name, here in (("fingerprint", fingerprints), ("steps_per_epoch", (self.steps_per_epoch,))):
            if state[name] not in here:
                what = (
                    "config.yaml has changed, or the images have," if name == "fingerprint" else "the data has changed"
                )
                raise UserError(
                    f"{what} since the checkpoint at step {state['step']}: going on would be another "
                    "experiment; restore it, or start a new run with 'hexa pretrain'"
                )
        self.objective.method.restore(state["method"])
        if self.objective.origin is not None:
            self.objective.origin.network.load_state_dict(state["start"])
        # a copy: it would keep tensors that may be mapped from the file
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.step, self.seconds = state["step"], state["seconds"]
        self._saved_step = self.step
        self._window.state = state["window"]
        if self.watch is not None and state["watch"]:
            self.watch.state = state["watch"]
        if "best" in state:  # checkpoints of hexa 0.1 lack it
            self.best.state = state["best"]
        notes = []
        if state["fingerprint"] != self.plan.fingerprint:
            notes.append(
                "the checkpoint is of hexa 0.1, which knew images by names and sizes: whether they changed is unknown"
            )
        if state["world_size"] == processes.world_size():
            return notes
        before, now = state["world_size"], processes.world_size()
        what = "what follows is equal up to rounding and what each draws for its own images (who is mixed with whom …)"
        return [*notes, f"{before} processes before, {now} now: {what}"]
