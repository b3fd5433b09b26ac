"""The loop around an objective. It knows the contract of `hexa.core` and no method by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hexa.config import some
from hexa.core import Batch
from hexa.data.loading.loaders import PretrainLoader
from hexa.objective import Objective
from hexa.runtime import checkpoints, processes
from hexa.runtime.signals import Interrupted, Interrupts
from hexa.training.clock import Clock, TimeLimit
from hexa.training.config import TrainingConfig
from hexa.training.graph import Steps, Taken
from hexa.training.journal import Journal
from hexa.training.losses import LossWindow, NonFiniteError, StepFacts, is_finite
from hexa.training.monitor import Monitor, Scoring, Watch
from hexa.training.optimizers import ScheduledOptimizer
from hexa.training.overfitting import one_step_and_many
from hexa.training.state import state_of
from hexa.training.step import prepared


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
    """When the frozen features are scored, and which weights are kept; by default never."""
    watch: Watch = field(default_factory=lambda: Watch(None, None))
    """Warns about collapse and other bad signs in the metrics."""
    step: int = field(default=0, init=False)
    """Finished steps."""
    seconds: float = field(default=0.0, init=False)
    """Training time of earlier sessions."""

    def __post_init__(self) -> None:
        self.steps_per_epoch = self.loader.steps_per_epoch
        self.window = LossWindow(self.objective.plan().weights, self.device)
        say = self.journal.reporter.say
        self.steps = Steps(self.objective, self.optimizer, self.device, self.config.graph, say)
        self.clock = Clock(lambda: self.loader.wait_seconds)
        self.saved_step = -1
        self._interrupts = Interrupts(self.journal.reporter.say)
        self._ended: int | None = None
        self._score_seconds = 0.0
        self._problems: set[str] = set()

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
        """Train to the end from wherever the state stands, also if the caller has turned gradients off."""
        method = self.objective.method
        reporter = self.journal.reporter
        reporter.begin(self.total_steps, self.step)
        with closing(reporter), self._interrupts:
            self._begin()
            while self.step < self.total_steps:
                # let the method prepare the epoch: cluster, for instance
                epoch, start = divmod(self.step, self.steps_per_epoch)
                method.train()
                if start == 0:
                    self._start_epoch(epoch)
                for batch in self.loader.epoch(epoch, start):
                    # back-propagate every term, update the weights, let the method remember the step
                    self._train_step(prepared(batch, self.config.channels_last))
                    # fit the number of steps to the time, if it is limited
                    self._fit_to_time()
                    reporter.step(self.step, self.total_steps)
                    # save first, then score the features
                    self._save_if_due()
                    self._monitor_if_due()
                    # stop at a good score, or if asked to
                    self._end_if_due()
                    self._stop_if_asked()
                    if self.step == self.total_steps:
                        break
                self._list_problems()
                self._compare_attacks(batch)

    def _begin(self) -> None:
        """Start the clock, and make up for what was due when the run was stopped."""
        self.clock.start(self.seconds)
        self._first = self.step
        self._limit: TimeLimit | None = None
        if self.config.max_seconds is not None:
            limit = self.config.max_seconds
            self._limit = TimeLimit(limit, self.clock, self.optimizer, self.step)
        self._monitor_if_due(self.journal.there)
        self._end_if_due(self.journal.there)

    def _start_epoch(self, epoch: int) -> None:
        """Call the method between two epochs; its time counts as training.

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
        """Take a step, and log it if it is due."""
        done = self.step + 1
        logs = done % self.config.log_every == 0 or done == self.total_steps
        for name in self.objective.starting(self.step):
            self.journal.reporter.say(f"epoch {self.epoch:g}: {name} starts")

        def ready(taken: Taken) -> None:
            self.window.add(taken.losses, taken.total, done)
            if self.device.type == "cpu":  # there the check is free: stop before weights change
                self._raise_if_not_finite()

        taken = self.steps.take(batch, self.step, logs, ready)
        self.step = done
        if logs:
            self._raise_if_not_finite()
            self._log(taken.facts)

    def _log(self, seen: StepFacts) -> None:
        """One line of metrics: losses as means since the last one, all else of this step. Here the device is read.

        Losses, accuracies and the facts that terms note are means over processes.
        """
        facts = {**self.window.means(), **seen.facts, **seen.spread()}
        values = torch.stack([value.to(self.device, torch.float32) for value in facts.values()])
        read = processes.all_gather(values[None]).mean(0).tolist()
        seconds, waited = self.clock.lap()
        seconds = max(seconds, 1e-9)
        # some steps of the window may be of an earlier session
        steps = min(self.window.count, self.step - self._first)
        line = {
            "epoch": self.epoch,
            "seconds": self.clock.total,
            **dict(zip(facts, read, strict=True)),
            "learning_rate": self.optimizer.learning_rate(self.step - 1),
            "images_per_second": steps * self.loader.batch_size / seconds,
            "data_wait": waited / seconds,
        }
        self.window.clear()
        self.journal.write("train", self.step, **line)
        self.journal.reporter.metrics(self.step, line)
        self.warn(self.watch.train(line, seen.directions))

    @property
    def _may_agree(self) -> bool:
        """True if processes may ask each other; on a GPU that makes the host wait, so only now and then."""
        return processes.world_size() == 1 or self.device.type == "cpu" or self.step % 10 == 0

    def _fit_to_time(self) -> None:
        """Adjust the number of steps to the time limit; the same on all processes."""
        if self._limit and self._may_agree:
            reporter = self.journal.reporter
            total, sets = self._limit.fitted(
                self.step, self.loader.sets, self._score_seconds, self.scoring.every
            )
            reporter.end = self._limit.end
            if sets != self.loader.sets:
                reporter.say(f"steps are slow: {sets} passes have new views, others repeat them")
            self.optimizer.total_steps = processes.of_main(total, self.device)
            self.loader.sets = sets and processes.of_main(sets, self.device)

    def _save_if_due(self) -> None:
        """Save at the end, after the epochs that are due, and after the steps that are due."""
        config = self.config
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        intervals = [config.checkpoint_every, config.keep_every or config.checkpoint_every]
        due = rest == 0 and any(epoch % epochs == 0 for epochs in intervals)
        steps = config.checkpoint_every_steps
        if due or self.step == self.total_steps or (steps and self.step % steps == 0):
            self.save()

    def _monitor_if_due(self, there: Sequence[Mapping[str, Any]] = ()) -> None:
        """Run the monitor at its epochs and at the end; its time does not count as training.

        A run that continues from a step that is monitored begins with it: it may have been stopped after it had saved.
        there: what the journal has of this step; if a monitor is among it, only watch and scoring are told again.
        """
        every = self.scoring.every
        if self.scoring.monitor is None or not every or not self.step:
            return
        if self.step % (every * self.steps_per_epoch) and self.step != self.total_steps:
            return
        began = self.clock.pauses
        with self.clock.paused():
            if processes.is_main():
                known = [line["knn"] for line in there if line["event"] == "monitor"]
                if known:
                    self._judge(known[0])
                else:
                    self._run_monitor(self.scoring.monitor)
            processes.barrier()
        self._score_seconds = self.clock.pauses - began

    def _run_monitor(self, monitor: Monitor) -> None:
        """Score the features; a monitor that fails is a warning."""
        percent = None
        with self.journal.looking("the k-NN monitor", self.step), processes.alone():
            percent = monitor(lambda message: self.warn([message]))
        self.objective.method.train()
        if percent is None:
            return
        # warn first: if there is a line of the monitor, there are its warnings
        self.warn(self._judge(percent))
        facts = {"epoch": self.epoch, "seconds": self.clock.total, "knn": percent}
        self.journal.write("monitor", self.step, **facts)
        self.journal.reporter.say(f"epoch {self.epoch:g}: knn {percent:.2f} %")

    def _judge(self, percent: float) -> list[str]:
        """Keep the weights if they are the best so far; returns what the watch has to say of the score."""
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

    def _stop_if_asked(self) -> None:
        """Save and raise Interrupted if a signal has asked any process to stop."""
        if self.step == self.total_steps or not self._may_agree:
            return
        number = self._interrupts.agreed(self.device)
        if number is not None:
            self.save()
            self.journal.write("interrupted", self.step)
            raise Interrupted(number, self.step, self.folder)

    def warn(self, messages: Iterable[str]) -> None:
        """Write warnings down and show them."""
        self.journal.warn(self.step, messages)

    def _list_problems(self) -> None:
        """List the images that could not be read, at the end of the epoch in which they were met."""
        new = [problem for problem in self.loader.problems if problem not in self._problems]
        if new:
            self._problems.update(new)
            listed = some(new, "; ", 10)
            message = (
                f"{len(new)} of the images could not be read, and others replace them: {listed}"
            )
            self.warn([message])

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
        good = checkpoints.checkpoints(self.folder / "checkpoints") if self.folder else []
        rate = self.optimizer.learning_rate(step - 1)
        error = NonFiniteError(step, term, rate, good[-1] if good else None)
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
