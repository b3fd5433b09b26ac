"""Every code block of README and docs/ is run, top to bottom, in an empty folder with a few
photographs next to it.

`hexa …` goes through the real command line in this process, with fewer epochs than a reader would
use. The python blocks of a page share their names, as in a notebook; a block that begins with `#
NAME.py` is saved under that name instead. A block after `<!-- skip: reason -->` is only shown.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

import hexa
from docs import generated, notebooks
from docs.generated import PAGES, ROOT
from hexa import cli, recipes
from hexa.cli import fields
from hexa.config import choices
from hexa.core import HardExample
from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import random_backbone, save_backbone

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
BLOCK = re.compile(
    r"(?:<!-- skip: (?P<reason>[^>]+) -->\s+)?```(?P<language>\w*)\n(?P<text>.*?)```", re.DOTALL
)


#: Training and test images of CIFAR-10 that a page gets in place of all.
FEW_IMAGES = 512
#: The most words of all pages.
WORDS = 25_000
#: Pages that a script writes whole; their words do not count.
WRITTEN = {"does-hexa-raise-accuracy.md"}


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    reason: str | None
    line: int


def blocks_of(page: Path) -> list[Block]:
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        return [
            Block("python", "".join(c["source"]), None, place)
            for place, c in enumerate(cells)
            if c["cell_type"] == "code"
        ]
    text = page.read_text()
    return [
        Block(
            one["language"],
            textwrap.dedent(one["text"]),
            one["reason"],
            text.count("\n", 0, one.start()) + 1,
        )
        for one in BLOCK.finditer(text)
    ]


def commands_of(block: Block) -> list[list[str]]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def quick(text: str) -> str:
    """The same with one epoch of small views: what the page says is run, not for how long."""
    text = re.sub(
        r"(hexa (?:adapt|harden) .*?)--time \w+",
        r"\1--time 30m --epochs 1 --views.size 32",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"(hexa pretrain .*?)--time \w+", r"\1--epochs 1", text, flags=re.DOTALL)
    text = re.sub(r"(hexa compare .*?)--time \w+", r"\1--time 20s --size 32", text, flags=re.DOTALL)
    text = re.sub(r'time="\w+"', 'time="30m", epochs=1', text)
    text = re.sub(r"--epochs[ =]\d+", "--epochs 1", text)
    text = re.sub(r"--views\.size[ =]\d+", "--views.size 32", text)
    text = re.sub(r"(hexa pretrain .*?)--images \d+", rf"\1--images {FEW_IMAGES}", text)
    text = re.sub(r"(hexa evaluate robust .*?)--images \d+", r"\1--images 8", text)
    text = text.replace("--data cifar10 ", "--data parquet:cifar10 ")
    return re.sub(r"\bepochs=\d+", "epochs=1", text)


def check(words: list[str]) -> None:
    """Run one command of a page, or for make and torchrun see that what it names is there."""
    program, *arguments = words
    if program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(arguments) <= targets, f"no such target: {arguments}"
    elif program == "hexa":
        if arguments[0] == "pretrain" and "--help" not in arguments:
            arguments += ["--training.report=false", "--max_steps=2"]
        if (
            arguments[:2] == ["visualize", "imagenet-hexa-moco-200"]
            and "--views.size" not in arguments
        ):
            arguments.append("--views.size=32")
        assert cli.main(arguments) == 0, " ".join(words)
    else:
        pytest.fail(f"this test can't run {program}; mark the block <!-- skip: reason -->")


def make_photographs(folder: Path) -> None:
    """Make a reader's files: unsorted photographs, others sorted into classes, and weights of other
    software."""
    # fewer than 16 channels end the process in oneDNN 3.13: backward of a 1×1 convolution of stride 2 on two threads
    network = NetworkConfig(name="small-resnet", widths=(16, 32))
    save_backbone(random_backbone(network, 32), folder / "weights.safetensors")
    generator = torch.Generator().manual_seed(0)
    counts = {"photos/2024": 72, "others/cats": 8, "others/dogs": 8}
    counts |= {"labelled/cats": 8, "labelled/dogs": 8}
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = torch.randint(
                0, 256, (6, 8, 3), generator=generator, dtype=torch.uint8
            ).numpy()
            image = Image.fromarray(pixels).resize((80 + number, 72), Image.Resampling.BICUBIC)
            image.save(folder / name / f"{number}.jpg")
    image.save(folder / "my-photo.jpg")


def save_few_images(source: Path, target: Path) -> None:
    """Write the first rows of a Parquet file."""
    target.parent.mkdir(exist_ok=True)
    parquet.write_table(parquet.read_table(source).slice(0, FEW_IMAGES), target)


@pytest.mark.usefixtures("few_digits")
@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.name)
def test_page_blocks(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    real_data: Callable[[str], Path],
) -> None:
    make_photographs(tmp_path)
    if page.name == "moco-cifar10.md":
        for split in ("train", "test"):
            name = f"cifar10/{split}.parquet"
            save_few_images(real_data(name), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hexa_paper.benchmark.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("hexa.adaptation.robustness.STEPS", 3)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.reason is not None:
            continue
        where = f"{page.name}:{block.line}"
        file = re.match(r"# (\w+\.py)\n", block.text)
        if file:
            assert block.text.count("\n") < 120, f"{where}: a reader should see all of it at once"
            (tmp_path / file[1]).write_text(block.text)
        elif block.language == "python":
            exec(compile("\n" * block.line + quick(block.text), str(page), "exec"), names)
        elif block.language == "bash":
            for words in commands_of(replace(block, text=quick(block.text))):
                check(words)
        else:
            assert block.language in ("text", "yaml", "json", "toml"), (
                f"{where}: name the language of this block"
            )


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.name)
def test_notebook_outputs(page: Path) -> None:
    """A notebook was run from top to bottom, and its page shows every cell and what it printed."""
    notebook = json.loads(page.read_text())
    text = notebooks.markdown(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    printed = [line for cell in code for output in cell["outputs"] for line in output["text"]]
    assert len(printed) > 5
    for line in [*printed, *(line for cell in notebook["cells"] for line in cell["source"])]:
        assert line in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_skipped_block_commands(page: Path) -> None:
    """Options and recipes are looked up even where a command would take too long or too many processes."""
    _, parsers = cli.build_parser()
    for block in blocks_of(page):
        if block.reason is None or block.language != "bash":
            continue
        for words in commands_of(block):
            arguments = words[words.index("hexa") + 1 :] if "hexa" in words else []
            if arguments:
                assert arguments[0] in parsers, f"{page.name}:{block.line}: {arguments[0]}"
            if arguments[:1] == ["pretrain"] and ".py:" not in arguments[1]:
                recipes.get(arguments[1])


def test_skipped_call_signatures() -> None:
    """A call that is only shown has arguments that its function takes."""
    blocks = blocks_of(ROOT / "docs/python.md")
    trees = [ast.parse(one.text) for one in blocks if one.reason and one.language == "python"]
    named = set()
    for call in itertools.chain(*map(ast.walk, trees)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("hexa."):
            function = getattr(hexa, call.func.attr)
            keywords = {one.arg or "fields": one for one in call.keywords}
            inspect.signature(function).bind(*call.args, **keywords)
            named.add(function.__name__)
    assert named == {"compare", "adapt", "harden"}


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/decisions").glob("*.md"))],
    ids=lambda page: page.name,
)
def test_page_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_content(page: Path) -> None:
    """Generated parts are those of the code and of the results."""
    text = page.read_text(encoding="utf-8")
    assert generated.filled(text) == text, "run: python -m docs.generated"


def test_generated_parts_coverage() -> None:
    """Every generated part is on a page, and on one only."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    names = [found["name"] for found in generated.BLOCK.finditer(text)]
    assert sorted(names) == sorted(generated.GENERATED)
    assert text.count("<!-- generated:") == len(names)  # none is left open


def test_word_limit() -> None:
    """The pages have a limit, so that they stay readable; generated parts do not count."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in WRITTEN]
    assert sum(generated.countable(page.read_text(encoding="utf-8")) for page in pages) <= WORDS


def test_countable_words() -> None:
    text = "| a `b` | - |\n\n<!-- generated: moco -->\nten words\n<!-- end of moco -->\nc."
    assert generated.countable(text) == 3


def test_recipe_commands() -> None:
    """They are listed, not run: most would take days."""
    for one in recipes.describe():
        words = shlex.split(one["command"])
        assert words[words.index("pretrain") + 1] == one["name"]
        assert one["expected"]
        assert one["cost"]


def test_table_fields() -> None:
    """A field named in a table of the docs is one of some recipe."""
    known = {
        field.path for name in recipes.names() for field in fields.of_experiment(recipes.get(name))
    }
    for kind, config in choices(HardExample, "kind", "hexa.hard_examples").items():
        made = fields.of_experiment(config(kind=kind), f"hard_examples.{kind}.")
        known |= {field.path for field in made}
    row = re.compile(r"^\| `((?:hard_examples|method|training|objective)\.[\w.]+)`", re.MULTILINE)
    named = {name for page in PAGES for name in row.findall(page.read_text())}
    assert len(named) > 20
    assert named <= known


def test_architecture_files() -> None:
    pages = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")
    text = "".join(page.read_text() for page in pages)
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.\w+)?|\w+\.(?:py|yaml))`", text)
    assert len(named) > 30
    assert [
        name
        for name in named
        if not any((place / name).exists() for place in (ROOT / "src" / "hexa", ROOT))
    ] == []


def test_reader_file_trust() -> None:
    """Another test has imported the file already, which a reader's command has not."""
    for page in ("add-a-method", "add-a-hard-example"):
        shown = (ROOT / f"docs/{page}.md").read_text()
        lines = [line for line in shown.splitlines() if line.startswith("hexa visualize runs/")]
        assert lines
        assert all(line.endswith(" --trust") for line in lines), lines
