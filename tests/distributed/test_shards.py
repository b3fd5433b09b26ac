"""Runs whose processes write a checkpoint together, resumed by any number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hexa.run.run import pretrain, resume
from hexa.runtime import checkpoints, processes
from tests.distributed.together import run_together
from tests.end_to_end.endings import assert_same_end, metric_lines
from tests.run.test_every_method import QUIET, experiment, stopped

#: Ten steps in two epochs, all checkpoints kept; the bank has an odd number of rows.
CHANGES = {"images": None, "batch_size": 256}


def begin(folder: Path) -> None:
    pretrain(experiment("deepcluster-v2", **CHANGES), folder, console=QUIET)


def work(home: str, names: list[str]) -> None:
    """Resume these runs one after the other, or begin the first."""
    shutdown = processes.shutdown
    processes.shutdown = lambda failed=False: None  # the next run needs the group too
    try:
        for name in names:
            resume(Path(home) / name, console=QUIET)
        if not names:
            begin(Path(home) / "whole")
    finally:
        processes.shutdown = shutdown


def joined(folder: Path, step: int) -> checkpoints.State:
    """A checkpoint of two processes as one file held it, with all rows of the bank."""
    state = checkpoints.load(checkpoints.path_of(folder, step))
    rows = state["method"]["clusters"].shape[1]
    method = state["method"]
    for name, dim in (("bank.embeddings", 1), ("bank.seen", 0)):
        assert len(method[name]) == 2
        method[name] = torch.cat(method[name], dim).narrow(dim, 0, rows).clone()
    del state["parts"]
    return state


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes, and of one, some of which another number resumed."""
    home = tmp_path_factory.mktemp("shards")
    run_together(2, work, str(home), [])
    whole = home / "whole"
    # killed while it wrote step 9: one process was done
    folder = stopped(whole, home / "first saved", 9) / "checkpoints"
    checkpoints.path_of(folder, 9, 1).unlink()
    (folder / "step-00000009.unfinished1").touch()
    folder = stopped(whole, home / "second saved", 9) / "checkpoints"
    checkpoints.path_of(folder, 9).unlink()
    # a file of an earlier version
    folder = stopped(whole, home / "old", 6) / "checkpoints"
    state = joined(folder, 6)
    checkpoints.path_of(folder, 6, 1).unlink()
    checkpoints.save(folder, 6, state, keep=9)
    begin(home / "alone")
    stopped(home / "alone", home / "one to two", 6)
    run_together(2, work, str(home), ["first saved", "second saved", "old", "one to two"])
    stopped(whole, home / "two to one", 6)
    resume(home / "two to one", console=QUIET)
    return home


def test_files_of_processes(home: Path) -> None:
    """Every process writes its rows, the first one everything else. Several processes save before clusters, at step 5."""
    folder = home / "whole" / "checkpoints"
    steps = (3, 6, 9, 10)
    ends = ("part1", "pt")
    assert sorted(p.name for p in folder.iterdir()) == [
        f"step-{step:08d}.{end}" for step in sorted((5, *steps)) for end in ends
    ]
    part = torch.load(folder / "step-00000010.part1", weights_only=True)
    assert part["method"].keys() == {"bank.embeddings", "bank.seen"}
    assert part["method"]["bank.embeddings"].abs().sum() > 0
    alone = home / "alone" / "checkpoints"
    assert sorted(p.name for p in alone.iterdir()) == [f"step-{step:08d}.pt" for step in steps]


@pytest.mark.parametrize("name", ["first saved", "second saved", "old"])
def test_resume_bits_of_shards(home: Path, name: str) -> None:
    """A run killed while it wrote goes on from the checkpoint before, one of an earlier version
    from its file; all end bit for bit like a run without a stop."""
    assert checkpoints.path_of(home / name / "checkpoints", 10, 1).is_file()
    assert_same_end(home / name, home / "whole")
    assert [line["step"] for line in metric_lines(home / name, "resume")] == [6]


def assert_close(
    found: checkpoints.State, expected: checkpoints.State, before: checkpoints.State
) -> None:
    """Rows of the bank that the resumed run did not write are those of the checkpoint `before`, and
    the others as good as those of a run that was not resumed."""
    bank, wanted, start = (one["method"]["bank.embeddings"] for one in (found, expected, before))
    kept = (start == wanted).all(2).all(0)
    assert 200 < int(kept.sum()) < bank.shape[1] - 800
    assert torch.equal(bank[:, kept], start[:, kept])
    assert float(torch.cosine_similarity(bank[:, ~kept], wanted[:, ~kept], 2).mean()) > 0.95
    for name in ("bank.seen", "clusters"):
        assert torch.equal(found["method"][name], expected["method"][name])


def test_one_process_to_two(home: Path) -> None:
    """Two processes take the bank of one, and write their parts from then on."""
    two = home / "one to two" / "checkpoints"
    one = home / "alone" / "checkpoints"
    assert not checkpoints.path_of(two, 6, 1).exists()
    expected, before = (checkpoints.load(checkpoints.path_of(one, step)) for step in (10, 6))
    assert_close(joined(two, 10), expected, before)


def test_two_processes_to_one(home: Path) -> None:
    """One process takes the parts of two, and writes one file from then on."""
    folder = home / "two to one" / "checkpoints"
    whole = home / "whole" / "checkpoints"
    assert not checkpoints.path_of(folder, 10, 1).exists()
    found = checkpoints.load(checkpoints.path_of(folder, 10))
    assert_close(found, joined(whole, 10), joined(whole, 6))
