"""Processes that resume together read only the parts of a checkpoint that they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.config import UserError
from hexa.runtime import checkpoints, processes
from tests.distributed.together import run_together

ROWS = 2000
WIDTH = 4096  # 32 MB
CPU = torch.device("cpu")


def resident(path: Path) -> int:
    """Bytes of a file that this process has read through its mapping."""
    found = re.search(
        rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text()
    )
    return 1024 * int(found[1]) if found else 0


def work(home: str) -> dict[str, Any]:
    folder = Path(home)
    rank = processes.rank()
    said: list[str] = []
    found: dict[str, Any] = {}
    good = checkpoints.newest_good_of_all(folder / "good", said.append, CPU)
    found["opened"] = resident(good[0])
    found["rows"] = good[1]["bank"][slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)].clone()
    found["taken"], found["path"], found["said"] = resident(good[0]), good[0].name, said
    found["none"] = checkpoints.newest_good_of_all(folder / "none", said.append, CPU)
    for name in ("other", "absent"):
        try:
            checkpoints.newest_good_of_all(folder / f"{name}{rank}", said.append, CPU)
        except UserError as error:
            found[name] = str(error)
    return found


Both = tuple[torch.Tensor, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    home = tmp_path_factory.mktemp("checkpoints")
    bank = torch.rand(ROWS, WIDTH)
    checkpoints.save(home / "good", 10, {"bank": bank})
    newest = checkpoints.save(home / "good", 20, {"bank": torch.zeros(2)})
    newest.write_bytes(newest.read_bytes()[:-40])
    for rank in range(2):
        checkpoints.save(home / f"other{rank}", 5, {"bank": torch.full((2,), float(rank))})
    checkpoints.save(home / "absent0", 5, {"bank": torch.zeros(2)})
    (home / "absent1").mkdir()
    return bank, run_together(2, work, str(home))


def test_newest_good_checkpoint_rows(both: Both) -> None:
    """Each process gets its rows of the newest good checkpoint."""
    bank, found = both
    assert [one["path"] for one in found] == ["step-00000010.pt"] * 2
    assert torch.equal(torch.cat([one["rows"] for one in found]), bank)
    assert "trying the previous checkpoint" in found[0]["said"][0]
    assert found[1]["said"] == []
    assert [one["none"] for one in found] == [None, None]


def test_checkpoint_bytes_read(both: Both) -> None:
    """The main process verifies the file, and the others read only what they use."""
    bank, found = both
    assert found[0]["opened"] > 0.9 * bank.nbytes
    assert found[1]["opened"] < 0.1 * bank.nbytes
    assert found[1]["taken"] < 0.7 * bank.nbytes


@pytest.mark.parametrize("name", ["other", "absent"])
def test_differing_checkpoint_files(both: Both, name: str) -> None:
    """Both processes notice files that differ."""
    for one in both[1]:
        assert "processes see different checkpoints" in one[name]
