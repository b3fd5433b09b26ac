"""The loop around an objective. It knows the contract of `hexa.core` and no method by name."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hexa.config import some
from hexa.core import Batch
from hexa.data.loading.loaders import PretrainLoader
from hexa.objective import Objective, Term
from hexa.runtime import checkpoints, processes
from hexa.runtime.signals import Interrupted, Interrupts
from hexa.training.clock import Clock
from hexa.training.config import TrainingConfig
from hexa.training.journal import Journal
from hexa.training.losses import LossWindow, NonFiniteError, StepFacts, is_finite
from hexa.training.monitor import Monitor, Scoring, Watch
from hexa.training.optimizers import ScheduledOptimizer
from hexa.training.overfitting import one_step_and_many
from hexa.training.state import state_of
from hexa.training.step import prepared, step


@dataclass
class Trainer:
    """Trains, logs, saves; `run` returns at the end or raises Interrupted or NonFiniteError.

    Every process holds a trainer; only the main one writes.
    """

    objective: Objective
    """The method, its hard examples, and how a step is made of them."""
    optimizer: ScheduledOptimizer
    """Holds the schedule, and so the number of steps."""
    loader: PretrainLoader
    """The batches of an epoch from any step on."""
    config: TrainingConfig
    """How often to log, monitor and save."""
    device: torch.device
    """Where the method's tensors are."""
    folder: Path | None = None
    """The run's folder; None writes no checkpoints."""
    journal: Journal = field(default_factory=Journal)
    """Takes metrics, events and warnings; by default none are kept."""
    fingerprint: str = ""
    """A hash of all that decides the trajectory; a checkpoint with another one is refused."""
    scoring: Scoring = field(default_factory=Scoring)
    """What the frozen features are worth, and which weights to keep; by default never measured."""
    watch: Watch = field(default_factory=lambda: Watch(None, None))
    """Says what the metrics mean, such as a collapse."""
    step: int = field(default=0, init=False)
    """Finished steps."""
    seconds: float = field(default=0.0, init=False)
    """Training time of earlier sessions."""

    def __post_init__(self) -> None:
        self.steps_per_epoch = self.loader.steps_per_epoch
        self.window = LossWindow(self.objective.weights(), self.device)
        self._interrupts = Interrupts(self.journal.reporter.say)
        self.saved_step = -1
        self._ended: int | None = None
        self._lap = (0, 0.0)
        self._looked = 0.0
        self._problems: set[str] = set()
        self.clock = Clock(lambda: self.loader.wait_seconds)

    @property
    def epoch(self) -> float:
        """Epochs that are done."""
        return self.step / self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """The step after which the run ends."""
        return self.optimizer.total_steps if self._ended is None else self._ended

    @torch.enable_grad()
    def run(self) -> None:
        """Train to the end from wherever the state stands, also where the caller has turned gradients off."""
        method = self.objective.method
        self.journal.reporter.begin(self.total_steps, self.step)
        with closing(self.journal.reporter), self._interrupts:
            self.clock.start(self.seconds)
            self._lap = (self.step, self.clock.total)
            self._first = self.step
            self._monitor_if_due(self.journal.there)
            self._end_if_due(self.journal.there)
            while self.step < self.total_steps:
                epoch, start = divmod(self.step, self.steps_per_epoch)
                method.train()
                if start == 0:
                    self._start_epoch(epoch)
                for batch in self.loader.epoch(epoch, start):
                    self._train_step(prepared(batch, self.config.channels_last))
                    self._after_step()
                    if self.step == self.total_steps:
                        break
                self._list_problems()
                self._compare_attacks(batch)

    def _start_epoch(self, epoch: int) -> None:
        """What the method does between epochs; its time counts as training.

        A pass over the data may take long: a process that is alone saves its state first, and stops in the middle if
        it is asked to. Several, which may see different numbers of batches there, stop after the next step.
        """
        method = self.objective.method

        def next_batch(batch: Batch) -> Batch:
            if processes.world_size() == 1:
                if self.step:
                    self.save()
                if self._interrupts.received is not None:
                    raise Interrupted(self._interrupts.received, self.step, self.folder)
            return prepared(batch, self.config.channels_last)

        with self.objective.score.autocast():
            facts = method.start_epoch(epoch, self.loader.passes(epoch, next_batch))
        method.train()
        if facts:
            self.journal.write("epoch", self.step, epoch=epoch, seconds=self.clock.total, **facts)
            self.warn(self.watch.epoch(facts))

    def _train_step(self, batch: Batch) -> None:
        facts = StepFacts(
            wanted=(self.step + 1) % self.config.log_every == 0 or self.step + 1 == self.total_steps
        )
        for name in self.objective.setting_in(self.step):
            self.journal.reporter.say(f"epoch {self.epoch:g}: {name} sets in")
        losses: dict[str, Tensor] = {}
        terms: list[Tensor] = []

        def seen(term: Term) -> None:
            terms.append(term.loss.detach())
            for name, part in term.parts.items():
                losses[name] = part.loss
                facts.look(name, part)

        def ready() -> None:
            self.window.add(losses, sum(terms, torch.zeros((), device=self.device)), self.step + 1)
            terms.clear()
            if (
                self.device.type == "cpu"
            ):  # on a CPU the check is free: stop before the weights are touched
                self._raise_if_not_finite()

        step(self.objective, self.optimizer, batch, self.step, seen=seen, ready=ready)
        self.step += 1
        if facts.wanted:
            self._raise_if_not_finite()
            self._log(facts)

    def _after_step(self) -> None:
        """Whatever is due after a step: a checkpoint first, the monitor, and stopping when asked to."""
        # a collective answer is asked for now and then on a GPU, where it makes the host wait
        asks = processes.world_size() == 1 or self.device.type == "cpu" or self.step % 10 == 0
        if asks and self.config.max_seconds is not None:
            self._fit(self.config.max_seconds)
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        self.journal.reporter.step(self.step, self.total_steps)
        steps = self.config.checkpoint_every_steps
        every = [self.config.checkpoint_every, *filter(None, [self.config.keep_every])]
        due = self.step == self.total_steps or (
            rest == 0 and any(epoch % epochs == 0 for epochs in every)
        )
        if due or (steps and self.step % steps == 0):
            self.save()
        self._monitor_if_due()
        self._end_if_due()
        stop = (
            self._interrupts.agreed(self.device) if asks and self.step != self.total_steps else None
        )
        if stop is not None:
            self.save()
            self.journal.write("interrupted", self.step)
            raise Interrupted(stop, self.step, self.folder)

    def _fit(self, limit: float) -> None:
        """Set the number of steps to what `limit` seconds leave time for, pauses included; when they are over, end.

        The speed is that of the last quarter of an epoch in which everything learned that is to learn. The scores that
        are still to come take as long as the last one. Where steps have become so slow that hardly any time would be
        left to repeat views, fewer epochs have views of their own.
        """
        total = self.total_steps
        now = self.clock.total
        sets = self.loader.sets
        left = limit - now - self.clock.pauses
        steps = self.step - self._lap[0]
        self.journal.reporter.end = time.monotonic() + left
        if left <= 0:
            total = min(total, self.step)
        elif steps >= max(1, self.steps_per_epoch // 4):
            each = max(now - self._lap[1], 1e-9) / steps
            per_epoch = self.steps_per_epoch
            drawn = (sets or 0) * per_epoch
            warm = self._lap[0] > self._first  # the first steps start the workers
            if warm and (sets or 0) > 2 and (drawn - self.step) * each > 0.9 * left:
                sets = max(
                    2,
                    math.ceil(self.step / per_epoch),
                    int((self.step + 0.7 * left / each) / per_epoch),
                )
                drawn = sets * per_epoch
                self.journal.reporter.say(
                    f"steps are slow: {sets} passes have views of their own, others repeat these"
                )
            # steps that repeat views are much faster than those before
            known = self._lap[0] >= drawn or (warm and (drawn - self.step) * each > left)
            thaws = self.optimizer.thaws_after((self.step - 1) // self.steps_per_epoch)
            if known and not thaws and self.step < total:
                epochs = (total - self.step) / self.steps_per_epoch
                # half of the time at most: the first score decodes its images, too
                left -= min(
                    left / 2, self._looked * math.ceil(epochs / (self.scoring.every or math.inf))
                )
                total = self.step + max(0, int(left / each))
            self._lap = self.step, now
        self.optimizer.total_steps = processes.of_main(total, self.device)
        self.loader.sets = sets and processes.of_main(sets, self.device)

    def _log(self, seen: StepFacts) -> None:
        """One line of metrics: losses as means since the last one, all else of this step. Here the device is read.

        Losses, accuracies and the facts that terms note are means over processes.
        """
        facts = {**self.window.means(), **seen.facts, **seen.spread()}
        values = torch.stack([value.to(self.device, torch.float32) for value in facts.values()])
        read = processes.all_gather(values[None]).mean(0).tolist()
        seconds, waited = self.clock.lap()
        line = {
            "epoch": self.epoch,
            "seconds": self.clock.total,
            **dict(zip(facts, read, strict=True)),
        }
        line["learning_rate"] = self.optimizer.learning_rate(self.step - 1)
        steps = min(
            self.window.count, self.step - self._first
        )  # some of the window may be of an earlier session
        line["images_per_second"] = steps * self.loader.batch_size / max(seconds, 1e-9)
        line["data_wait"] = waited / max(seconds, 1e-9)
        self.window.clear()
        self.journal.write("train", self.step, **line)
        self.journal.reporter.metrics(self.step, line)
        self.warn(self.watch.train(line, seen.directions))

    def _monitor_if_due(self, there: Sequence[Mapping[str, Any]] = ()) -> None:
        """Run the monitor at its epochs and at the end; its time does not count as training.

        A run that continues from a step that is monitored begins with it: it may have been stopped after it had saved.
        there: what the journal has of this step; if a monitor is among it, only watch and scoring are told again.
        """
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        every = self.scoring.every
        at_end = self.step == self.total_steps
        if (
            self.scoring.monitor is None
            or not self.step
            or not every
            or ((rest or epoch % every) and not at_end)
        ):
            return
        began = self.clock.pauses
        with self.clock.paused():
            if processes.is_main():
                known = next((line for line in there if line["event"] == "monitor"), None)
                if known is None:
                    self._run_monitor(self.scoring.monitor)
                else:
                    self._judge(known["knn"])
            processes.barrier()
        self._looked = self.clock.pauses - began

    def _run_monitor(self, monitor: Monitor) -> None:
        percent = None
        with self.journal.looking("the k-NN monitor", self.step), processes.alone():
            percent = monitor(lambda message: self.warn([message]))
        self.objective.method.train()
        if percent is None:
            return
        self.warn(
            self._judge(percent)
        )  # first: where there is a line of the monitor, there are its warnings
        self.journal.write(
            "monitor", self.step, epoch=self.epoch, seconds=self.clock.total, knn=percent
        )
        self.journal.reporter.say(f"epoch {self.epoch:g}: knn {percent:.2f} %")

    def _judge(self, percent: float) -> list[str]:
        """Keep the weights if they are the best so far; what the watch has to say of the score."""
        if self.scoring.best.judge(percent, self.step):
            self.scoring.keep()
        return self.watch.knn(percent)

    def _end_if_due(self, there: Sequence[Mapping[str, Any]] = ()) -> None:
        """End early after an epoch, if the scores say so, or did when a run that continues was stopped."""
        if self.step % self.steps_per_epoch or not 0 < self.step < self.total_steps:
            return
        why = self.scoring.best.ending(self.steps_per_epoch)
        known = any(line["event"] == "ended" for line in there)
        if processes.any_of(processes.is_main() and (known or why is not None), self.device):
            if not known:
                self.journal.write("ended", self.step, message=why, seconds=self.clock.total)
                self.journal.reporter.say(f"epoch {self.epoch:g}: the run ends here, {why}")
            self._ended = self.step

    def warn(self, messages: Iterable[str]) -> None:
        """Write warnings down and show them."""
        self.journal.warn(self.step, messages)

    def _list_problems(self) -> None:
        """Images that could not be read, at the end of the epoch in which they were met."""
        if new := [problem for problem in self.loader.problems if problem not in self._problems]:
            self._problems.update(new)
            self.warn(
                [
                    f"{len(new)} of the images could not be read, and others replace them: {some(new, '; ', 10)}"
                ]
            )

    def _compare_attacks(self, batch: Batch) -> None:
        """At the end of an epoch, warn of attacks that its last batch resists while it falls to stronger ones."""
        with self.clock.paused():
            pairs = one_step_and_many(self.objective, prepared(batch, self.config.channels_last))
            for name, (one, many) in pairs.items():
                self.warn(self.watch.attacked(name, one, many))

    def _raise_if_not_finite(self) -> None:
        if (bad := self.window.first_non_finite()) is not None:
            raise self._non_finite(*bad)

    def _non_finite(self, step: int, term: str) -> NonFiniteError:
        good = (
            checkpoints.checkpoints(self.folder / "checkpoints") if self.folder is not None else []
        )
        error = NonFiniteError(
            step, term, self.optimizer.learning_rate(step - 1), good[-1] if good else None
        )
        self.journal.write("non-finite", step, message=str(error))
        return error

    def save(self) -> None:
        """Write a checkpoint of this step, unless there is one. Raises NonFiniteError rather than save a bad state."""
        if self.folder is None or self.saved_step == self.step:
            return
        with self.clock.paused():
            self._raise_if_not_finite()
            state = state_of(self)
            if processes.any_of(not is_finite([state["method"], state["optimizer"]]), self.device):
                raise self._non_finite(self.step, "weights")
            if processes.is_main():
                stays = self.config.keep_every and self.config.keep_every * self.steps_per_epoch
                path = checkpoints.save(
                    self.folder / "checkpoints", self.step, state, self.config.keep, stays
                )
                self.journal.write("checkpoint", self.step, path=path.name)
            self.saved_step = self.step
            processes.barrier()
