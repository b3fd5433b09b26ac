"""The training loop. It uses the contract of `hexa.core` and knows no method by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from hexa.config import some
from hexa.core import Batch, Method
from hexa.data.loading.loaders import PretrainLoader
from hexa.objective import Objective
from hexa.runtime import checkpoints, processes
from hexa.runtime.signals import Interrupted, Interrupts
from hexa.training.clock import Clock, TimeLimit
from hexa.training.config import TrainingConfig
from hexa.training.graph import Steps, Taken
from hexa.training.journal import Journal, rounded
from hexa.training.losses import LossWindow, NonFiniteError, StepFacts, is_finite
from hexa.training.monitor import Monitor, Scoring, Watch
from hexa.training.optimizers import ScheduledOptimizer
from hexa.training.overfitting import one_step_and_many
from hexa.training.state import on_host, state_of
from hexa.training.step import prepared


@dataclass
class Trainer:
    """Trains, logs and saves; `run` returns at the end, or raises Interrupted or NonFiniteError.

    Every process has a trainer; only the main one writes, except for sharded state. Checkpoints are
    written in the background; the next one waits for the previous one.
    """

    objective: Objective
    """The method, its hard examples and their loss terms."""
    optimizer: ScheduledOptimizer
    """The optimizer with its schedule and the number of steps."""
    loader: PretrainLoader
    """Yields the batches of an epoch from any step on."""
    config: TrainingConfig
    """Intervals of logging, monitoring and saving."""
    device: torch.device
    """Device of the method's tensors."""
    folder: Path | None = None
    """Folder of the run; with None the trainer writes no checkpoints."""
    journal: Journal = field(default_factory=Journal)
    """Receives metrics, events and warnings; the default discards them."""
    fingerprint: str = ""
    """Hash of everything that determines the trajectory; a checkpoint with another hash is
    refused."""
    code: str = ""
    """Hash of the user's file with the recipe, or empty; a checkpoint with another hash causes a
    warning."""
    scoring: Scoring = field(default_factory=Scoring)
    """Schedule of the scores and the weights to keep; the default never scores."""
    watch: Watch = field(default_factory=lambda: Watch(None, None))
    """Warns about collapse and other bad signs in the metrics."""
    step: int = field(default=0, init=False)
    """Number of finished steps."""
    seconds: float = field(default=0.0, init=False)
    """Training time of earlier sessions in seconds."""
    pauses: float = field(default=0.0, init=False)
    """Time of earlier sessions that does not count as training, in seconds."""

    def __post_init__(self) -> None:
        self.steps_per_epoch = self.loader.steps_per_epoch
        self.window = LossWindow(self.objective.plan().weights, self.device)
        say = self.journal.reporter.say
        graph = bool(self.config.graph)
        self.steps = Steps(self.objective, self.optimizer, self.device, graph, say)
        self.clock = Clock(lambda: self.loader.wait_seconds)
        self.saved_step = -1
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[Path] | None = None
        self._interrupts = Interrupts(self.journal.reporter.say)
        self._ended: int | None = None
        self._score_seconds = 0.0
        self._problems: set[str] = set()

    @property
    def epoch(self) -> float:
        """Number of finished epochs."""
        return self.step / self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """The step after which the run ends."""
        return self.optimizer.total_steps if self._ended is None else self._ended

    @torch.enable_grad()
    def run(self) -> None:
        """Train from the current state to the end, even if the caller has disabled gradients."""
        method = self.objective.method
        reporter = self.journal.reporter
        reporter.begin(self.total_steps, self.step)
        with closing(reporter), self._interrupts, self._writer:
            self._begin()
            while self.step < self.total_steps:
                # let the method prepare the epoch, for example by clustering
                epoch, start = divmod(self.step, self.steps_per_epoch)
                method.train()
                if start == 0:
                    self._start_epoch(epoch)
                for batch in self.loader.epoch(epoch, start):
                    # back-propagate every term, update the weights, update the method's state
                    self._train_step(prepared(batch, self.config.channels_last))
                    # adjust the number of steps to the time limit, if there is one
                    self._fit_to_time()
                    reporter.step(self.step, self.total_steps)
                    self._compare_attacks_if_due(batch)
                    # save first, then score the features
                    self._save_if_due()
                    self._monitor_if_due()
                    # stop if the scores or a signal ask for it
                    self._end_if_due()
                    self._stop_if_asked()
                    if self.step == self.total_steps:
                        break
                self._list_problems()
            self._finish_saving()

    def _begin(self) -> None:
        """Start the clock, and do the work that was due when the previous session stopped."""
        self.clock.start(self.seconds, self.pauses)
        self._first = self.step
        self._limit: TimeLimit | None = None
        if self.config.max_seconds is not None:
            limit = self.config.max_seconds
            self._limit = TimeLimit(limit, self.clock, self.optimizer, self.step)
        self._monitor_if_due(self.journal.there)
        self._end_if_due(self.journal.there)

    def _start_epoch(self, epoch: int) -> None:
        """Call the method's `start_epoch`; its time counts as training.

        A pass over the data may take long, so the trainer saves first. A single process can stop in
        the middle. With several processes, which may have different numbers of batches in this
        pass, a stop waits for the next step.
        """
        method = self.objective.method
        prepares = type(method).start_epoch is not Method.start_epoch
        if prepares and self.step and processes.world_size() > 1:
            self.save()

        def next_batch(batch: Batch) -> Batch:
            if processes.world_size() == 1:
                if self.step:
                    self.save()
                if self._interrupts.received is not None:
                    self._interrupt(self._interrupts.received)
            return prepared(batch, self.config.channels_last)

        with self.objective.score.autocast():
            facts = method.start_epoch(epoch, self.loader.passes(epoch, next_batch))
        method.train()
        if facts:
            self.journal.write("epoch", self.step, epoch=epoch, seconds=self.clock.total, **facts)
            self.warn(self.watch.epoch(facts))

    def _train_step(self, batch: Batch) -> None:
        """Take a step, and log it if a log line is due."""
        done = self.step + 1
        logs = done % self.config.log_every == 0 or done == self.total_steps
        for name in self.objective.starting(self.step):
            self.journal.reporter.say(f"epoch {self.epoch:g}: {name} starts")

        def ready(taken: Taken) -> None:
            self.window.add(taken.losses, taken.total, done)
            if self.device.type == "cpu":  # on a CPU the check is free: stop before weights change
                self._raise_if_not_finite()

        taken = self.steps.take(batch, self.step, logs, ready)
        self.step = done
        if logs:
            self._raise_if_not_finite()
            self._log(taken.facts)

    def _log(self, seen: StepFacts) -> None:
        """Write one log line: losses are means since the last line, all other values are of this
        step. Synchronises.

        Losses, accuracies and the terms' facts are means over processes.
        """
        facts = {**self.window.means(), **seen.facts, **seen.spread()}
        values = torch.stack([value.to(self.device, torch.float32) for value in facts.values()])
        read = processes.all_gather(values[None]).mean(0).tolist()
        seconds, waited = self.clock.lap()
        seconds = max(seconds, 1e-9)
        # some steps of the window may belong to an earlier session
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
        """True if processes may communicate at this step; on a GPU this makes the host wait, so
        only every tenth step."""
        return processes.world_size() == 1 or self.device.type == "cpu" or self.step % 10 == 0

    def _fit_to_time(self) -> None:
        """Adjust the number of steps to the time limit; the same on all processes."""
        if self._limit and self._may_agree:
            reporter = self.journal.reporter
            total, sets = self._limit.fitted(
                self.step, self.loader.sets, self._score_seconds, self.scoring.config.knn_every
            )
            reporter.end = self._limit.end
            if sets != self.loader.sets:
                reporter.say(f"steps are slow: {sets} passes have new views, the rest repeat them")
            self.optimizer.total_steps = processes.of_main(total, self.device)
            self.loader.sets = sets and processes.of_main(sets, self.device)
            self.objective.stretch(self.step, self.optimizer.step_of)

    def _save_if_due(self) -> None:
        """Save at the end of the run and at the configured epochs and steps. Raises OSError if the
        last checkpoint could not be written."""
        if self._writing is not None and self._writing.done():
            self._writing.result()
        config = self.config
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        intervals = [config.checkpoint_every, config.keep_every or config.checkpoint_every]
        due = rest == 0 and any(epoch % epochs == 0 for epochs in intervals)
        steps = config.checkpoint_every_steps
        if due or self.step == self.total_steps or (steps and self.step % steps == 0):
            self.save()

    def _monitor_if_due(self, there: Sequence[Mapping[str, Any]] = ()) -> None:
        """Run the monitor at its epochs and at the end; its time does not count as training.

        A resumed run first runs a monitor that is due at its step, because the previous session may
        have stopped right after saving.
        there: log lines of this step; if they include a monitor score, only watch and scoring are
        updated from it.
        """
        every = self.scoring.config.knn_every
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
        """Score the features; if the monitor fails, warn."""
        percent = None
        with self.journal.looking("the k-NN monitor", self.step), processes.alone():
            percent = monitor(lambda message: self.warn([message]))
        self.objective.method.train()
        if percent is None:
            return
        # a resumed run reads the score from the log
        percent = rounded(percent)
        # log warnings first: a logged score then always has its warnings
        self.warn(self._judge(percent))
        facts = {"epoch": self.epoch, "seconds": self.clock.total, "knn": percent}
        self.journal.write("monitor", self.step, **facts)
        self.journal.reporter.say(f"epoch {round(self.epoch, 2):g}: knn {percent:.2f} %")

    def _judge(self, percent: float) -> list[str]:
        """Keep the weights if they are the best so far; return the warnings about the score."""
        if self.scoring.judge(percent, self.step):
            self.scoring.keep()
        return self.watch.knn(percent)

    def _end_if_due(self, there: Sequence[Mapping[str, Any]] = ()) -> None:
        """End early after an epoch if the scores ask for it, or if the log says that the previous
        session ended."""
        if self.step % self.steps_per_epoch or not 0 < self.step < self.total_steps:
            return
        why = self.scoring.ending(self.steps_per_epoch)
        known = any(line["event"] == "ended" for line in there)
        if processes.any_of(processes.is_main() and (known or why is not None), self.device):
            self.save()
            if not known:
                self.journal.write("ended", self.step, message=why, seconds=self.clock.total)
                self.journal.reporter.say(
                    f"epoch {round(self.epoch, 2):g}: the run ends here, {why}"
                )
            self._ended = self.step

    def _stop_if_asked(self) -> None:
        """Save and raise Interrupted if any process received a stop signal."""
        if self.step == self.total_steps or not self._may_agree:
            return
        number = self._interrupts.agreed(self.device)
        if number is not None:
            self.save()
            self._interrupt(number)

    def _interrupt(self, number: int) -> NoReturn:
        """Raise Interrupted once the last checkpoint is written."""
        self._finish_saving()
        self.journal.write("interrupted", self.step)
        raise Interrupted(number, self.step, self.folder)

    def warn(self, messages: Iterable[str]) -> None:
        """Log warnings and show them."""
        self.journal.warn(self.step, messages)

    def _list_problems(self) -> None:
        """Warn about unreadable images at the end of the epoch in which they were found."""
        new = [problem for problem in self.loader.problems if problem not in self._problems]
        if new:
            self._problems.update(new)
            listed = some(new, "; ", 10)
            message = f"{len(new)} images could not be read and are replaced by others: {listed}"
            self.warn([message])

    def _compare_attacks_if_due(self, batch: Batch) -> None:
        """At the end of an epoch, warn if the network resists an attack on the last batch but not
        its stronger version."""
        if self.step % self.steps_per_epoch and self.step != self.total_steps:
            return
        with self.clock.paused():
            pairs = one_step_and_many(self.objective, prepared(batch, self.config.channels_last))
            for name, (one, many) in pairs.items():
                self.warn(self.watch.attacked(name, one, many))

    def _raise_if_not_finite(self) -> None:
        if (bad := self.window.first_non_finite()) is not None:
            raise self._non_finite(*bad)

    def _non_finite(self, step: int, term: str) -> NonFiniteError:
        self._finish_saving()
        good = checkpoints.checkpoints(self.folder / "checkpoints") if self.folder else []
        rate = self.optimizer.learning_rate(step - 1)
        error = NonFiniteError(step, term, rate, good[-1] if good else None)
        self.journal.write("non-finite", step, message=str(error))
        return error

    def save(self) -> None:
        """Begin to write a checkpoint of this step unless there is one. Raises NonFiniteError
        instead of saving a bad state, OSError if the last checkpoint could not be written."""
        if self.folder is None or self.saved_step == self.step:
            return
        self._finish_saving()
        with self.clock.paused():
            self._raise_if_not_finite()
            state = on_host(state_of(self))
            if processes.any_of(not is_finite(state), self.device):
                raise self._non_finite(self.step, "weights")
            folder = self.folder / "checkpoints"
            if processes.is_main():
                path = checkpoints.begin(folder, self.step, state["parts"])
                # resuming drops the line of a checkpoint that was not completed
                self.journal.write("checkpoint", self.step, path=path.name)
            processes.barrier()
            if state["method"]:
                keep = self.config.keep
                stays = self.config.keep_every and self.config.keep_every * self.steps_per_epoch
                self._writing = self._writer.submit(
                    checkpoints.save, folder, self.step, state, processes.rank(), keep, stays
                )
            self.saved_step = self.step

    def _finish_saving(self) -> None:
        """Wait until all processes have written the last checkpoint. Raises OSError."""
        if self._writing is not None:
            with self.clock.paused():
                self._writing.result()
            self._writing = None
        processes.barrier()
