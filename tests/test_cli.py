"""The command line: what is parsed, what is said about mistakes, and that asking for help costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import hexa
from hexa import cli, recipes
from hexa.cli import fields
from hexa.cli.declare import COMMANDS, Handler
from hexa.config import Config, ConfigError, UserError
from hexa.evaluation import protocols
from hexa.recipes import plugins
from hexa.recipes.experiment import Experiment, override


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def stand_in(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> None:
    """`hexa doctor` does something else."""
    monkeypatch.setitem(COMMANDS, "doctor", replace(COMMANDS["doctor"], run=handler))


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a mistake."""
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err.startswith("hexa: error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--help"], ["--version"], ["evaluate", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom hexa.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'torchvision', 'timm', 'sklearn', 'scipy', 'pyarrow', 'numpy', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: hexa" in done.stdout or hexa.__version__ in done.stdout


def test_importing_hexa_does_not_import_torch() -> None:
    program = "import hexa, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_every_command_has_a_handler_and_help_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, parsers = cli.build_parser()
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for name in parsers:
        assert callable(COMMANDS[name].run)
        assert name in text


def test_help_names_every_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert ", ".join(protocols.names()) in said
    assert {"knn", "linear", "probe", "semi-supervised"} <= set(protocols.names())


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys)
    assert status == 2
    assert "usage: hexa" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pretrian"], "did you mean 'pretrain'?"),
        (["--anything", "pretrain", "x"], "unknown command '--anything'; give the command first, then its options"),
        (["evaluate", "robust", "x", "--data", "digits", "--epsilons", "0"], "epsilons: all must be above 0, got 0"),
        (["evaluate", "knn", "pixels:8", "--data", "digits", "--device", "meta"], "'meta' cannot be used here"),
        (["recipes", "--jsn"], "did you mean '--json'?"),
        (
            ["embed", "x", "--data", "y", "--out", "f.npz", *map(str, range(4326))],
            "not take: 0 1 2 3 4 and 4,321 more; ",
        ),
        (["pretrain"], "either a recipe or --config"),
        (["pretrain", "digits-moco"], "did you mean 'digits-moco-v2'?"),
        (["pretrain", "digits-moco-v2", "--epoch", "3"], "--epoch: no such option or field; did you mean '--epochs'?"),
        (["pretrain", "digits-moco-v2", "--temperature", "3"], "did you mean '--method.temperature'?"),
        (["pretrain", "digits-moco-v2", "--method.temprature", "3"], "method.temprature: unknown field; did you mean"),
        (["pretrain", "digits-moco-v2", "--epochs", "many"], "epochs: "),
        (["pretrain", "digits-moco-v2", "--precision", "fp16"], "training.precision: "),
        (["pretrain", "digits-moco-v2", "--hard_examples.adverserial.epsilon", "2"], "did you mean 'adversarial'?"),
        (["pretrain", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["pretrain", "nowhere.py:recipe"], "nowhere.py: no such file"),
        (["pretrain", "nowhere.py"], "name the function too"),
        (["resume", "nowhere"], "nowhere"),
        (["evaluate", "knn"], "BACKBONE, --data"),
        (["evaluate", "knn", "x", "--data", "digits", "--out", "result.txt"], "must end in .json"),
        (["embed", "x", "--data", "digits", "--out", "features.csv"], "must end in .npz or .parquet"),
        (["visualize", "x", "--data", "digits", "--out", "picture.png", "--num-images", "0"], "from 1 to 256, got 0"),
        (["visualize", "x", "--data", "digits", "--out", "picture.png", "--gain", "nan"], "above 0, got nan"),
        (
            ["visualize", "x", "--data", "digits", "--out", "picture.png", "--seed", "-1"],
            "from 0 to 4294967295, got -1",
        ),
        (["evaluate", "knn", "x", "--data", "digits", "--holdout", "inf"], "holdout: "),
        (["benchmark", "digits-moco-v2", "--repeats", "x"], "--repeats"),
        (["benchmark", "digits-moco-v2", "--repeats", "-3"], "from 1 to 1000, got -3"),
        (["reproduce", "ablation", "--data", "digits", "--seeds", "1", str(2**70)], "--seeds"),
        (["reproduce", "ablation", "--data", "digits", "--workers", "0"], "--workers"),
        (["export", "x", "--to", "timm", "--out", "/dev/null"], "/dev/null"),
        (["report", "x", "--out", "/proc/page.html"], "cannot be written"),
        (["demo", "--out", "/dev/null/x"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in error_of(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_a_bug_shows_its_traceback_and_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        return int("three")  # a ValueError that is Python's, not ours

    stand_in(monkeypatch, broken)
    status, _, err = run(capsys, "doctor")
    assert status == 1
    assert "invalid literal" in err
    assert "Traceback" in err
    assert "please report" in err


def test_errors_of_the_system_and_of_memory_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    def fails(error: Exception) -> None:
        def handler(*_: object) -> int:
            raise error

        stand_in(monkeypatch, handler)

    fails(PermissionError(13, "Permission denied", "/root/x"))
    assert error_of(capsys, "doctor") == "hexa: error: /root/x: Permission denied\n"
    fails(OutOfMemoryError("tried to\nallocate"))
    assert "lower --batch-size" in error_of(capsys, "doctor")


def test_an_exception_with_an_exit_code_and_an_interrupt_keep_theirs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        exit_code = 143

    for error, status in ((Stopped("saved at step 3"), 143), (KeyboardInterrupt(), 130)):

        def handler(*_: object, error: BaseException = error) -> int:
            raise error

        stand_in(monkeypatch, handler)
        found, _, err = run(capsys, "doctor")
        assert found == status
        assert "error" not in err


@pytest.mark.parametrize(
    "spelled",
    [
        ["--method.queue_size", "512", "--batch-size", "64"],
        ["--method.queue-size=512", "--batch_size=64"],
        ["--batch-size=64", "--method.queue-size", "512"],
    ],
)
def test_fields_are_spelled_with_dashes_or_underscores_and_with_or_without_equals(spelled: list[str]) -> None:
    ours, given = fields.split(["pretrain", "digits-moco-v2", *spelled, "--out", "x"], ["--out", "--data"])
    assert ours == ["pretrain", "digits-moco-v2", "--out", "x"]
    changed = override(recipes.get("digits-moco-v2"), given)
    assert (changed.method.model_dump()["queue_size"], changed.batch_size) == (512, 64)


def test_split_leaves_positions_negative_numbers_and_flags_alone() -> None:
    ours, given = fields.split(["--optimizer.momentum", "-1", "name", "--training.compile", "--json"], ["--json"])
    assert ours == ["name", "--json"]
    assert given == {"optimizer.momentum": "-1", "training.compile": "true"}


def test_several_numbers_are_a_list_and_names_stay_positions() -> None:
    ours, given = fields.split(["--shots", "1", "2", "16", "knn", "--k", "20", "--draws=5"], [])
    assert ours == ["knn"]
    assert given == {"shots": "1,2,16", "k": "20", "draws": "5"}


def test_of_a_field_given_twice_the_last_counts() -> None:
    _, given = fields.split(["--batch-size", "64", "--batch_size", "128"], [])
    assert given == {"batch_size": "128"}


def test_check_names_prefers_the_nearest_of_options_and_fields() -> None:
    known = ["epochs", "method.temperature", "batch_size"]
    fields.check_names(["epochs", "hard_examples.anything.weight"], known, ["--out"])
    with pytest.raises(ConfigError, match="did you mean '--out'"):
        fields.check_names(["outt"], known, ["--out"])
    with pytest.raises(ConfigError, match="lists every field"):
        fields.check_names(["xyzzy"], known, ["--out"])


def test_pretrain_hands_the_experiment_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hexa.run import run as training

    seen: list[tuple[Experiment, object]] = []

    def pretend(experiment: Experiment, out: Path | None = None, **_: object) -> Path:
        seen.append((experiment, out))
        return tmp_path

    monkeypatch.setattr(training, "pretrain", pretend)
    arguments = [
        "--data",
        "folder:x",
        "--epochs",
        "3",
        "--device",
        "cpu",
        "--compile",
        "--seed",
        "5",
        "--out",
        "runs/y",
    ]
    assert cli.main(["pretrain", "digits-hexa-moco", *arguments, "--hard_examples.adversarial", "none"]) == 0
    assert f"next: hexa evaluate knn {tmp_path} --data folder:x" in capsys.readouterr().out
    experiment, out = seen[0]
    assert out == Path("runs/y")
    assert (experiment.data, experiment.epochs, experiment.seed) == ("folder:x", 3, 5)
    assert (experiment.training.device, experiment.training.compile) == ("cpu", True)
    assert not experiment.hard_examples

    hexa.pretrain("digits-moco-v2", epochs=2, **{"method.temperature": 0.3})
    experiment, out = seen[1]
    assert (experiment.epochs, experiment.method.model_dump()["temperature"], experiment.data) == (2, 0.3, "digits")


@pytest.mark.parametrize(
    ("files", "rest"),
    [
        (("cat/1.png", "dog/1.png"), "evaluate knn RUN --data folder:DATA --holdout 0.2"),
        (("train/cat/1.png", "train/dog/1.png", "test/cat/1.png"), "evaluate knn RUN --data folder:DATA"),
        (("1.png", "2.png"), "embed RUN --data folder:DATA --out features.npz"),
    ],
    ids=["no test split", "a test split", "no labels"],
)
def test_the_next_command_suits_the_images(
    files: tuple[str, ...],
    rest: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hexa.run import run as training

    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    monkeypatch.setattr(training, "pretrain", lambda *_, **__: Path("RUN"))
    assert cli.main(["pretrain", "digits-moco-v2", "--data", f"folder:{tmp_path}"]) == 0
    assert f"next: hexa {rest.replace('DATA', str(tmp_path))}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", recipes.names())
def test_help_of_a_recipe_lists_every_field_with_its_value_and_meaning(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "pretrain", name, "--help")
    assert status == 0
    experiment = recipes.get(name)
    listed = fields.of_experiment(experiment)
    flat: dict[str, object] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, dict) and (value or prefix == "hard_examples"):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    walk("", experiment.model_dump())
    assert {field.path for field in listed} == set(flat)
    for field in listed:
        assert f"--{field.path} " in out
        assert field.description, f"{field.path} has no description"
        value = field.value
        if isinstance(value, tuple):
            value = tuple(part.model_dump() if isinstance(part, Config) else part for part in value)
        assert value == flat[field.path]


def test_help_shows_values_changed_beside_it_and_absent_hard_examples(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "pretrain", "digits-moco-v2", "--epochs", "7", "--help")[1]
    assert "--epochs 7 " in out
    assert "--hard_examples.adversarial.epsilon" in out
    assert "auto|fp32|bf16" in out


def test_a_value_printed_by_help_can_be_given_back() -> None:
    experiment = recipes.get("digits-hexa-moco")
    changes = {field.path: fields._shown(field.value) for field in fields.of_experiment(experiment)}
    assert override(experiment, changes) == experiment


def test_recipes_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "recipes")[1]
    listed = json.loads(run(capsys, "recipes", "--json")[1])
    assert [row["name"] for row in listed] == recipes.names()
    for row in listed:
        assert row["name"] in text


PLUGIN = """
from typing import Literal
from hexa.methods.moco import MoCoConfig
from hexa import recipes

class TwinConfig(MoCoConfig):
    name: Literal["twin"] = "twin"

def mine():
    base = recipes.get("digits-moco-v2")
    return base.model_copy(update={"method": TwinConfig(**base.method.model_dump(exclude={"name"}))})

def wrong():
    return 3
"""


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "my_method.py"
    file.write_text(PLUGIN)
    experiment = plugins.experiment_of(f"{file}:mine")
    assert experiment.method.name == "twin"
    assert experiment.recipe == f"{file}:mine"
    assert override(experiment, {"epochs": 2}).method.name == "twin"
    with pytest.raises(UserError, match="has no function 'mien'; did you mean 'mine'"):
        plugins.experiment_of(f"{file}:mien")
    with pytest.raises(UserError, match="returned int"):
        plugins.experiment_of(f"{file}:wrong")


def test_doctor_finds_nothing_missing_here(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert status == 0, out
    assert "torch" in findings["packages"]["found"]
    assert "bf16" in findings["precision"]["found"]
    assert "JPEG" in findings["decoding with PIL"]["found"]
    assert all(finding["remedy"] for finding in findings.values() if finding["status"] != "ok")


def test_doctor_fails_when_something_essential_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib

    from hexa.measure import doctor

    there = importlib.import_module

    def lacking(name: str) -> object:
        if name == "timm":
            raise ImportError("libc too old")
        return there(name)

    monkeypatch.setattr(doctor.importlib, "import_module", lacking)
    status, out, _ = run(capsys, "doctor")
    assert status == 1
    assert "FAIL  timm: ImportError: libc too old" in out
    assert "--force-reinstall timm" in out
    monkeypatch.undo()
    assert doctor.failed(doctor.diagnose(tmp_path / "missing"))


@pytest.mark.parametrize(("protocol", "option"), [("knn", "--k 200"), ("linear", "--learning_rate")])
def test_help_of_a_protocol_lists_its_options(protocol: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "evaluate", protocol, "--help")
    assert status == 0
    assert option in out
    assert run(capsys, "evaluate", "knm", "--help")[0] == 2


def test_recipes_can_be_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(run(capsys, "recipes", "digits", "--json")[1])
    assert [row["name"] for row in listed] == [name for name in recipes.names() if "digits" in name]
    assert run(capsys, "recipes", "nothing-like-it")[0] == 2
