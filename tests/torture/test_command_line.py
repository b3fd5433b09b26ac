"""The real command line, its output going nowhere, its targets failing, its names not text: nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from PIL import Image

from hexa import cli
from hexa.training.journal import METRICS
from tests.torture.harness import Tally, hexa

TINY = (
    *("--batch-size", "64", "--views.size", "8", "--network.widths", "[4,8]", "--method.queue-size", "128"),
    *("--training.log-every", "1", "--training.device", "cpu", "--training.precision", "fp32"),
    *("--training.report", "false", "--training.tensorboard", "false", "--monitor.knn-every", "0"),
)
GROUP = "standard output that cannot be written"


def pretrain(out: Path | str, *more: str) -> list[str]:
    return ["pretrain", "digits-moco-v2", *TINY, "--out", str(out), *more]


def started(arguments: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "hexa", *arguments], env=environment, **streams)


def events(run: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [json.loads(line)["event"] for line in (run / METRICS).read_text().splitlines()]
    return []


def test_a_reader_that_goes_away_does_not_end_a_training(tmp_path: Path, tally: Tally) -> None:
    process = started(pretrain(tmp_path / "run", "--epochs", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"digits-moco-v2")
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    status = process.wait(120)
    tally.fault(GROUP, status == 0 and events(tmp_path / "run")[-1] == "end")
    assert (status, said) == (0, "")
    assert events(tmp_path / "run")[-1] == "end"
    assert (tmp_path / "run" / "backbone.safetensors").is_file()


SHELL = {
    "a full disk": "{hexa} >/dev/full 2>/dev/full",
    "closed": "{hexa} >&- 2>&- <&-",
    "output closed": "{hexa} >&-",
    "a pipe that is closed at once": "{{ {hexa}; echo $? >status; }} 2>&1 | true; exit $(cat status)",
}


@pytest.mark.parametrize("where", SHELL)
def test_short_commands_end_as_ever(where: str, tmp_path: Path, tally: Tally) -> None:
    long = [("recipes --json", 0)] if "pipe" in where else []  # seconds: it imports torch
    for arguments, expected in [("--help", 0), ("resume nowhere", 2), *long]:
        line = SHELL[where].format(hexa=f"{sys.executable} -m hexa {arguments}")
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=120)
        said = done.stderr.decode()
        tally.fault(GROUP, done.returncode == expected and "Traceback" not in said and "Exception" not in said)
        assert done.returncode == expected, said
        assert "Traceback" not in said
        assert "Exception" not in said


@pytest.mark.slow
@pytest.mark.parametrize("where", list(SHELL)[:3])
def test_a_training_ends_as_ever(where: str, tmp_path: Path, tally: Tally) -> None:
    arguments = " ".join(f"'{word}'" for word in pretrain(tmp_path / "run", "--epochs", "1"))
    line = SHELL[where].format(hexa=f"{sys.executable} -m hexa {arguments}")
    status = subprocess.run(["bash", "-c", line], cwd=tmp_path, timeout=120).returncode
    tally.fault(GROUP, status == 0 and events(tmp_path / "run")[-1] == "end")
    assert status == 0
    assert events(tmp_path / "run")[-1] == "end"
    # no file of the run has become standard output
    assert all(json.loads(text) for text in (tmp_path / "run" / METRICS).read_text().splitlines())


# -- names ----------------------------------------------------------------------------------------------------------

ODD = os.fsdecode(b"[b] \xff\x1b[31m:smile:")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Two classes whose names, and the names of whose files, are neither text nor harmless; one cannot be read."""
    folder = tmp_path / f"photos {ODD}"
    for number in range(40):
        path = folder / f"{ODD}{number % 2}" / f"{number}{ODD}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 12), (200 * (number % 2), number * 5, 90)).save(path)
    return folder


def survived(status: int, out: str, err: str, expected: int = 0) -> bool:
    clean = not any(ord(letter) < 32 and letter not in "\n\t" for letter in out + err)
    return status == expected and clean and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [{}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_run_of_names_that_are_not_text(
    environment: dict[str, str], photographs: Path, tmp_path: Path, tally: Tally
) -> None:
    run = tmp_path / f"run {ODD}"
    some = next(iter(sorted(photographs.iterdir())))
    next(iter(sorted(some.iterdir()))).write_bytes(b"no picture")
    data = f"folder:{photographs}"
    tiny = ["--batch-size", "16", "--method.queue-size", "32", "--training.max-corrupt-share", "0.5"]
    tiny += ["--training.report", "true", "--training.tensorboard", "true", "--monitor.knn-every", "1"]
    commands: list[list[str]] = [
        [*pretrain(run, "--data", data, "--epochs", "2"), *tiny],
        ["resume", str(run)],
        ["evaluate", "knn", str(run), "--data", data, "--holdout", "0.5", "--out", str(tmp_path / f"{ODD}.json")],
        ["embed", str(run), "--data", data, "--out", str(tmp_path / f"{ODD}.npz")],
        ["embed", str(run), "--data", data, "--out", str(tmp_path / f"{ODD}.parquet")],
        ["report", str(run), "--data", data, "--out", str(tmp_path / f"{ODD}.html")],
        ["export", str(run), "--to", "timm", "--out", str(tmp_path / f"{ODD}.safetensors")],
        ["visualize", str(run), "--out", str(tmp_path / f"{ODD}.png")],
        ["figure", "neighbours", str(run), "--data", data, "--out", str(tmp_path / f"{ODD}.svg")],
        ["evaluate", "knn", str(tmp_path / ODD), "--data", data],
    ]
    for number, arguments in enumerate(commands):
        done = hexa(*arguments, cwd=tmp_path, environment=environment)
        ended = survived(done.code, done.out, done.err, expected=2 if number == len(commands) - 1 else 0)
        tally.input("names that are not text", ended)
        assert ended, f"{arguments[0]}: {done.code} {done.out[-1000:]!a} {done.err[-3000:]!a}"
    assert "[b] \\udcff" in hexa(*commands[-1], cwd=tmp_path).err
    assert yaml.safe_load((run / "config.yaml").read_bytes())["data"] == data
    json.loads((run / "results.json").read_bytes())
    with np.load(tmp_path / f"{ODD}.npz") as arrays:
        paths = [str(path) for path in arrays["paths"]]
    with (tmp_path / f"{ODD}.parquet").open("rb") as file:
        assert pyarrow.parquet.read_table(file)["paths"].to_pylist() == paths
    assert all("\\udcff" in path for path in paths)


@pytest.mark.parametrize("name", ["x[/b]", "run[old]", ":smile:", ODD, "a\nhexa: error: b", "-x", "é"])
def test_names_are_printed_as_they_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tally: Tally
) -> None:
    from hexa.session import run as training

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "pretrain", lambda experiment, out, console: out)
    status = cli.main(["pretrain", "digits-moco-v2", f"--out={name}", f"--data=folder:{name}"])
    out = capsys.readouterr().out
    shown = name.encode("unicode-escape", "surrogatepass").decode().replace("\\xe9", "é")
    tally.input("names that are not text", status == 0 and shown in out)
    assert status == 0
    assert out.startswith(f"run: {shown}\n")
    assert out.count("\n") == 2
    assert cli.main(["evaluate", "knn", f"./{name}", "--data", "digits"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("hexa: error: ./")
    assert err.count("\n") == 1
    assert survived(2, "", err, expected=2)


# -- targets --------------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_at_the_end_loses_no_result(tmp_path: Path, tally: Tally) -> None:
    out = tmp_path / "result.json"
    arguments = ["evaluate", "knn", "pixels:8", "--data", "digits", "--device", "cpu", "--out", str(out)]
    done = hexa(*arguments, limits={resource.RLIMIT_FSIZE: 1500}, environment={"PYTHONDONTWRITEBYTECODE": "1"})
    result = json.loads(done.out[done.out.index("\n{") :]) if "\n{" in done.out else {}
    tally.fault("a target that cannot be written", done.complaint is None and "metrics" in result)
    assert done.complaint is None
    assert result["metrics"]["top1"] > 90
    assert f"{out}: the limit on the size of files is reached" in done.err
    assert not list(tmp_path.iterdir())


COMMANDS = (
    ["evaluate", "knn", "pixels:8", "--data", "digits", "--out", "{}.json"],
    ["embed", "pixels:8", "--data", "digits", "--out", "{}.npz"],
    ["visualize", "digits-moco-v2", "--out", "{}.png"],
    ["figure", "clusters", "pixels:8", "--data", "digits", "--out", "{}.svg"],
    ["export", "random:small-resnet-4-8", "--to", "safetensors", "--out", "{}.safetensors"],
    ["report", ".", "--out", "{}.html"],
    ["reproduce", "ablation", "--data", "digits", "--out", "{}"],
    ["demo", "--out", "{}"],
    ["pretrain", "digits-moco-v2", "--out", "{}"],
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("place", ["/proc/x", "file/x", "loop/x", "nowhere/x", "x" * 300])
def test_a_target_that_cannot_be_written_is_told_before_the_work(
    place: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tally: Tally,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("loop").symlink_to("loop")
    Path("nowhere").symlink_to("gone")
    before = sorted(tmp_path.rglob("*"))
    begin = time.process_time()
    status = cli.main([word.format(place) for word in arguments])
    err = capsys.readouterr().err
    seconds = time.process_time() - begin
    survived = status == 2 and err.startswith("hexa: error: ") and err.count("\n") == 1
    tally.fault("a target that cannot be written", survived)
    assert survived, err
    assert sorted(tmp_path.rglob("*")) == before
    assert seconds < 20
