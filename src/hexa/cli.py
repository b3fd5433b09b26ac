"""The command line. Nothing heavy is imported here: `hexa --help` answers before torch would have been loaded."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import hexa
from hexa.runtime.output import drained, one_line

SOURCES = "digits · folder:PATH · parquet:PATH · hf:NAME · webdataset:PATTERN · voc:PATH · cifar10 and others; #split"
BACKBONES = "a run folder · a .safetensors or checkpoint file · timm:NAME · python:MODULE:CALLABLE · random:NAME"
#: Typed here, since finding them takes seconds; a test compares.
PROTOCOLS = "detect, fine-tune, knn, linear, low-shot, probe, semi-supervised, svm"
ASPECT = "crop: the centre square, the default; keep: the whole image, batched by shape, where the network allows it"
DOMAINS = "fit the views to photos, aerial, microscopy, documents, medical-grey or histology; fields given win"
TRUST = "import the Python file that the run names as its method's, whatever it is"


def whole(least: int, most: int) -> Callable[[str], int]:
    """An option's type: an integer within bounds."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, got {value}")
        return value

    return number


SEED = whole(0, 2**32 - 1)  # what scikit-learn takes, too


def positive(text: str) -> float:
    """An option's type: a finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


class Parser(argparse.ArgumentParser):
    """argparse that reports an error as ours: one line."""

    def error(self, message: str) -> NoReturn:
        from hexa.config import UserError  # pydantic comes with it, which help can do without

        raise UserError(f"{message}; see `{self.prog} --help`")


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and the parser of each command by name."""
    parser = Parser(
        prog="hexa",
        description="Self-supervised visual pre-training with hard examples.",
        epilog="Several processes: torchrun --nproc-per-node 8 -m hexa pretrain …",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hexa {hexa.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    parsers: dict[str, Parser] = {}

    def command(name: str, summary: str, description: str = "") -> Parser:
        added: Parser = commands.add_parser(name, help=summary, description=description or summary, allow_abbrev=False)
        parsers[name] = added
        return added

    sub = command("recipes", "what can be run: name, method, hard examples, expected result and cost")
    sub.add_argument("words", metavar="WORD", nargs="?", default="", help="only recipes with this in their name")
    sub.add_argument("--json", action="store_true", help="as JSON")

    sub = command(
        "pretrain",
        "pre-train a backbone without labels",
        "Pre-train a backbone without labels. Any field of the experiment is an option: --batch-size 256, "
        "--method.temperature=0.1. `hexa pretrain RECIPE --help` lists them with their values in that recipe.",
    )
    sub.add_argument(
        "recipe", metavar="RECIPE", nargs="?", help="a name from `hexa recipes`, or ./my_method.py:function"
    )
    sub.add_argument(
        "--config", metavar="FILE.yaml", help="instead of a recipe: the config.yaml of a run, or one like it"
    )
    sub.add_argument("--data", metavar="SOURCE", help=SOURCES)
    sub.add_argument("--out", metavar="RUN", help="the run folder; runs/RECIPE if not given")
    sub.add_argument(
        "--start",
        metavar="BACKBONE",
        help="weights to begin from: a run · a file of weights · timm:NAME · python:MODULE:CALLABLE",
    )
    sub.add_argument(
        "--pairs", metavar="FILE.csv", help="images that belong together: path,group · column:NAME · key:NAME"
    )
    sub.add_argument("--epochs", metavar="N", help="passes over the data")
    sub.add_argument("--domain", metavar="NAME", help=DOMAINS)
    sub.add_argument("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N; short for --training.device")
    sub.add_argument("--precision", metavar="NAME", help="auto, fp32 or bf16; short for --training.precision")
    sub.add_argument("--compile", action="store_const", const="true", help="short for --training.compile true")
    sub.add_argument("--trust", action="store_true", help="with --config: " + TRUST)

    sub = command("resume", "go on with a run exactly where it stopped")
    sub.add_argument("run", metavar="RUN", help="a run folder")
    sub.add_argument("--trust", action="store_true", help=TRUST)

    sub = command(
        "adapt",
        "train given weights further on your own images within a time, and say whether it helped",
        "Look at the images, plan what fits the time, train, and compare start and result. Any field of the experiment "
        "is an option, as of `hexa pretrain adapt --help`. The same command goes on where it was interrupted.",
    )
    sub.add_argument(
        "backbone", metavar="BACKBONE", help="weights to begin from: a run · a file of weights · timm:NAME"
    )
    sub.add_argument("--data", metavar="SOURCE", required=True, help="images to learn from: " + SOURCES)
    sub.add_argument("--labelled", metavar="SOURCE", help="labelled images to judge by; labels are never trained on")
    sub.add_argument(
        "--time", metavar="TIME", default="30m", help="of everything, such as 90s, 30m or 2h; 30m if not given"
    )
    sub.add_argument("--out", metavar="RUN", default="runs/adapt", help="the run folder; runs/adapt if not given")
    sub.add_argument("--domain", metavar="NAME", help="preset of the views; by the look of the images if not given")
    sub.add_argument("--plan", action="store_true", help="print the plan, train nothing")
    sub.add_argument("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N; short for --training.device")
    sub.add_argument("--precision", metavar="NAME", help="auto, fp32 or bf16; short for --training.precision")

    sub = command(
        "evaluate",
        f"measure a backbone on labelled images: {PROTOCOLS}",
        "Measure a backbone on labelled images by a published protocol. Options of the protocol are given as they are "
        "named there, such as --k 20 for knn; a mistyped one is answered with the nearest. "
        "`hexa evaluate PROTOCOL --help` lists them. All take --precision auto|fp32|bf16, --cached false, "
        "--num_workers N, --extraction_batch N and --max_image_pixels N, too.",
    )
    sub.add_argument("protocol", metavar="PROTOCOL", help=PROTOCOLS)
    sub.add_argument("backbone", metavar="BACKBONE", help=BACKBONES)
    sub.add_argument("--data", metavar="SOURCE", required=True, help=SOURCES)
    sub.add_argument("--out", metavar="FILE.json", help="write the result there too (a run keeps it in results.json)")
    sub.add_argument("--test-data", metavar="SOURCE", help="images to score, where --data has no split test")
    sub.add_argument(
        "--holdout", metavar="SHARE", type=positive, help="score this share of the training images instead"
    )
    sub.add_argument("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N")
    sub.add_argument(
        "--preset",
        metavar="NAME",
        help="published settings; the first that `hexa evaluate PROTOCOL --help` lists if not given",
    )
    sub.add_argument("--seed", metavar="N", type=SEED, default=0, help="of what the protocol draws; 0 if not given")

    sub.add_argument("--aspect", metavar="NAME", default="crop", help=ASPECT)
    _preparation(sub)

    sub = command("embed", "write the features of every image, for search, clustering, plots")
    sub.add_argument("backbone", metavar="BACKBONE", help=BACKBONES)
    sub.add_argument("--data", metavar="SOURCE", required=True, help=SOURCES)
    sub.add_argument("--out", metavar="FILE", required=True, help=".npz or .parquet with features, labels, paths")
    sub.add_argument("--maps", action="store_true", help="feature maps [N, C, h, w] instead, to .npy or .parquet")
    sub.add_argument("--maps-precision", metavar="NAME", default="float32", help="float32 (the default) or float16")
    sub.add_argument("--aspect", metavar="NAME", default="crop", help=ASPECT)
    sub.add_argument("--max-image-pixels", metavar="N", type=int, help="images of more count as unreadable; 89,478,485")
    _preparation(sub)

    sub = command("visualize", "a picture: clean | perturbation | adversarial | cut-mixed, side by side")
    sub.add_argument("target", metavar="RUN|RECIPE", help="a run folder, or a recipe with fresh weights")
    sub.add_argument("--data", metavar="SOURCE", help=SOURCES + "; the recipe's or run's own if not given")
    sub.add_argument("--domain", metavar="NAME", help="of a recipe: " + DOMAINS)
    sub.add_argument("--out", metavar="FILE.png", required=True)
    sub.add_argument(
        "--num-images", metavar="N", type=whole(1, 256), default=8, help="rows of the picture; 8 if not given"
    )
    sub.add_argument("--trust", action="store_true", help=TRUST)
    sub.add_argument("--gain", metavar="X", type=positive, help="how many times the perturbation is magnified")
    sub.add_argument("--seed", metavar="N", type=SEED, default=0, help="of the images and views; 0 if not given")

    sub = command(
        "figure",
        "a figure of a run or backbone as PNG or SVG: hard-examples, view-space, confusion, neighbours, clusters",
        "hard-examples: views beside the hard examples made of them. view-space: clean, adversarial and mixed views in "
        "two dimensions. confusion: how many pseudo-labels an attack moves views away from. neighbours, clusters: "
        "what a backbone holds alike.",
    )
    sub.add_argument("kind", metavar="KIND", help="hard-examples, view-space, confusion, neighbours or clusters")
    sub.add_argument(
        "target", metavar="RUN", help="a run folder or a recipe; for neighbours and clusters a run or any backbone"
    )
    sub.add_argument("--data", metavar="SOURCE", help=SOURCES + "; the run's own if not given")
    sub.add_argument("--out", metavar="FILE", required=True, help=".png or .svg")
    sub.add_argument("--trust", action="store_true", help=TRUST)
    sub.add_argument("--seed", metavar="N", type=SEED, default=0, help="of the images and views; 0 if not given")

    sub = command("export", "hand the backbone over to another library; checked before success is reported")
    sub.add_argument("run", metavar="RUN", help="a run folder, or any other backbone: " + BACKBONES)
    sub.add_argument("--to", metavar="FORMAT", required=True, help="torchvision, timm, safetensors, onnx or detectron2")
    sub.add_argument("--out", metavar="PATH", required=True)
    _preparation(sub)

    sub = command(
        "reproduce",
        "the paper's experiments as one command: plan, runs, tables, figures; stopped anywhere it goes on",
        "Plan an experiment of the paper, carry it out or go on with it, and write tables and figures into one folder. "
        "Any field of an experiment is an option here too and holds for every arm.",
    )
    sub.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="ablation, attack-grid, beta-study, learning-curves, low-shot-curve, table1, table2, table3, table4 or "
        "table5",
    )
    sub.add_argument("--data", metavar="SOURCE", required=True, help=SOURCES)
    sub.add_argument("--scale", metavar="NAME", default="small", help="small (the default), or full: as published")
    sub.add_argument("--method", metavar="NAME", help="moco or dcluster; the published one if not given")
    sub.add_argument("--out", metavar="FOLDER", help="runs/EXPERIMENT-METHOD-SCALE if not given")
    sub.add_argument("--seeds", metavar="N", type=SEED, nargs="+", default=[0, 1, 2], help="0 1 2 if not given")
    sub.add_argument(
        "--epochs", metavar="N", type=whole(1, 10**6), help="of every arm; those of the recipes if not given"
    )
    sub.add_argument(
        "--rates",
        metavar="X",
        type=positive,
        nargs="+",
        help="learning rates each arm chooses from on held-out training images; half to four times the recipe's if "
        "not given, a single one is taken as it is",
    )
    sub.add_argument("--evaluate-on", metavar="SOURCE", nargs="+", help="labelled images to measure on; --data's own")
    sub.add_argument(
        "--workers", metavar="N", type=whole(1, 256), default=1, help="runs at once, a process each; 1 if not given"
    )
    sub.add_argument("--plan", action="store_true", help="print the plan with its cost, run nothing")

    sub = command("report", "one self-contained HTML file on one or several runs: curves, tables, hard examples")
    sub.add_argument("runs", metavar="RUN", nargs="+", help="run folders, or JSON files of hexa evaluate --out")
    sub.add_argument("--out", metavar="FILE.html", required=True)
    sub.add_argument("--data", metavar="SOURCE", help="images for pictures that a run lacks; without, none are made")

    sub = command(
        "benchmark",
        "images per second of this machine for each scheme, the data path and the step apart",
        "Measure this machine: each scheme of hard examples relative to the plain step, the naive adversarial step "
        "beside the shared-gradient one, the data path alone, the whole. Fields of the recipe are options here too; "
        "without --batch-size a smaller batch is taken where that is needed to end in two minutes.",
    )
    sub.add_argument(
        "recipe", metavar="RECIPE", nargs="?", default="cifar10-hexa-moco", help="cifar10-hexa-moco if not given"
    )
    sub.add_argument("--json", action="store_true", help="as JSON")
    sub.add_argument(
        "--repeats", metavar="N", type=whole(1, 1000), help="rounds over all schemes; at most 5 that end in two minutes"
    )

    sub = command("doctor", "versions, devices, precision, decoders; what is wrong and how to mend it")
    sub.add_argument("--json", action="store_true", help="as JSON")

    sub = command("demo", "MoCo-v2 against HEXA-MoCo on embedded images, in a few minutes on two cores")
    sub.add_argument("--out", metavar="FOLDER", default="runs/demo", help="runs/demo if not given")
    sub.add_argument("--epochs", metavar="N", type=whole(1, 10**6), help="of the recipes if not given")
    return parser, parsers


def _preparation(sub: Parser) -> None:
    """Options of commands that feed images to a backbone."""
    own = "; what the backbone comes with if not given"
    sub.add_argument("--mean", metavar="R,G,B", help="of each channel, pixels in [0, 1]" + own)
    sub.add_argument("--std", metavar="R,G,B", help="of each channel" + own)
    sub.add_argument("--size", metavar="N", help="side of the images in pixels" + own)
    sub.add_argument("--crop", metavar="SHARE", help="of the shorter side, what the centre crop takes" + own)
    sub.add_argument("--interpolation", metavar="NAME", help="bilinear or bicubic" + own)


#: Commands that take fields or options of their own beyond those declared above.
OPEN = ("pretrain", "adapt", "evaluate", "visualize", "benchmark", "reproduce")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 after a mistake of the user's, 1 after one of ours.

    An interrupted run that saved gives 128 + signal number, one stopped by a non-finite loss or by the end of another
    of its processes 1. Output that can't be written (a reader that has gone, a full disk) is dropped and changes none.
    """
    with drained():
        return _guarded(list(sys.argv[1:] if arguments is None else arguments))


def _guarded(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except Exception as error:
        if os.environ.get("HEXA_TRACEBACK"):
            raise
        from hexa.complaints import complaint, own_file

        status, line = complaint(error)
        if status:
            return _say(line, status) if line else status
        traceback.print_exc()
        if own := own_file(error):
            return _say(own, 2)
        return _say("this is a bug of hexa's: please report it with the lines above and the output of `hexa doctor`", 1)


def _run(arguments: list[str]) -> int:
    parser, parsers = build_parser()
    if not arguments:
        parser.print_help()
        return 2
    name = arguments[0]
    if name in ("-h", "--help", "--version"):
        parser.parse_args(arguments)

    from hexa import fields
    from hexa.config import UserError, nearest
    from hexa.runtime.cores import limit_threads

    limit_threads()  # before torch is imported
    if not name.startswith("-") and name not in parsers:
        raise UserError(f"unknown command '{name}'; {nearest(name, parsers)}")

    options = sorted(parsers[name]._option_string_actions) if name in parsers else ["--version", "--help"]
    ours, extra = fields.split(arguments, options)
    if name == "pretrain" and {"-h", "--help"} & set(ours):
        ours = [argument for argument in ours if argument not in ("-h", "--help")]
        given = parser.parse_args(ours)
        if given.recipe is None:
            parsers[name].print_help()
            return 0
        return _handler("describe_fields")(given, extra)
    if name == "evaluate" and {"-h", "--help"} & set(ours) and not ours[1].startswith("-"):
        parsers[name].print_help()
        return _handler("describe_protocol")(argparse.Namespace(protocol=ours[1]), extra)
    if extra and name not in OPEN:
        option = next(iter(extra)).replace("_", "-")
        raise UserError(f"--{option}: no such option of `hexa {name}`; {nearest(f'--{option}', options)}")
    given = parser.parse_args(ours)
    given.options = options
    return _handler(name)(given, extra)


def _handler(name: str) -> Callable[[argparse.Namespace, dict[str, str]], int]:
    from hexa import commands

    handler: Callable[[argparse.Namespace, dict[str, str]], int] = getattr(commands, name)
    return handler


def _say(line: str, status: int) -> int:
    print(f"hexa: {one_line(line)}", file=sys.stderr)
    return status
