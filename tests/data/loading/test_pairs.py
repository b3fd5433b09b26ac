"""Pairs: who belongs together is read as it was written, and partners give the later views and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data import ArraySource, Source, open_source
from hexa.data.loading.pairs import Pairs, PairsConfig
from hexa.runtime.random import Stream
from tests.data.batches import SMALL, flat, loader_of
from tests.data.image_files import saved

#: Crops and flips alone, so that what is shown can be told.
PLAIN: dict[str, Any] = {"recipe": "crop-flip", "num_views": 2}
#: Groups of two, three and one, an image in none, and more of the same: 50 images.
GROUPS = [*["a", "b", "b", "c", "a", None, "b"], *[f"{number % 12}" for number in range(43)]]


def of(text: str, source: Source, probability: float = 0.5) -> Pairs:
    return Pairs.of(PairsConfig(of=text, probability=probability), source)


def refused(said: str, *asked: Any) -> None:
    with pytest.raises(UserError, match=said):
        of(*asked)


def csv(folder: Path, text: str | bytes, name: str = "pairs.csv") -> str:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return str(folder / name)


def members(found: Pairs, image: int) -> set[int]:
    begin = int(found.first[image])
    return set(found.order[begin : begin + int(found.size[image])].tolist())


# -- who is drawn -----------------------------------------------------------------------------------------------------


def test_groups_hold_who_belongs_together() -> None:
    found = Pairs.of_groups(GROUPS, 0.5)
    assert members(found, 0) == members(found, 4) == {0, 4}
    assert members(found, 2) == {1, 2, 6}
    assert members(found, 3) == {3}
    assert members(found, 5) == {5}
    assert members(found, 7) == {7, 19, 31, 43}
    assert "48 of 50 images are in 14 groups of two or more" in str(found)


def test_any_other_of_the_group_is_drawn_as_often_as_the_probability_says() -> None:
    found = Pairs.of_groups(GROUPS, 0.3)
    drawn = torch.stack([found.partners(Stream(0), epoch) for epoch in range(2000)])
    for image in range(50):
        others = members(found, image) - {image}
        counts = Counter(drawn[:, image].tolist())
        assert set(counts) == others | {image}
        for other in others:
            assert abs(counts[other] / 2000 - 0.3 / len(others)) < 0.04
    assert torch.equal(found.partners(Stream(0), 7), drawn[7])
    assert not torch.equal(found.partners(Stream(1), 7), drawn[7])


def test_the_digest_is_of_who_belongs_together_and_not_of_names() -> None:
    renamed = [None if name is None else f"other {name}" for name in GROUPS]
    assert Pairs.of_groups(renamed, 0.5).digest() == Pairs.of_groups(GROUPS, 0.5).digest()
    assert (
        Pairs.of_groups([*GROUPS[:3], "a", *GROUPS[4:]], 0.5).digest()
        != Pairs.of_groups(GROUPS, 0.5).digest()
    )


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra_crops", [(), SMALL], ids=["two views", "six views"])
def test_partners_give_the_later_views_and_nothing_else_changes(
    source: Source, extra_crops: Any
) -> None:
    found = Pairs.of_groups(GROUPS, 0.6)
    options = PLAIN | {"extra_crops": extra_crops}
    plain, paired = loader_of(source, **options), loader_of(source, pairs=found, **options)
    own, partners, drawn = paired.views.own, found.partners(Stream(0), 1), 0
    assert own == (3 if extra_crops else 1)
    for before, after in zip(plain.epoch(1), paired.epoch(1), strict=True):
        assert torch.equal(before.index, after.index)
        for left, right in zip(before.crops[:own], after.crops[:own], strict=True):
            torch.testing.assert_close(left, right, atol=1e-6, rtol=0)
        assert len(after.crops[own:]) in (1, 3)
        for row, position in enumerate(after.index.tolist()):
            partner = int(partners[position])
            expected = paired.views(
                source.decode(partner)[None].expand(16, -1, -1, -1), after.stream
            )
            for left, right in zip(after.crops[own:], expected[own:], strict=True):
                torch.testing.assert_close(left[row], right[row], atol=1.01 / 255, rtol=0)
            drawn += partner != position
    assert drawn > 10


@pytest.mark.parametrize("one_size", [True, False], ids=["resident", "workers"])
def test_an_unreadable_partner_gives_no_view(tmp_path: Path, one_size: bool) -> None:
    found = Pairs.of_groups(["a", "b", "b", "a", "c", "c", None, None], 1.0)
    loader = loader_of(flat(tmp_path, 8, (3,), one_size), 8, tolerance=0.2, pairs=found, **PLAIN)
    assert loader.resident == one_size
    for batch in loader.epoch(0):
        first, second = ((crop[:, 0, 5, 5] * 25.5).round().long() for crop in batch.crops)
        assert torch.equal(first, batch.index)
        expected = {0: 0, 1: 2, 2: 1, 4: 5, 5: 4, 6: 6, 7: 7}  # 4 stands for 3, too
        assert second.tolist() == [expected[index] for index in batch.index.tolist()]
    assert [line.split(":")[0] for line in loader.problems] == ["03.png"]


# -- what is read -----------------------------------------------------------------------------------------------------

FIVE = ArraySource(torch.zeros(5, 3, 2, 2, dtype=torch.uint8), name="five")
NAMES = FIVE.paths


@pytest.mark.parametrize(
    "text",
    [
        "path,group\n{0},a\n{1},b\n{3},a\n{2},\n",
        "{0},a,further\n{1},b,columns\n{3},a,x\n",
        'Group,"Path"\r\na,{0}\r\na,{3}\r\nb,{1}\r\n\r\n',
        "\ufefffile,patient\n{0},a\n{0},a\n{3},a\n",
        '"{0}","a, and ""more"""\n{3},"a, and ""more"""\n',
    ],
)
def test_csv_files_as_they_are_written(tmp_path: Path, text: str) -> None:
    found = of(csv(tmp_path, text.format(*NAMES)), FIVE)
    assert [members(found, image) for image in range(5)] == [{0, 3}, {1}, {2}, {0, 3}, {4}]


PICTURE = saved(Image.new("RGB", (4, 4)), "PNG")


@pytest.mark.parametrize("values", [["a", "b", "a", None], [7.5, 8.0, 7.5, float("nan")]])
def test_a_column_of_parquet(tmp_path: Path, values: list[Any]) -> None:
    images = [{"bytes": PICTURE, "path": f"{number}.png"} for number in range(6)]
    for number, part in enumerate(((0, 4), (4, 6))):
        chosen = [*values, values[1], values[3]][slice(*part)]
        table = pa.table(
            {"image": images[slice(*part)], "patient": pa.array(chosen, pa.array(values).type)}
        )
        pq.write_table(table, tmp_path / f"train-{number:05d}-of-00002.parquet")
    source = open_source(f"parquet:{tmp_path}")
    found = of("column:patient", source)
    assert [members(found, image) for image in range(6)] == [
        {0, 2},
        {1, 4},
        {0, 2},
        {3},
        {1, 4},
        {5},
    ]
    refused("has no column 'patent'; did you mean 'patient'", "column:patent", source)
    refused("the column 'image' cannot be read as numbers or text", "column:image", source)
