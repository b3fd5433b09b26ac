"""Damaged files drawn by the thousand, every option with every value, every command with every hostile run folder, and
commands that are stopped at random moments.

    python benchmarks/fuzz.py [--group NAME …] [--count N] [--seed S] --result FILE.json

tests/torture has the files and what survival means; it keeps one of each kind of damage. This draws many, and adds what
it counted to FILE.json, which has what the tests counted if they were run on the same commit (`make torture`). What did
not survive is printed with what it was, and the exit status is 1. --count: of inputs in each group that is drawn (the
groups `options`, `builds` and `commands` are products of lists; of these a sample of N).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import resource
import shutil
import struct
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for tests/


from benchmarks.stops import stops
from hexa import recipes
from hexa.cli import fields
from hexa.cli.complaints import complaint
from hexa.config import UserError, choices
from hexa.core import HardExample, MethodConfig
from hexa.data.sources import bands
from hexa.evaluation import protocols
from hexa.evaluation.request import EvaluationRequest
from hexa.nn.backbones import NetworkConfig
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.report import render
from hexa.reporting.runs import read_run
from hexa.run.build import Machine, build_method, build_objective, setting_of
from hexa.runtime.packages import commit
from hexa.runtime.parsing import from_option
from hexa.weights import preparation
from hexa.weights.pretrained import random_backbone
from hexa_paper.detection.boxes import read as read_boxes
from tests.data.image_files import PNG_KINDS, png, png_values
from tests.data.sources.test_webdataset import pack
from tests.paper.detection.test_boxes import ANNOTATION
from tests.torture import test_command_line, test_run_folders
from tests.torture.harness import Tally, forked, outcome
from tests.torture.test_images import FILES, complaints
from tests.torture.test_packed import MEMBERS, ROWS, headers_of, mend
from tests.torture.test_weights import damaged_weights

#: (a group of the table, what is wrong with an input of it if anything is)
Tried = Iterator[tuple[str, object]]
TOGETHER = 50


# -- damaged files ----------------------------------------------------------------------------------------------------


def damaged(content: bytes, generator: Random, others: Iterable[bytes] = ()) -> bytes:
    """A truncated, flipped or spliced copy."""
    others = list(others)
    kind = generator.choice(("cut", "flip", "flip", "splice", "zero", "grow"))
    data = bytearray(content)
    at = generator.randrange(len(data))
    if kind == "cut":
        return bytes(data[:at])
    if kind == "splice" and others:
        other = generator.choice(others)
        return bytes(data[:at]) + other[generator.randrange(len(other)) :]
    if kind == "zero":
        data[at : at + generator.randrange(1, 64)] = bytes(generator.randrange(1, 64))
        return bytes(data)
    if kind == "grow":
        return (
            bytes(data[:at]) + generator.randbytes(generator.randrange(1, 256)) + bytes(data[at:])
        )
    for _ in range(generator.choice((1, 1, 4, 32))):
        data[generator.randrange(len(data))] = generator.randrange(256)
    return bytes(data)


def spoilt(seed: int, files: dict[str, bytes]) -> tuple[str, bytes]:
    """A file of `files`, damaged one to three times: its name and what is left of it."""
    generator = Random(seed)
    kind = generator.choice(sorted({name.split()[0] for name in files}))
    names = sorted(name for name in files if name.split()[0] == kind)
    name = generator.choice(names)
    data, others = files[name], [files[other] for other in names]
    for _ in range(generator.choice((1, 1, 2, 3))):
        if generator.random() < 0.4:  # where headers are, and by numbers that hurt
            flipped = bytearray(data)
            for _ in range(generator.choice((1, 2, 4))):
                at = generator.randrange(min(len(data), generator.choice((64, 200, 600))))
                flipped[at] = generator.choice((0, 1, 127, 128, 255, generator.randrange(256)))
            data = bytes(flipped)
        else:
            data = damaged(data, generator, others) or b"\0"
    return name, data


def drawn(count: int, random: Random, files: dict[str, bytes], **reader: Any) -> Tried:
    """Damaged images, some to a child; each by itself where something is wrong with a child."""
    for size in [TOGETHER] * (count // TOGETHER) + [count % TOGETHER]:
        batch = [spoilt(random.getrandbits(60), files) for _ in range(size)]
        fine = not batch or not complaints([data for _, data in batch], **reader)
        for name, data in batch:
            wrong = [] if fine else complaints([data], **reader)
            yield f"damaged {name.split()[0]} files", wrong and (name, wrong, data.hex())


def images(count: int, random: Random, home: Path) -> Tried:
    interlaced = {
        f"PNG of {kind}, interlaced": png(png_values(*kind), *kind, interlaced=True)
        for kind in PNG_KINDS
    }
    return drawn(count, random, FILES | interlaced)


def arrays(count: int, random: Random, home: Path) -> Tried:
    """Arrays of every type, and TIFF of every layout where tifffile is installed."""
    for channels in (1, 3, 4):
        found = {}
        for dtype in ("u1", "<u2", ">u2", "<f4", "<f8"):
            values = (
                np.arange(23 * 31 * channels).reshape(23, 31, channels)
                % 200
                / (200 if "f" in dtype else 1)
            )
            file = io.BytesIO()
            np.save(file, values.astype(dtype))
            found[f"NPY {dtype}"] = file.getvalue()
            if channels == 4 and importlib.util.find_spec("tifffile"):  # others are PIL's
                import tifffile

                for options in (
                    {},
                    {"tile": (16, 16)},
                    {"compression": "zlib"},
                    {"bigtiff": True, "rowsperstrip": 4},
                ):
                    file = io.BytesIO()
                    tifffile.imwrite(
                        file,
                        values.astype(dtype),
                        photometric="minisblack",
                        planarconfig="contig",
                        **options,
                    )
                    found[f"TIFF {dtype} {options}"] = file.getvalue()
        yield from drawn(count // 3, random, found, reader=partial(bands.decode, channels=channels))


def tables(count: int, random: Random, home: Path) -> Tried:
    """Parquet files, damaged anywhere or in the footer, which says where everything is."""
    features = json.dumps({"info": {"features": {"label": {"names": ["a", "b"]}}}})
    table = pa.table({"image": ROWS * 20, "label": [0, 1] * 20}).replace_schema_metadata(
        {"huggingface": features}
    )
    whole, path = list[bytes](), home / "train.parquet"
    for compression, dictionary in itertools.product(
        ("none", "snappy", "zstd", "gzip"), (False, True)
    ):
        pq.write_table(
            table, path, compression=compression, use_dictionary=dictionary, row_group_size=17
        )
        whole.append(path.read_bytes())
    for _ in range(count):
        content = random.choice(whole)
        if random.random() < 0.5:
            content = damaged(content, random, whole)
        else:
            data, length = bytearray(content), struct.unpack("<I", content[-8:-4])[0]
            for _ in range(random.choice((1, 2, 4))):
                data[len(data) - 8 - random.randrange(length)] = random.randrange(256)
            content = bytes(data)
        path.write_bytes(content)
        yield "damaged Parquet files", outcome(f"parquet:{path}")[1]


def datasets(count: int, random: Random, home: Path) -> Tried:
    import datasets as library

    kinds = library.Features({"image": library.Image(), "label": library.Value("int64")})
    place = home / "set"
    library.Dataset.from_dict(
        {"image": ROWS * 20, "label": [0, 1] * 20}, features=kinds
    ).save_to_disk(place)
    whole = {file: file.read_bytes() for file in place.iterdir()}
    arrow = [file for file in whole if file.suffix == ".arrow"]
    for _ in range(count):
        file = random.choice([*whole, *arrow * 5])
        file.write_bytes(damaged(whole[file], random, [whole[file]]))
        yield "damaged folders of datasets", outcome(f"hf:{place}")[1]
        file.write_bytes(whole[file])


def shards(count: int, random: Random, home: Path) -> Tried:
    """Tar files, damaged anywhere, or in headers whose sums were made right again."""
    long = {f"{'x' * 120}/{name}": content for name, content in MEMBERS.items()}
    path, layouts = home / "a.tar", (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
    whole = [pack(path, MEMBERS | long, layout).read_bytes() for layout in layouts]
    for _ in range(count):
        content = random.choice(whole)
        path.write_bytes(
            damaged(content, random, whole) if random.random() < 0.3 else _headers(content, random)
        )
        yield "damaged tar shards", outcome(f"webdataset:{path}")[1]


def _headers(content: bytes, random: Random) -> bytes:
    data, headers = bytearray(content), headers_of(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.choice(headers)
        kind = random.choice(("size", "type", "pax", "holes", "any"))
        if kind == "size":
            sizes = (
                b"%011o\0" % random.randrange(8**9),
                b"\x80" + random.randbytes(11),
                b"\xff" * 11 + b"\0",
            )
            data[at + 124 : at + 136] = random.choice(sizes)
        elif kind == "type":
            data[at + 156] = random.choice(b"012345679xgXLKSVMDAN\0")
        elif kind == "pax":
            texts = (
                b"16 size=-100000\n",
                b"22 GNU.sparse.map=1,2,3\n",
                b"9" * 30 + b" a=b\n",
                b"0 a=b\n",
            )
            text = random.choice(texts)
            data[at + 156] = random.choice(b"xg")
            data[at + 512 : at + 512 + len(text)] = text
        elif kind == "holes":
            data[at + 156] = ord("S")
            data[at + 386 : at + 482] = b"%011o\0" % random.randrange(8**8) * 8
            data[at + 482] = random.randrange(2)
        else:
            data[at + random.randrange(512)] = random.randrange(256)
    mend(data, headers)
    return bytes(data)


def annotations(count: int, random: Random, home: Path) -> Tried:
    file = home / "a.xml"
    for _ in range(count):
        content = damaged(ANNOTATION.encode(), random)
        file.write_bytes(content)
        yield "PASCAL VOC folders", _wrong(lambda: read_boxes(file, ["cat", "dog"]), content)


def weights(count: int, random: Random, home: Path) -> Tried:
    def damages(good: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
        for _ in range(count):
            name, edge = random.choice(list(good)), random.choice((10**9, 300, 2000))
            yield name, damaged(good[name][:edge], random, good.values()) + good[name][edge:]

    return (
        ("damaged weight files", wrong and (name, wrong))
        for name, wrong in damaged_weights(home, damages)
    )


def reports(count: int, random: Random, home: Path) -> Tried:
    """A report of a run one of whose files is damaged is a page without scripts."""
    run = test_run_folders.trained_in(home)
    whole = {name: (run / name).read_bytes() for name in test_run_folders.FILES}

    def page() -> None:
        if "<script" in render([read_run(run)]):
            raise RuntimeError("markup")

    for _ in range(count):
        name = random.choice(list(whole))
        content = damaged(whole[name], random, whole.values())
        (run / name).write_bytes(content)
        yield "run folders", _wrong(page, name, content)
        (run / name).write_bytes(whole[name])


def _wrong(work: Callable[[], object], *what: object) -> object:
    """Why this is neither right nor a mistake told in one line."""
    try:
        work()
    except Exception as error:
        return None if test_command_line.told_in_a_line(error) else (repr(error)[:1000], *what)
    return None


# -- products ---------------------------------------------------------------------------------------------------------


def some(every: list[Any], count: int, random: Random) -> list[Any]:
    return every if count >= len(every) else random.sample(every, count)


def commands(count: int, random: Random, home: Path) -> Tried:
    """Every command that looks at a run, with every spoiled run folder of the tests."""
    trained = test_run_folders.trained_in(home)
    for name, what in some(
        list(itertools.product(test_run_folders.ZOO, test_run_folders.LOOK)), count, random
    ):
        with tempfile.TemporaryDirectory(dir=home) as place:
            wrong = test_run_folders.complaint(
                test_run_folders.spoilt(name, trained, Path(place)), what
            )
        yield "run folders", wrong and (name, what, wrong)


_TEXTS = """null true no ] { {} [] [[]] [none] [1,2 ' &a 0 -0 1 2 3 -1e999 .inf -.inf nan inf 1e-400 1.0e+308 -1.0e+308
5.0e-324 2024-01-01 12:30:45 [0] [-1] [1] [1,1] [.nan,1] [1,.inf] [x] << = ~ [/b] ../../etc/passwd {name:moco}"""
_NUMBERS = (2**31, 2**63 - 1, 2**63, -(2**63), 2**70)
NASTY = [
    *test_command_line.NASTY,
    *_TEXTS.split(),
    "{name: moco}",
    "\udcff",
    "0x" + "f" * 5000,
    "[" + "1, " * 3000 + "1]",
]
NASTY += map(str, _NUMBERS)
EXTREME = (
    "0",
    "1",
    "2",
    "7",
    "1000000",
    str(2**31),
    str(2**62),
    "1.0e-300",
    "1.0e+300",
    "[1]",
    "[7, 1000000]",
)


def experiments() -> dict[str, Experiment]:
    """One for every method, and one with all kinds of hard examples."""
    kinds = sorted(choices(HardExample, "kind", "hexa.hard_examples"))
    found = {
        "all": override(
            recipes.get("digits-hexa-moco"), {f"hard_examples.{kind}.kind": kind for kind in kinds}
        )
    }
    for name in choices(MethodConfig, "name", "hexa.methods"):
        found[name] = override(recipes.get("digits-moco-v2"), {"method.name": name})
    return found


def paths() -> list[tuple[str, str]]:
    """Fields that all experiments have once, those of methods for each."""
    every = [
        (name, field.path)
        for name, one in experiments().items()
        for field in fields.of_experiment(one)
    ]
    return [(name, path) for name, path in every if name == "all" or path.startswith("method.")]


def takers() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Every field of an experiment and every option of a protocol, with what takes its value."""
    given, common = experiments(), tuple(EvaluationRequest.model_fields)
    for name, path in [*paths(), *(("all", path) for path in test_command_line.PATHS)]:
        yield (
            f"{name} --{path}",
            lambda value, name=name, path=path: override(given[name], {path: value}),
        )
    for option in common:
        yield (
            option,
            lambda value, option=option: EvaluationRequest.from_fields(
                {option: from_option(value)}
            ),
        )
    backbone = random_backbone(NetworkConfig(name="small-resnet", widths=(4, 8)), 8)
    for option in preparation.NAMES:
        yield option, lambda value, option=option: backbone.prepared(**{option: value})
    for name, known in protocols.every().items():
        for option in sorted(
            {one for preset in known.presets.values() for one in type(preset).model_fields} | {"k "}
        ):
            yield f"{name} --{option}", partial(_given, known, option, common)


def _given(known: Any, option: str, common: tuple[str, ...], value: str) -> object:
    return known.options(None, {option: from_option(value)}, common)


def options(count: int, random: Random, home: Path) -> Tried:
    """… with values that make no sense."""
    for (name, take), value in some(list(itertools.product(takers(), NASTY)), count, random):
        yield "options of the command line", _wrong(partial(take, value), name, value[:100])


def builds(count: int, random: Random, home: Path) -> Tried:
    """What is taken is built, or refused in one line."""
    small = {
        "network.widths": "[4, 8]",
        "batch_size": "32",
        "training.device": "cpu",
        "training.precision": "fp32",
    }
    given = {name: override(experiment, small) for name, experiment in experiments().items()}
    for (name, path), value in some(list(itertools.product(paths(), EXTREME)), count, random):
        with contextlib.suppress(UserError):
            done = forked(partial(_build, override(given[name], {path: value})), seconds=60)
            wrong = done.value or done.signal or done.raised
            yield "options of the command line", wrong and (name, path, value, wrong)


def _build(experiment: Experiment) -> str | None:
    resource.setrlimit(resource.RLIMIT_AS, (6 * 1024**3, 6 * 1024**3))
    try:
        setting = setting_of(experiment, 1347)
        machine = Machine.of(experiment)
        build_objective(experiment, build_method(experiment, setting, machine), machine)
    except Exception as error:
        status, line = complaint(error)
        return None if status == 2 and "\n" not in line else f"{type(error).__name__}: {error}"
    return None


WORK = (
    images,
    arrays,
    tables,
    datasets,
    shards,
    annotations,
    weights,
    reports,
    commands,
    options,
    builds,
    stops,
)
GROUPS: dict[str, Callable[[int, Random, Path], Tried]] = {work.__name__: work for work in WORK}
#: How many inputs of a group are tried, if not 3000; the whole of a product; sequences of stops, which take minutes.
USUAL = {
    "images": 10_000,
    "arrays": 10_000,
    "commands": 10**9,
    "options": 10**9,
    "builds": 10**9,
    "stops": 13,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--group", action="append", choices=GROUPS, help="one alone; can be repeated"
    )
    parser.add_argument(
        "--count", type=int, help="how many inputs of each group (default: thousands)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, required=True, metavar="FILE.json")
    given = parser.parse_args()
    commit()  # now: what is committed meanwhile is not what is run
    tally, status = Tally(), 0
    if (
        given.result.exists()
        and (before := json.loads(given.result.read_text()))["commit"] == commit()
    ):
        tally.add(before["groups"])
        status = before["status"]
    for name in given.group or GROUPS:
        home, count = Path(tempfile.mkdtemp()), given.count or USUAL.get(name, 3000)
        tried = survived = 0
        for group, wrong in GROUPS[name](count, Random(f"{name} {given.seed}"), home):
            tally.count("fault" if name == "stops" else "input", group, not wrong)
            tried, survived = tried + 1, survived + (not wrong)
            if wrong:
                status = 1
                print(f"{name}, {group}: {wrong!r}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        tally.write(given.result, status)
        print(f"{name}: {tried:,} tried, {survived:,} survived", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
