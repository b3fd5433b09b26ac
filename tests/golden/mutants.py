"""Number of faults that the laws find: each mutant is one fault in a copy of the sources.

    python -m tests.golden.mutants RESULT.json

Each mutant runs the tests of its module, those of its package and the laws. The result names the
first test that fails. A row is written as soon as it exists; existing rows are kept, so an
interrupted run can be resumed.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent

#: (file, what stands there, what the mutant has instead)
MUTANTS: list[tuple[str, str, str]] = [
    (file, *pair)
    for file, pairs in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
    for pair in pairs
]


class NearFirst:
    """Orders tests by how likely they find a fault of a module: its own; the laws of that method, or of those that
    strain every hard example; the others.
    """

    def __init__(self, name: str) -> None:
        folder, _, file = name.rpartition("/")
        self.folder = f"tests/{folder}"
        self.own = f"tests/{folder}/test_{file}"
        method = Path(file).stem.replace("deepcluster", "deepcluster-v2").replace("pcl", "pcl-v2")
        self.likely = (method,) if folder == "methods" else ("moco", "deepcluster-v2")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.rank(item.nodeid))

    def rank(self, test: str) -> int:
        if test.startswith(self.own):
            return 0
        if test.startswith("tests/laws/test_laws.py"):
            return 1 if any(f"-{one}(" in test for one in self.likely) else 3
        return 2


def first_failure(mutant: tuple[str, str, str]) -> str:
    """Return the test that fails first, "" if none does."""
    with tempfile.TemporaryDirectory() as place:
        for folder in ("src", "tests", "benchmarks"):  # some tests measure memory by benchmarks
            ignored = shutil.ignore_patterns("__pycache__", "*.json")
            shutil.copytree(ROOT / folder, Path(place) / folder, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", place)
        (Path(place) / "src" / "hexa" / mutant[0]).write_text(with_fault(mutant))
        order = NearFirst(mutant[0])
        for tests in [order.own], [order.folder, "tests/laws"]:
            if not all((ROOT / one).exists() for one in tests):
                continue
            status, said = in_a_fork(Path(place), tests, order)
            # a test; a file that cannot be imported finds nothing
            failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", said, re.MULTILINE)
            assert bool(failed) == (status != 0), said[-4000:]
            if failed:
                return failed[1]
    return ""


def with_fault(mutant: tuple[str, str, str]) -> str:
    """Return the source of the mutant's file with the fault in it."""
    name, there, instead = mutant
    text = (ROOT / "src" / "hexa" / name).read_text()
    assert text.count(there) == 1, (name, there)
    return text.replace(there, instead)


def in_a_fork(place: Path, tests: list[str], order: NearFirst) -> tuple[int, str]:
    """Return the status and the output of pytest in the folder. Forked, so that torch is imported
    once for all mutants."""
    said = place / "said.txt"
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.chdir(place)
            output = os.open(said, os.O_CREAT | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.path[:] = [
                str(place),
                f"{place}/src",
                *(path for path in sys.path if path not in ("", str(ROOT))),
            ]
            os.environ["PYTHONPATH"] = f"{place}/src"
            for own in [
                module for module in sys.modules if module.partition(".")[0] in ("tests", "hexa")
            ]:
                del sys.modules[own]
            status = int(
                pytest.main(["-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests], [order])
            )
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended), said.read_text()


def main() -> None:
    """Write a row for each mutant."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for heavy in ("torch.distributed", "torchvision", "timm", "sklearn.cluster"):
        importlib.import_module(heavy)  # once, for all forks
    path = Path(sys.argv[1])
    rows = json.loads(path.read_text()) if path.exists() else []
    known = {(row["file"], row["there"], row["instead"]) for row in rows}
    for mutant in [mutant for mutant in MUTANTS if mutant not in known]:
        now = first_failure(mutant)
        rows.append({"file": mutant[0], "there": mutant[1], "instead": mutant[2], "now": now})
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(mutant[0], "|", now or "passed", flush=True)


if __name__ == "__main__":
    main()
