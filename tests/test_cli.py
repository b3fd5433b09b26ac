"""The command line: what is parsed, what is said about mistakes, and that asking for help costs nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import hexa
from hexa import recipes
from hexa.cli import fields
from hexa.cli.declare import COMMANDS, commands
from hexa.measure.costs import Costs
from hexa.recipes.experiment import Experiment, override
from hexa.weights.pretrained import random_backbone, save_backbone
from tests.conftest import Says
from tests.evaluation.given import SMALL, plain_images


def test_help_imports() -> None:
    """Help, lists of recipes and mistyped names import nothing heavy."""
    program = """
import sys
from hexa.cli import main
heavy = {"torch", "torchvision", "timm", "sklearn", "scipy", "pyarrow", "numpy", "rich"}
for line in ("--help", "pretrain --help", "--version", "evaluate --help"):
    try:
        main(line.split())
    except SystemExit:
        pass
assert not heavy & sys.modules.keys()
for line in ("recipes moco", "recipes --json", "pretrain cifar10-moco-v3"):
    main(line.split())
assert heavy & sys.modules.keys() <= {"rich"}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: hexa") == 3
    assert f"hexa {hexa.__version__}\n" in done.stdout
    assert "cifar10-moco-v2" in done.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("adapt no.pth --data photos", "no.pth: no such run, file or network"),
        (
            "compare timm:resnet18 file.pth#teacher --data photos",
            "file.pth#teacher: no such run, file or network",
        ),
        (
            "embed timm:resnet18 --data folder:no/where --out x.npz",
            "data 'folder:no/where': no such folder: no/where",
        ),
        (
            "harden timm:resnet18 --data photos --labelled ./no#train",
            "data './no#train': no such folder: no",
        ),
        ("embed timm:resnet18 --data /dev/null --out x.npz", "is not a folder: /dev/null"),
        ("resume runs/none --max_steps=9", "--max-steps: no such option of `hexa resume`"),
        ("embed timm:resnet18 --data ~nouser/photos --out x.npz", "no such folder: ~nouser/photos"),
        ("compare timm:resnet18 --data digits", "the following arguments are required: OTHER"),
        ("visualize digits-moco-v2 --out views.txt", ".png"),
        ("export runs/none --to onnx --out pyproject.toml/x.onnx", "pyproject.toml"),
    ],
)
def test_mistakes_before_torch(line: str, said: str) -> None:
    """Mistakes are one line, before torch is imported."""
    program = f"import sys; from hexa.cli import main; sys.exit(main({line.split()}) + 10 * ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (2, 1, True), (
        done.stderr
    )


def test_plan_imports() -> None:
    """Plans import neither scikit-learn nor SciPy."""
    program = """
import gc, sys
from hexa.cli.declare import import_networks
import_networks()
import hexa.adaptation.harden
assert gc.isenabled() and gc.get_freeze_count() > 10**5
sys.exit(f"imported: {heavy}" if (heavy := {"sklearn", "scipy", "matplotlib", "tensorboard"} & set(sys.modules)) else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_embed_imports(tmp_path: Path) -> None:
    """Embedding a folder of JPEGs enters few modules of hexa."""
    data = plain_images(tmp_path / "photos", {"0.jpg": (8, 8), "1.jpg": (8, 8)})
    weights = save_backbone(random_backbone(SMALL, 8), tmp_path / "backbone.safetensors")
    program = f"""
import sys
from hexa.cli import main
main("embed {weights} --data {data} --out {tmp_path}/out.npz".split())
print(sum(name.partition(".")[0] == "hexa" for name in sys.modules))
"""
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert int(printed.split()[-1]) <= 48


def test_empty_command_line() -> None:
    """No command prints help, and ends the process after all else."""
    ours = "main = cli.main; cli.main = lambda: atexit.register(print, 'later') and main()"
    program = f"import atexit, os; from hexa import cli; {ours}; os._exit = lambda n: print('ended', n); cli.run()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout[:11] == "usage: hexa"
    assert done.stdout[-14:] == "later\nended 2\n"


MISTAKES = {
    "pretrian": "did you mean 'pretrain'?",
    "--anything pretrain x": "unknown command '--anything'; give the command first, then its options",
    "recipes --jsn": "did you mean '--json'?",
    "recipes digits-moco-v3+cutmix": "did you mean 'digits-moco-v2'",
    "recipes digits-moco-v2 --bach-size=3": "did you mean '--batch_size'",
    "recipes --batch-size 3": "no such option; fields follow a recipe: `hexa recipes RECIPE",
    f"embed x --data y --out f.npz {' '.join(map(str, range(4326)))}": "not take: 0 1 2 3 4 and 4,321 more; ",
    "pretrain": "either a recipe or --config",
    "pretrain digits-moco": "did you mean 'digits-moco-v2'?",
    "pretrain digits-moco-v2 --epoch 3": "--epoch: no such option or field; did you mean '--epochs'?",
    "pretrain digits-moco-v2 --xyzzy x": "lists every field",
    "pretrain digits-moco-v2 --temperature 3": "did you mean '--method.temperature'?",
    "pretrain digits-moco-v2 --method.temprature 3": "method.temprature: unknown field; did you mean",
    "pretrain digits-moco-v2 --batch-size --optimizer.learning_rate": "give a value",
    "pretrain digits-moco-v2 --views.scale 0.2 1 --epochs 0": "epochs: ",
    "embed pixels:8 --data digits --out=~/features": f"--out {Path.home()}/features: the name must",
    "pretrain digits-moco-v2 --hard_examples.adverserial.epsilon 2": "did you mean 'adversarial'?",
    "pretrain digits-moco-v2 --data digts": "did you mean 'digits'",
    "pretrain digits-moco-v2 --domain histologie": "'histology'",
    "pretrain nowhere.py:recipe": "nowhere.py: no such file",
    "pretrain nowhere.py": "name the function too",
    "harden x --dta digits": "--dta: did you mean '--data'?",
    "evaluate knn": "BACKBONE, --data",
    "evaluate knm pixels:8 --data digits": "did you mean 'knn'",
    "evaluate knn pixels:8 --data digits --kk 3": "unknown option 'kk'; did you mean 'k'?",
    "evaluate knn pixels:8 --data digits --device meta": "'meta' cannot be used here",
    "evaluate knn pixels:8 --data digits --out result.txt": "must end in .json",
    "embed pixels:8 --data digits --out features.csv": "must end in .npz or .parquet",
    "visualize x --data digits --out picture.png --num-images 0": "from 1 to 256, got 0",
    "benchmark digits-moco-v2 --repeats -3": "from 1 to 1000, got -3",
    f"reproduce ablation --data digits --seeds 1 {2**70}": "--seeds",
    "export x --to timm --out /dev/null": "/dev/null",
    "demo --out /dev/null/x": "cannot be written",
}


@pytest.mark.parametrize("line", MISTAKES, ids=lambda line: line[:70])
def test_command_line_mistakes(
    line: str, says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake is one line with a remedy."""
    monkeypatch.chdir(tmp_path)
    err = says(line, status=2).err
    assert err.startswith("hexa: error: ")
    assert err.count("\n") == 1
    assert MISTAKES[line] in err
    assert not list(tmp_path.iterdir())


class Stopped(Exception):
    exit_code = 143


class OutOfMemoryError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        # a ValueError that is Python's, not ours, is a bug
        (ValueError("invalid literal"), 1, r"(?s)Traceback.*invalid literal.*please report"),
        (
            PermissionError(13, "Permission denied", "/root/x"),
            2,
            r"^hexa: error: /root/x: Permission denied\n$",
        ),
        (
            OutOfMemoryError("tried to\nallocate"),
            2,
            r"^hexa: error: .*lower --batch-size.*tried to allocate.*\n$",
        ),
        # a memory limit below what torch needs
        (
            ImportError("libtorch_cpu.so: failed to map segment"),
            2,
            r"^hexa: error: .*ulimit -v.*\n$",
        ),
        (ImportError("no module of this name"), 1, "Traceback"),
        (Stopped("saved at step 3"), 143, r"(?s)^(?!.*error)"),
        (KeyboardInterrupt(), 130, r"(?s)^(?!.*error)"),
    ],
)
def test_exit_status_by_error(
    error: BaseException, status: int, said: str, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a command determines its exit status."""
    broken = replace(commands("doctor")["doctor"], run=Mock(side_effect=error))
    monkeypatch.setitem(COMMANDS, "doctor", broken)
    assert re.search(said, says("doctor", status=status).err)


@pytest.mark.parametrize(
    ("files", "rest"),
    [
        ("cat/1.png dog/1.png", "evaluate knn RUN --data folder:DATA --holdout 0.2"),
        ("train/cat/1.png train/dog/1.png test/cat/1.png", "evaluate knn RUN --data folder:DATA"),
        ("1.png 2.png", "embed RUN --data folder:DATA --out features.npz"),
    ],
    ids=["no test split", "a test split", "no labels"],
)
def test_next_command(
    files: str, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    """The next command suits the images."""
    data = plain_images(tmp_path, dict.fromkeys(files.split(), (8, 8)))
    monkeypatch.setattr("hexa.run.run.pretrain", lambda *_, **__: Path("RUN"))
    out = says(f"pretrain digits-moco-v2 --data {data}").out
    assert f"next: hexa {rest.replace('DATA', str(tmp_path))}\n" in out


def test_help_value_roundtrip() -> None:
    """A value printed by help can be given back."""
    experiment = recipes.get("digits-hexa-moco")
    changes = {field.path: fields._shown(field.value) for field in fields.of_experiment(experiment)}
    assert override(experiment, changes) == experiment


def test_time_option(says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of 600 s in nine tenths of an hour, minus the seconds before the first step."""
    costs = Costs(16, 0.0, {4: 600 / 1347}, 0.1)
    trained = list[Experiment]()
    monkeypatch.setattr("hexa.measure.costs.measure", lambda *_, **how: costs)
    monkeypatch.setattr(
        "hexa.run.run.pretrain",
        lambda experiment, out, **_: trained.append(experiment) or Path(out),
    )
    begin = f"pretrain digits-moco-v2 --out {tmp_path / 'run'} --time"
    out = says(f"{begin} 1h").out
    (made,) = trained
    assert made.epochs == 5
    assert "5 epochs of 1,347 images" in out
    assert 3000 < made.training.max_seconds < 3240
    for words, said in (
        ("9m", "one epoch alone takes 10 min"),
        ("1m --epochs 3", "--time chooses the length; leave out --epochs"),
        ("soon", "--time: must be a number"),
    ):
        assert said in says(f"{begin} {words}", status=2).err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "under torchrun give --epochs" in says(f"{begin} 1m", status=2).err
    assert len(trained) == 1
