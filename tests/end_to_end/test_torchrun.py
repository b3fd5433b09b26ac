"""Two processes through the real torchrun: killed, asked to stop, started again; it ends as one left in peace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hexa import recipes
from hexa.config import UserError
from hexa.recipes import experiment as experiments
from hexa.run.run import pretrain, resume
from hexa.training.journal import METRICS
from tests.distributed.together import run_together
from tests.end_to_end.endings import FIELDS, RECIPE, assert_same_end, options

TORCHRUN = Path(sys.executable).parent / "torchrun"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="finds processes in /proc"
)


class Torchrun:
    """torchrun with two processes; whatever of it is left at the end of the test is killed."""

    def __init__(self, out: Path, *arguments: str, restarts: int = 0) -> None:
        options = "--standalone --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
        options += f" --nproc-per-node 2 --max-restarts {restarts} -m hexa"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.folder = out
        self.process = subprocess.Popen(
            [str(TORCHRUN), *options.split(), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def workers(self) -> dict[int, int]:
        """The process numbers of the workers by rank."""
        found = {}
        for pid in (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ):
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            ranks = [entry.partition("=")[2] for entry in environment if entry.startswith("RANK=")]
            found |= {int(rank): int(pid) for rank in ranks}
        return found

    def until(self, step: int) -> None:
        """Wait until the journal shows a step; fails if the run ends before."""
        journal = self.folder / METRICS
        while not (journal.exists() and f'"step": {step},' in journal.read_text()):
            assert self.process.poll() is None, self.finished()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)

    def finished(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=300)
        return self.process.returncode, said

    def close(self) -> None:
        for pid in [*self.workers().values()] if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


def training(out: Path, restarts: int = 0) -> Torchrun:
    return Torchrun(out, "pretrain", RECIPE, "--out", str(out), *options(), restarts=restarts)


def undisturbed(folder: str) -> None:
    pretrain(experiments.override(recipes.get(RECIPE), FIELDS), folder)


def gone_on(folder: str) -> None:
    resume(Path(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchrun") / "whole"
    run_together(2, undisturbed, str(folder))
    return folder


def test_torchrun_kill_and_resume(tmp_path: Path, whole: Path) -> None:
    """The second kill finds no restarts left: the run ends by itself, in one line that says how to continue."""
    folder = tmp_path / "run"
    with contextlib.closing(training(folder, restarts=1)) as run:
        run.until(9)
        os.kill(run.workers()[0], signal.SIGKILL)
        run.until(17)
        os.kill(run.workers()[1], signal.SIGKILL)
        code, said = run.finished()
    assert code == 1, said
    lines = [line for line in said.splitlines() if line.startswith("hexa: error")]
    assert len(lines) == 2, said
    assert lines[0].endswith("torchrun restarts the run")
    assert f"its last checkpoint is {folder}/checkpoints/step-000000" in lines[1]
    assert lines[1].endswith(f": hexa resume {folder}")
    assert "RuntimeError" not in said
    run_together(2, gone_on, str(folder))
    assert_same_end(folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_torchrun_stop_signal(tmp_path: Path, whole: Path, number: signal.Signals) -> None:
    """Every worker is asked twice: by a scheduler, which signals all processes of a job, and by torchrun."""
    folder = tmp_path / "run"
    with contextlib.closing(training(folder)) as run:
        run.until(5)
        for pid in run.workers().values():
            os.kill(pid, number)
        run.process.send_signal(number)
        code, said = run.finished()
    assert code != 0
    assert said.count(f"with: hexa resume {folder}") == 1, said
    assert f"interrupted by {number.name}" in said
    with contextlib.closing(Torchrun(folder, "resume", str(folder))) as run:
        code, said = run.finished()
    assert code == 0, said
    assert_same_end(folder, whole)


def test_torchrun_foreign_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of another run is refused however often torchrun tries."""
    experiments.dump(recipes.get(RECIPE), tmp_path / "config.yaml")
    (tmp_path / "environment.json").write_text('{"launcher": "another"}')
    (tmp_path / "metrics.jsonl").write_text('{"event": "train"}\n')
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this")
    for restarts in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        with pytest.raises(UserError, match="holds a run"):
            pretrain(recipes.get(RECIPE), tmp_path)
