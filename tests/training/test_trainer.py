"""The training loop: its computation, exact resuming, and stopping."""

from __future__ import annotations

import copy
import itertools
import math
import signal
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.config import UserError
from hexa.core import Batch, MethodConfig
from hexa.methods.byol import BYOLConfig
from hexa.methods.dino import DINOConfig
from hexa.objective import Objective
from hexa.runtime import checkpoints
from hexa.runtime.signals import Interrupted
from hexa.training.journal import METRICS
from hexa.training.losses import NonFiniteError, is_finite
from hexa.training.monitor import MonitorConfig, Scoring, Watch
from hexa.training.schedules import learning_rate_share
from hexa.training.state import restore, state_of
from hexa.training.trainer import Trainer

from ..end_to_end.endings import metric_lines as metrics
from ..methods.setting import small
from .toy import LATE, NOW, STEPS, ToyLoader, assert_identical, method, poison, trainer


def newest(folder: Path) -> checkpoints.State:
    """The newest checkpoint, which is intact."""
    return checkpoints.newest_good(folder / "checkpoints", pytest.fail)[1]


HARD = {"now": NOW, "late": LATE}
Uninterrupted = Callable[..., tuple[Path, Trainer]]


class Kill(BaseException):
    """Ends the process immediately, from the trainer's point of view."""


def final(made: Trainer) -> dict[str, Any]:
    return {
        "method": made.objective.method.state_dict(),
        "optimizer": made.optimizer.optimizer.state_dict(),
    }


def test_training_loop(tmp_path: Path) -> None:
    """The loop equals the one in the design, written out."""
    made = trainer(tmp_path, epochs=2, log_every=1)
    made.run()
    plain = method()
    objective = Objective(plain, NOW)
    trained = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, momentum=0.9, weight_decay=1e-4)
    loader = ToyLoader()
    losses = list[float]()
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            losses.append(0.0)
            for term in objective.losses(batch):
                term.loss.backward()
                losses[-1] += float(term.loss.detach())
            share = learning_rate_share(made.optimizer.schedule, epoch * STEPS, 2, STEPS)
            optimizer.param_groups[0]["lr"] = 0.05 * share
            optimizer.step()
            optimizer.zero_grad()
            objective.commit(batch)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(
            made.objective.method.state_dict()[name], value, rtol=1e-4, atol=1e-5
        )
    assert [line["loss"] for line in metrics(tmp_path)] == pytest.approx(losses, rel=1e-4)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """Return a run without a stop, with one of `HARD`, and its folder."""

    @cache
    def made(hard: str = "now") -> tuple[Path, Trainer]:
        folder = tmp_path_factory.mktemp("uninterrupted")
        whole = trainer(folder, hard=HARD[hard])
        whole.run()
        return folder, whole

    return made


@pytest.mark.parametrize(
    ("hard", "stop"),
    [("now", stop) for stop in (1, STEPS, STEPS + 2)] + [("late", stop) for stop in (4, 5, 8)],
)
def test_trainer_resume_bits(
    tmp_path: Path, hard: str, stop: int, uninterrupted: Uninterrupted
) -> None:
    """Resuming equals never having stopped, bit for bit."""
    folder, whole = uninterrupted(hard)

    def kill(step: int) -> None:
        if step == stop:
            raise Kill

    first = trainer(
        tmp_path / "stopped", ToyLoader(kill), hard=HARD[hard], checkpoint_every_steps=1
    )
    with pytest.raises(Kill):
        first.run()
    state = newest(tmp_path / "stopped")
    assert state["step"] == stop
    second = trainer(tmp_path / "stopped", state=state, hard=HARD[hard], checkpoint_every_steps=1)
    second.run()
    assert_identical(final(whole), final(second))
    assert metrics(folder) == metrics(tmp_path / "stopped")
    assert second.loader.asked == list(range(stop, 3 * STEPS))


def test_onset_logging(
    tmp_path: Path,
) -> None:
    """A term is logged from its onset on, as a mean over its own steps."""
    made = trainer(tmp_path / "each", hard=LATE, log_every=1)
    said = list[str]()
    made.journal.reporter.say = said.append  # type: ignore[method-assign]
    made.run()
    expected = ["epoch 0.8: adversarial starts", "epoch 1.4: cutmix starts"]
    assert [line for line in said if "starts" in line] == expected
    trainer(tmp_path / "five", hard=LATE, log_every=5).run()
    each = {line["step"]: line for line in metrics(tmp_path / "each")}
    assert [min(s for s, line in each.items() if f"loss/{name}" in line) for name in LATE] == [5, 8]
    for line in metrics(tmp_path / "five"):
        its = [each[step] for step in range(line["step"] - 4, line["step"] + 1)]
        for name in ("loss", "loss/std", "loss/adversarial", "loss/cutmix"):
            known = [one[name] for one in its if name in one]
            assert (name in line) == bool(known)
            assert not known or line[name] == pytest.approx(sum(known) / len(known), rel=1e-5)


@pytest.mark.parametrize("term", ["std", "adversarial", "cutmix"])
def test_nonfinite_loss(tmp_path: Path, term: str) -> None:
    """A loss that is not finite stops before the weights change."""
    made = trainer(tmp_path, checkpoint_every_steps=2)
    poison(made, term, float("nan"))
    with pytest.raises(NonFiniteError) as caught:
        made.run()
    error = caught.value
    assert error.step == 7
    assert error.term == term
    assert error.exit_code == 1
    for words in ("step 7", term, "0.0375", "step-00000006.pt"):
        assert words in str(error)
    state = newest(tmp_path)
    assert state["step"] == 6
    # batch-norm statistics move in the forward passes of the step that failed; everything else must not
    moved = {
        name: value
        for name, value in state["method"].items()
        if "running_" in name or "num_batches" in name
    }
    assert_identical(state["method"], made.objective.method.state_dict() | moved)
    assert metrics(tmp_path, "non-finite")[0]["step"] == 7


def test_nonfinite_weights(tmp_path: Path) -> None:
    """Weights that are not finite are never saved."""
    made = trainer(tmp_path, checkpoint_every=1)

    def spoil(step: int) -> None:
        if step == 2 * STEPS - 1:
            with torch.no_grad():
                next(iter(made.optimizer.optimizer.state.values()))["momentum_buffer"].fill_(
                    float("inf")
                )

    made.loader.before = spoil  # type: ignore[attr-defined]
    with pytest.raises(NonFiniteError, match="weights"):
        made.run()
    assert [path.name for path in checkpoints.checkpoints(tmp_path / "checkpoints")] == [
        "step-00000005.pt"
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_finite_state(bad: float, dtype: torch.dtype) -> None:
    """One value of a nested state suffices; text, integers and empty tensors are finite."""
    weights = torch.randn(1000).to(dtype)
    state = {"a": [weights, {"b": torch.tensor(7), "c": "inf"}], "d": torch.zeros(0, dtype=dtype)}
    assert is_finite(state)
    weights[500] = bad
    assert not is_finite(state)


def test_background_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps go on while a checkpoint is written, and the file holds the state before them; the
    next save waits."""
    release = threading.Event()
    began: list[int] = []
    states: list[dict[str, Any]] = []
    save = checkpoints.save

    def slow(folder: Path, step: int, *given: Any) -> Path:
        began.append(step)
        assert release.wait(60)
        return save(folder, step, *given)

    def before(step: int) -> None:
        if step == STEPS:  # right after the first save
            states.append(copy.deepcopy(final(made)))
        if step == STEPS + 2:
            assert began == [STEPS]
            assert not files()
            release.set()

    def files() -> list[Path]:
        return checkpoints.checkpoints(tmp_path / "checkpoints")

    monkeypatch.setattr(checkpoints, "save", slow)
    made = trainer(tmp_path, ToyLoader(before), keep=9)
    made.run()
    assert began == [STEPS, 2 * STEPS, 3 * STEPS]
    assert [checkpoints.step_of(path) for path in files()] == began
    first = checkpoints.load(files()[0])
    assert_identical(states[0], {name: first[name] for name in ("method", "optimizer")})


@pytest.mark.parametrize("failing", [1, 3])
def test_failed_background_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """An error of the writer ends the run within the next epoch, or at its end."""
    numbers = itertools.count(1)
    save = checkpoints.save

    def fails(*given: Any) -> Path:
        if next(numbers) == failing:
            raise OSError(28, "No space left on device", "step.pt")
        return save(*given)

    monkeypatch.setattr(checkpoints, "save", fails)
    made = trainer(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        made.run()
    assert failing * STEPS <= made.step <= min(failing + 1, 3) * STEPS
    assert len(checkpoints.checkpoints(tmp_path / "checkpoints")) == failing - 1


@pytest.mark.usefixtures("hears_hang_ups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signal_save(tmp_path: Path, number: signal.Signals, uninterrupted: Uninterrupted) -> None:
    """A signal finishes the step and saves."""
    before = signal.getsignal(number)
    made = trainer(
        tmp_path, ToyLoader(lambda step: signal.raise_signal(number) if step == 6 else None)
    )
    with pytest.raises(Interrupted) as caught:
        made.run()
    assert caught.value.exit_code == 128 + number
    assert f"hexa resume {tmp_path}" in str(caught.value)
    assert caught.value.step == 7
    assert signal.getsignal(number) is before
    state = newest(tmp_path)
    assert state["step"] == 7
    again = trainer(tmp_path, state=state)
    again.run()
    assert_identical(final(uninterrupted()[1]), final(again))
    assert metrics(tmp_path, "interrupted") == [{"event": "interrupted", "step": 7}]


def test_changed_code() -> None:
    """A changed file of the recipe causes a warning; an unknown one does not."""
    made = trainer(epochs=1)
    made.code = "a"
    state = state_of(made)
    for code, warns in (("a", False), ("", False), ("b", True)):
        again = trainer(epochs=1)
        again.code = code
        assert any("file of the recipe" in line for line in restore(again, state)) == warns


def test_changed_data(tmp_path: Path) -> None:
    """Other data are refused, another number of processes is noted."""
    made = trainer(tmp_path, epochs=1)
    made.run()
    state = state_of(made)
    assert restore(trainer(epochs=1), state) == []
    assert "3 processes before, 1 now" in restore(trainer(epochs=1), {**state, "world_size": 3})[0]
    with pytest.raises(UserError, match="the data has changed"):
        restore(trainer(loader=ToyLoader(steps_per_epoch=7)), state)


def test_monitor_epochs(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """The monitor runs at its epochs and at the end."""
    made = trainer(tmp_path, epochs=3)
    made.scoring.config = MonitorConfig(knn_every=2)

    def monitor(warn: object) -> float:
        made.objective.method.eval()
        return 50.0

    made.scoring.monitor = monitor
    made.run()
    found = metrics(tmp_path, "monitor")
    assert [(line["step"], line["knn"]) for line in found] == [(2 * STEPS, 50.0), (3 * STEPS, 50.0)]
    assert made.objective.method.training
    assert_identical(final(uninterrupted()[1]), final(made))


def monitored(folder: Path, monitor: Callable[[Trainer], float], state: Any = None) -> Trainer:
    """Return a trainer with a monitor after every epoch."""
    made = trainer(folder, epochs=3, state=state)
    made.scoring.config = MonitorConfig(knn_every=1)
    made.watch = Watch(None, 10)
    if state is not None:
        made.watch.state = state["watch"]
    made.scoring.monitor = lambda warn: monitor(made)
    return made


def test_best_weights_and_patience(tmp_path: Path) -> None:
    """The best weights are kept, and the run ends after `patience` worse scores."""
    made = monitored(tmp_path, lambda made: 60.0 - 20 * made.step / STEPS)
    kept = list[int]()  # 40, 20
    made.scoring.config = MonitorConfig(knn_every=1, keep_best="knn", patience=1)
    made.scoring.keep = lambda: kept.append(made.step)
    made.run()
    assert kept == [STEPS]
    assert made.step == 2 * STEPS
    (ended,) = metrics(tmp_path, "ended")
    assert "k-NN has not risen since epoch 1" in ended["message"]


def kill_at(made: Trainer, line: str) -> None:
    """Kill the run as soon as it shows a line that begins like this."""
    say = made.journal.reporter.say

    def killed(message: str) -> None:
        if message.startswith(line):
            raise Kill
        say(message)

    made.journal.reporter.say = killed  # type: ignore[method-assign]


def judged(made: Trainer) -> float:
    """A function of the weights; poor, so that the watch has something to say."""
    made.watch.accuracy = 1.0
    return float(
        10 + sum(p.detach().double().sum() for p in made.objective.method.parameters()).tanh()
    )


def test_accuracy_target(tmp_path: Path) -> None:
    """A run ends at the epoch that reaches its accuracy."""

    def score(made: Trainer) -> float:
        return 20.0 * made.step / STEPS  # 20, 40, 60

    made = monitored(tmp_path, score)
    made.scoring.config = MonitorConfig(knn_every=1, until=40.0)
    made.config = made.config.model_copy(update={"checkpoint_every": 3})
    made.run()
    assert made.step == newest(tmp_path)["step"] == 2 * STEPS
    (ended,) = metrics(tmp_path, "ended")
    assert "k-NN reached 40.00 %" in ended["message"]
    # resumed, it trains no further: by its journal, and by the state where the line is not yet written
    journal = tmp_path / METRICS
    for lines in (journal.read_text(), journal.read_text().replace('"ended"', '"lost"')):
        journal.write_text(lines)
        again = monitored(tmp_path, score, state_of(made))
        again.scoring.config = made.scoring.config
        again.run()
        assert again.step == 2 * STEPS


@pytest.mark.parametrize(("when", "epoch"), [("before", 1), ("after", 3)])
def test_killed_monitor(tmp_path: Path, when: str, epoch: int) -> None:
    """A run killed around its monitor resumes with the same scores and warnings, with or without a
    log line of the score."""
    whole = monitored(tmp_path / "whole", judged)
    whole.run()

    def kill(made: Trainer) -> float:
        if when == "before" and made.step == epoch * STEPS:
            raise Kill
        return judged(made)

    made = monitored(tmp_path / "stopped", kill)
    if when == "after":
        made.warn = lambda messages: None  # type: ignore[method-assign]
        kill_at(made, f"epoch {epoch}:")
    with pytest.raises(Kill):
        made.run()
    state = newest(tmp_path / "stopped")
    assert state["step"] == epoch * STEPS  # what is monitored is saved first
    again = monitored(tmp_path / "stopped", judged, state)
    again.run()
    assert_identical(final(whole), final(again))
    assert metrics(tmp_path / "whole", "train", "monitor") == metrics(
        tmp_path / "stopped", "train", "monitor"
    )
    assert whole.watch.state == again.watch.state
    assert "shortcut" in whole.watch.given


@pytest.mark.parametrize("saved", ["with the score", "before it"])
def test_resumed_score(tmp_path: Path, saved: str) -> None:
    """A resume counts no score twice, and compares scores as the log holds them."""

    def begun(folder: Path, score: Callable[[Trainer], float], state: Any = None) -> Trainer:
        made = monitored(folder, score, state)
        made.scoring.config = MonitorConfig(knn_every=1, keep_best="knn", patience=2)
        if saved == "with the score":
            made.config = made.config.model_copy(update={"checkpoint_every": 3})
        return made

    def same(made: Trainer) -> float:
        return 100 / 3

    def stop(made: Trainer) -> float:
        if saved == "with the score":
            signal.raise_signal(signal.SIGTERM)
        return same(made)

    whole = begun(tmp_path / "whole", same)
    whole.run()
    made = begun(tmp_path / "stopped", stop)
    if saved == "before it":
        kill_at(made, "epoch 1:")
    with pytest.raises((Interrupted, Kill)):
        made.run()
    state = newest(tmp_path / "stopped")
    assert state["step"] == STEPS
    assert (state["best"]["value"] is None) == (saved == "before it")
    again = begun(tmp_path / "stopped", same, state)
    again.run()
    assert again.step == whole.step == 3 * STEPS
    assert again.scoring.state == whole.scoring.state


def paced(
    made: Trainer, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[], float]
) -> list[float]:
    """Let each step take that many seconds of a clock, which is returned."""
    now = [0.0]
    monkeypatch.setattr("hexa.training.clock.time.perf_counter", lambda: now[0])
    step = made._train_step

    def slow(batch: Batch) -> None:
        now[0] += seconds()
        step(batch)

    monkeypatch.setattr(made, "_train_step", slow)
    return now


@pytest.mark.parametrize(
    ("seconds", "epochs", "sets"),
    [
        (31.0, 4, None),
        (7.5, 4, None),
        (60.0, 16, 8),
        (150.0, 16, 8),
    ],
)
def test_time_fitted_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, epochs: int, sets: int | None
) -> None:
    """At a second a step, and two for each score, the run ends within a step of its time, the schedule at its end.

    With sets of views a step takes three, those that repeat them half of one.
    """
    made = trainer(tmp_path, epochs=epochs, hard={}, max_seconds=seconds)
    made.loader.sets = sets

    def pace() -> float:
        if sets is None:
            return 1.0
        return 3.0 if made.step < made.loader.sets * STEPS else 0.5

    now = paced(made, monkeypatch, pace)

    def score(warn: Callable[[str], object]) -> float:
        now[0] += 2
        return 50.0

    made.scoring = Scoring(MonitorConfig(knn_every=0 if sets else 2), score)
    made.run()
    assert seconds - 2 <= now[0] <= seconds + 2
    assert made.step == made.optimizer.total_steps == newest(tmp_path)["total_steps"]
    assert made.optimizer.learning_rate(made.step - 1) == 0.05 * learning_rate_share(
        made.optimizer.schedule, (made.step - 1) * epochs * STEPS // made.step, epochs, STEPS
    )
    assert (made.loader.sets, sets is None or made.step > 60) == (
        2 if seconds == 60 else sets,
        True,
    )
    again = trainer(tmp_path, epochs=epochs, hard={}, max_seconds=seconds)
    restore(again, newest(tmp_path))
    assert again.total_steps == made.step
    assert again.loader.sets == made.loader.sets
    again.clock.start(again.seconds, again.pauses)
    assert (again.clock.total, again.clock.pauses > 0) == (again.seconds, made.clock.pauses > 2)


@pytest.mark.parametrize(
    "config",
    [
        BYOLConfig(dim=4, hidden=8),
        DINOConfig(num_prototypes=7, hidden=8, bottleneck=4),
    ],
    ids=lambda config: config.name,
)
def test_time_limit_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: MethodConfig
) -> None:
    """With a time limit, hard examples start at their shares of the training that fits, and the
    momentum follows it, like the learning rate; they start once, also if the run resumes."""
    ends = list[tuple[int, int]]()

    def begun(folder: Path, stop: int, state: Any = None) -> tuple[Trainer, list[str]]:
        model = small(config, epochs=3, branches=("main", "aux")).float()
        more: Any = {"max_seconds": 60.0, "checkpoint_every_steps": 1}
        made = trainer(folder, hard=LATE, state=state, model=model, **more)
        said = list[str]()
        made.journal.reporter.say = said.append  # type: ignore[method-assign]

        def second() -> float:
            if made.step == stop:
                raise Kill
            return 1.0

        def spied(start: float, step: int, total: int) -> float:
            ends.append((total, made.total_steps))
            return start

        paced(made, monkeypatch, second)
        monkeypatch.setattr(f"{type(model).__module__}.cosine_momentum", spied)
        return made, said

    made, said = begun(tmp_path, stop=20)
    with pytest.raises(Kill):
        made.run()
    again, after = begun(tmp_path, stop=-1, state=newest(tmp_path))
    again.run()
    starts = [line for line in said + after if "starts" in line]
    assert again.step > 3 * 3 * STEPS
    # before the first step, the planned length is known
    assert ends[1:] == [(end, end) for _, end in ends[1:]]
    for line, (name, hard) in zip(starts, LATE.items(), strict=True):
        epochs = float(line.split()[1].rstrip(":"))
        first = round(epochs * STEPS)
        assert name in line
        assert first == again.objective.starts[name]
        assert first / again.step == pytest.approx(hard.start, abs=0.05)
