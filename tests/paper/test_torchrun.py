"""Published settings in two processes: one command from pre-training to the table, killed and given again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hexa.config import UserError
from hexa.runtime.signals import Interrupted
from hexa_paper import torchrun
from tests.conftest import Says
from tests.evaluation.given import noise_images

#: Fields of a tiny network and two steps.
TINY = "--network.name=small-resnet --network.widths=[8] --views.size=16 --batch-size=16"
TINY += " --method.queue_size=64 --method.dim=8"
SHORT = "--max-steps=2"
#: Seconds that a process may take to begin or to end, on the slowest machine.
PATIENCE = 300


def line(data: str, out: Path, more: str = "") -> str:
    return f"reproduce table1 --scale=full --data={data} --seeds=0 --out={out} {TINY} {more}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 training and 100 test images of four classes."""
    counts = {"train": 300, "test": 100}
    names = [f"{split}/{n % 4}/{n}.png" for split, count in counts.items() for n in range(count)]
    return noise_images(tmp_path_factory.mktemp("images"), dict.fromkeys(names, (20, 20)))


def test_slurm_array(data: str, tmp_path: Path, says: Says) -> None:
    script = tmp_path / "array.sh"
    told = says(line(data, tmp_path / "study", f"{SHORT} --plan --slurm={script}"))
    assert "GPU-hours" in told.out
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert "#SBATCH --array=0-3" in text
    assert text.count("COMMAND=(pretrain ") == 4
    assert not (tmp_path / "study").exists()


def test_training_without_gpus(
    data: str, tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert "need GPUs" in says(line(data, tmp_path / "study"), status=2).err


def test_test_images(data: str, tmp_path: Path, says: Says) -> None:
    """A source without test images is refused before any training."""
    training = data.removeprefix("folder:") + "/train"
    asked = line(f"folder:{training}", tmp_path / "study", f"{SHORT} --plan")
    assert "test images" in says(asked, status=2).err


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace torchrun by a program of Python."""

    def replace(program: str) -> None:
        start = subprocess.Popen

        def begin(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            return start([sys.executable, "-c", program, *command], **options)

        monkeypatch.setattr(torchrun.subprocess, "Popen", begin)

    return replace


def test_exit_status(stub: Any, tmp_path: Path) -> None:
    stub("import sys; sys.exit(3)")
    with pytest.raises(UserError, match="status 3"):
        torchrun.train(["pretrain", "x"], tmp_path / "run", 2)


def test_passed_signal(stub: Any, tmp_path: Path) -> None:
    """The child gets the signal, and its end is waited for."""
    stub(
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path(sys.argv[-1], 'saved').touch()))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)"
    )
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as stop:
        torchrun.train(["pretrain", str(tmp_path)], tmp_path / "run", 2)
    assert stop.value.exit_code == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists()
    assert signal.getsignal(signal.SIGTERM) == handler


def test_linear_evaluation(stub: Any) -> None:
    """The result is what the command writes."""
    stub(
        "import json, pathlib, sys\n"
        "(out,) = [word[6:] for word in sys.argv if word.startswith('--out=')]\n"
        "pathlib.Path(out).write_text(json.dumps(sys.argv))"
    )
    command = torchrun.evaluate_linear("run", {"data": "digits", "epochs": 3}, 2)
    assert command[command.index("evaluate") :][:3] == ["evaluate", "linear", "run"]
    assert {"--data=digits", "--epochs=3"} < set(command)


def processes_of(folder: Path) -> list[int]:
    """The processes whose command names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_from_pretraining_to_the_table(data: str, tmp_path: Path) -> None:
    out = tmp_path / "study"
    given = line(data, out, f"{SHORT} --processes=2")
    command = [sys.executable, "-m", "hexa", *given.split()]
    log = (tmp_path / "log").open("w")
    first = subprocess.Popen(command, stdout=log, stderr=log)
    until = time.monotonic() + PATIENCE
    while not list(out.glob("results/*.json")) and time.monotonic() < until:
        time.sleep(0.2)
    first.kill()  # the first run is evaluated, the second one trains
    first.wait()
    while processes_of(out) and time.monotonic() < until:
        time.sleep(0.2)
    assert not processes_of(out)
    (done,) = out.glob("results/*.json")
    written = done.stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr[-2000:]
    assert done.stat().st_mtime_ns == written
    found = json.loads((out / "result.json").read_text())
    assert len(found["runs"]) == 4
    for name in found["runs"]:
        environment = json.loads((out / "runs" / name / "environment.json").read_text())
        assert environment["processes"] == 2
    assert (out / "table.md").read_text().count("HEXA-MoCo") >= 2
