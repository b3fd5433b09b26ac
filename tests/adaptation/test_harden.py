"""`hexa harden` through the command line, on digits and a small network; its measures against naive ones."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

import hexa
from hexa import recipes
from hexa.adaptation.harden import HardenRequest
from hexa.adaptation.harden_plan import choose
from hexa.adaptation.harden_verdict import at_price, mean_share
from hexa.adaptation.request import Trained
from hexa.adaptation.robustness import (
    ATTACKED,
    CLEAN,
    CORRUPTED,
    Shown,
    Side,
    attack_all,
    attack_of,
    crossed,
    decide,
    farthest,
    halves_of,
    lost,
    lost_by,
    table,
)
from hexa.comparison.extraction import Extraction
from hexa.comparison.labelled import MEASURES, WIDTH, Judge, labels_of
from hexa.config import UserError
from hexa.data import open_source
from hexa.data.sources.source import Subset
from hexa.evaluation.features import extract
from hexa.evaluation.few_labels import half_width
from hexa.measure.costs import Costs
from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import Backbone, load_backbone, random_backbone, save_backbone
from tests.adaptation.test_adapt import QUICK
from tests.conftest import Says

NETWORK = NetworkConfig(
    name="small-resnet", widths=(8, 16), mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4)
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(
        random_backbone(NETWORK, 8, seed=5), tmp_path_factory.mktemp("start") / "start.safetensors"
    )


def command(weights: Path, out: Path, more: str = "", name: str = "harden") -> str:
    return f"{name} {weights} --data digits --out {out} {QUICK} --time 30s {more}"


def test_harden_weights_to_report(weights: Path, tmp_path: Path, says: Says) -> None:
    # ε = 64: a random network hardly moves under less
    fixed = "--labelled digits#test --max_steps 5 --strength 64 --price 100"
    out = tmp_path / "run"
    said = says(command(weights, out, fixed)).out
    kept = json.loads((out / "adapt.json").read_text())
    assert kept["request"]["command"] == "harden"
    assert kept["comparison"]["size"] == 8
    assert said.splitlines()[-4] == kept["verdict"]
    assert [row[0] for row in kept["table"]["rows"]] == [
        f"{one}, % ↑" for one in ("k-NN", CLEAN, CORRUPTED, *ATTACKED)
    ]
    better = load_backbone(
        out / "backbone.safetensors" if kept["kept"] == "result" else weights
    ).eval()
    assert torch.equal(
        load_backbone(out / "winner.safetensors")(x := torch.rand(4, 3, 8, 8)), better(x)
    )
    export = f"export {out} --to=safetensors --out={tmp_path / 'x.safetensors'}"
    told = " ".join(says(export).out.split())
    assert str(out / "winner.safetensors") in told
    (out / "report.html").unlink()  # as if killed before it was written
    says(command(weights, out, fixed))
    assert (out / "report.html").exists()
    # another strength is another training
    other = "--labelled digits#test --max_steps 5 --strength 32 --groups g.csv"
    err = says(command(weights, out, other), status=2).err
    assert "--strength 64.0, not 32.0; repeat" in err
    err = says(command(weights, out, name="adapt"), status=2).err
    assert "hexa harden" in err
    assert "--out" in err


def test_harden_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without labels the report shows how far features move; labels may be given later."""
    weights = save_backbone(random_backbone(NETWORK, 8, seed=5), tmp_path / "start.safetensors")
    (photos := tmp_path / "photos").mkdir()
    for row in range(100):
        Image.fromarray(open_source("digits").decode(row).permute(1, 2, 0).numpy()).save(
            photos / f"{row}.png"
        )
    fields: dict[str, Any] = {
        "training.device": "cpu",
        "training.tensorboard": False,
        "training.num_workers": 0,
    }
    run = functools.partial(
        hexa.harden, weights, f"folder:{photos}", out=tmp_path / "run", time="30s", **fields
    )
    kept = run(epochs=1)
    assert (
        kept["table"]["rows"][0][0]
        == f"{CORRUPTED}, features move, % of the distance between images ↓"
    )
    assert "--labelled" in kept["verdict"]
    assert "without labels" in kept["notes"][-1]
    assert kept["comparison"]["share"] == 0.5
    # labels that come later, and another price, need no other training
    trained = (tmp_path / "run" / "backbone.safetensors").read_bytes()
    with pytest.raises(UserError, match="needs labels"):
        run(epochs=1, labelled=f"folder:{photos}")
    with monkeypatch.context() as patch:
        patch.setattr(HardenRequest, "outcome", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(epochs=1, labelled="digits#test")
    assert "verdict" not in json.loads((tmp_path / "run" / "adapt.json").read_text())
    judged = run(epochs=1, labelled="digits#test", price=100.0)
    assert judged["table"]["rows"][0][0] == "k-NN, % ↑"
    assert judged["request"]["price"] == 100
    assert judged["comparison"]["images"] == 450  # of the 100 that were planned without labels
    assert (tmp_path / "run" / "backbone.safetensors").read_bytes() == trained
    save_backbone(random_backbone(NETWORK, 8, seed=6), weights)
    with pytest.raises(UserError, match="has changed since this experiment began"):
        run(epochs=1, price=3.0)
    assert "verdict" in json.loads((tmp_path / "run" / "adapt.json").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--strength 0.03", "--strength 0.03"),
        ("--strength 65", "--strength 65.0 is a radius"),
        ("--price -1", "--price -1"),
        ("--price x", "--price"),
        ("--hard_examples.adversarial.epsilon 2", "--strength"),
        ("--time 1s", ""),
    ],
)
def test_harden_invalid_options(
    options: str, message: str, weights: Path, tmp_path: Path, says: Says
) -> None:
    told = says(command(weights, tmp_path / "run", options), status=2)
    if message:
        assert message in told.err
    else:  # too short is an answer
        assert "try --time 1m." in told.out
        assert not [*tmp_path.rglob("*.yaml")]


@pytest.mark.parametrize("readable", [100, 2])
def test_harden_judging_size(
    readable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start and result are evaluated at the result's size."""
    start = random_backbone(NETWORK, 48, seed=0)
    result = random_backbone(NETWORK, 24, seed=0)
    images = open_source("digits#test")
    how = Extraction(seconds=math.inf, most=100, device="cpu", num_workers=0)
    trained = Trained(
        recipes.get("teacher"), tmp_path, start, result, open_source("digits"), images, how
    )
    shared = torch.arange(readable)
    monkeypatch.setattr(
        "hexa.adaptation.harden_verdict.common",
        lambda found: ([x[shared] for x, _ in found], shared),
    )
    found = HardenRequest("start.safetensors", "digits", seconds=1.0).outcome(
        trained, lambda *_: None
    )
    if not found.judged:
        assert readable == 2
        assert "--price could not be applied: too few" in " ".join(found.notes)
        return
    assert found.table.header[2] == "result, 24 px"
    assert found.winner.image_size == 48
    assert "48 px" in found.verdict
    assert "as independent" in str(found.notes)
    assert found.record["attack"] == attack_of(Judge(labels_of(images))) | {
        "images": found.record["attacked"]
    }
    assert found.record["k-NN"][0] == found.record["k-NN"][1]  # the same weights
    assert [row[0] for row in found.table.rows[-2:]] == [
        f"{name} at 48 px, % ↑" for name in ("k-NN", CLEAN)
    ]


def costs(**more: float) -> Costs:
    return Costs(size=64, read=0.0, steps={4: 0.01}, look=0.002, **more)


@pytest.mark.parametrize(
    ("seconds", "side", "size", "images"),
    [
        (1200.0, 500, 128, 30_000),
        (1199.0, 500, 96, 1199 / 0.0225),
        (10**4, 32, 64, 10**4 / 0.01),  # images are enlarged no more than they must be
        (40.0, 500, 64, 40 / 0.01),  # the smallest from three sevenths on
        (1.0, 500, 48, 1 / 0.01 / 0.75**2),  # the smallest of all if there is no time for 3,000
    ],
)
def test_harden_size_choice(seconds: float, side: int, size: int, images: float) -> None:
    """The size leaves time for enough images."""
    assert choose(costs(), [128, 96, 64, 48], lambda _: seconds, side) == (
        size,
        pytest.approx(images),
    )


@pytest.mark.parametrize(
    ("least", "share", "looks"),
    [
        (1.0, 0.5, 2),
        (0.4, 0.5 * 0.85**2, 4),
        (0.1, 0.5 * 0.85**3, 5),
    ],
)
def test_price_share_search(least: float, share: float, looks: int) -> None:
    """The loss of the full share is four times the allowed one; noise is added to shares above
    `least`."""
    cost = Mock(side_effect=lambda tried: 4 * tried**2 + (least < tried < 1))
    assert at_price(1.0, cost) == pytest.approx(share)
    assert len(dict.fromkeys(call.args for call in cost.call_args_list)) == looks
    assert at_price(4.0, cost) == 1.0
    assert at_price(0.0, cost) == 1 / 16


def test_cross_fitted_loss() -> None:
    """In 400 draws of 100 images, the loss on the labels that chose the share is optimistic; the
    cross-fitted loss is unbiased."""
    drawn = np.random.default_rng(0)
    price = 2.0
    backbone = load_backbone("pixels:8")
    naive = list[float]()
    ours = list[float]()
    for _ in range(400):
        right = drawn.random(100) < 0.8
        changes = drawn.random((2, 100))
        before = Side(backbone, torch.zeros(1), (), dict.fromkeys(MEASURES, 100.0 * right))

        def side(share: float, right: Any = right, changes: Any = changes) -> Side:
            """Return a share that loses a tenth of the correct answers, and gains 15 % of the wrong
            ones, times the square of the share."""
            often = np.where(right, 0.1, 0.15) * share**2
            values = {
                name: 100.0 * (right ^ (one < often))
                for name, one in zip(MEASURES, changes, strict=True)
            }
            return Side(backbone, torch.zeros(1), (), values)

        def truth(share: float) -> float:
            return 100 * (0.8 * 0.1 - 0.2 * 0.15) * share**2

        def cost(half: Any, share: float, before: Side = before, side: Any = side) -> float:
            return lost_by(before, side(share), half)

        alone = at_price(price, functools.partial(cost, np.arange(100)))
        naive.append(lost(before, side(alone)).points - truth(alone))
        halves = np.split(drawn.permutation(100), [45])
        shares = [at_price(price, functools.partial(cost, half)) for half in halves]
        values = crossed([side(share) for share in shares], halves)
        reported = lost(before, Side(backbone, torch.zeros(1), (), values)).points
        ours.append(reported - truth(mean_share(shares, halves)))
    error = np.std(ours) / math.sqrt(len(ours))
    assert np.mean(naive) < -5 * error
    assert abs(np.mean(ours)) < 2 * error


@pytest.mark.parametrize("grouped", [False, True])
def test_judge_halves(grouped: bool) -> None:
    """Halves hold every image once."""
    labels = np.repeat(np.arange(10), 20)
    groups = np.arange(200) // 4 if grouped else None
    judge = Judge(labels, 0, groups)
    first, second = halves_of(judge)
    assert sorted([*first, *second]) == [*range(len(judge.judged))]
    of = labels[judge.judged]
    assert abs(np.bincount(of[first]) - np.bincount(of[second])).max() <= (4 if grouped else 0)
    if groups is not None:
        assert not set(groups[judge.judged[first]]) & set(groups[judge.judged[second]])


Judged = tuple[Backbone, Side, Shown, Judge]


@pytest.fixture(scope="module")
def judged() -> Judged:
    images = Subset(open_source("digits", "test"), np.arange(150))
    backbone = load_backbone("random:small-resnet-8-16", size=8)
    features = extract(backbone, images, precision="fp32")[0]
    judge = Judge(labels_of(images), 0, np.arange(150) % 10)
    side = Side.of(backbone, features, judge)
    shown = Shown.of(images, backbone, 30, judge, torch.device("cpu"), 0)
    attack_all([side], shown, judge, lambda done, total: None)
    return backbone, side, shown, judge


def test_attacked_image_held_out_probe(judged: Judged) -> None:
    """Attacked images are scored by the probe they were held out from."""
    backbone, side, shown, judge = judged
    for row, place in enumerate(shown.places.tolist()):
        fold = next(number for number, part in enumerate(judge.parts) if place in part)
        with torch.no_grad():
            right = (
                side.probes[fold].scores(backbone(shown.pixels[row : row + 1])).argmax(1)
                == judge.labels[place]
            )
        times = side.values[CLEAN][np.searchsorted(judge.judged, place)]
        assert times > 0 if right else times < 100
        fallen = [not side.values[name][row] for name in ATTACKED]
        assert fallen == sorted(fallen)
        assert bool(right) or all(fallen)
    assert 0 < side.mean(CORRUPTED) < 100
    assert side.groups["k-NN"].tolist() == (judge.judged % 10).tolist()
    assert all(
        side.groups[name].tolist() == (shown.places % 10).tolist()
        for name in (CORRUPTED, *ATTACKED)
    )


def test_distance_unit_sorted_images() -> None:
    """The mean distance between images does not depend on their order, such as by class."""
    images = open_source("digits", "test")
    backbone = load_backbone("random:small-resnet-8-16", size=8)
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(4, 24, generator=generator)
    rows = torch.repeat_interleave(centres, 500, dim=0)
    rows = rows + torch.randn(2000, 24, generator=generator)
    drawn = rows[torch.randperm(2000, generator=generator)]
    sides = [Side(backbone, features) for features in (rows, drawn, rows[::4])]
    cpu = torch.device("cpu")
    shown = Shown.of(images, backbone, 4, None, cpu, 0)
    attack_all(sides, shown, None, lambda done, total: None)
    measure = ATTACKED[0]
    first, *others = [side.mean(measure) for side in sides]
    assert others == pytest.approx([first] * 2, rel=0.05)


def test_farthest_view_distance() -> None:
    """The farthest views are in the ball and move features more than noise."""
    network = load_backbone("random:small-resnet-8-16", size=8)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(8, 3, 8, 8, generator=generator)
    start = 2 * torch.rand(8, 3, 8, 8, generator=generator) - 1
    with torch.no_grad():
        clean = network(images)
    views = farthest(network, images, clean, start, 4 / 255)
    assert (views - images).abs().max() <= 4 / 255 + 1e-6
    assert torch.equal(views, views.clamp(0, 1))
    with torch.no_grad():
        far = (network(views) - clean).norm(dim=1)
        noise = (network((images + 4 / 255 * start).clamp(0, 1)) - clean).norm(dim=1)
    assert (far > 1.5 * noise).all()


def sides(right: tuple[int, int], held: tuple[int, int]) -> list[Side]:
    """Return start and result with this many correct answers of 200; the result has two more points
    by k-NN, and under attack."""
    counts = (right[0], right[0]), (right[1] + 4, right[1])
    clean = [
        {name: 100.0 * (np.arange(200) < count) for name, count in zip(MEASURES, pair, strict=True)}
        for pair in counts
    ]
    robust = [dict.fromkeys(ATTACKED, 100.0 * (np.arange(200) < count)) for count in held]
    backbone = load_backbone("pixels:8")
    return [Side(backbone, torch.rand(4, 2), (), a | b) for a, b in zip(clean, robust, strict=True)]


@pytest.mark.parametrize(
    ("clean", "robust", "within", "better"),
    [
        ((160, 160), (0, 50), True, True),
        ((160, 154), (0, 50), True, True),  # three points of the probe and one of k-NN
        ((160, 153), (0, 50), True, True),  # 2.5 in the mean, but not significantly more than 2
        ((160, 153), (0, 50), False, False),
        ((160, 130), (0, 50), True, False),  # 14 in the mean
        ((160, 180), (50, 50), True, False),  # no more robust
        ((160, 180), (50, 52), True, False),  # not significantly
    ],
)
def test_harden_verdict(
    clean: tuple[int, int], robust: tuple[int, int], within: bool, better: bool
) -> None:
    before, after = sides(clean, robust)
    found, said = decide(before, after, 2.0, within, "an attack")
    assert found == better
    assert said.startswith(
        "The result is more robust" if better else "The initial weights are kept"
    )
    assert ("no gain in robustness" in said) == (robust[1] - robust[0] < 10)
    others = said.partition("labels that did not choose")[2].partition(". ")[0]
    assert ("more than --price" in others) == (clean[1] == 130)
    assert ("labels that chose the result, the loss is more" in said) == (not within)
    loss = (clean[0] - clean[1] - 2) / 2
    assert lost(before, after).points == pytest.approx(loss)
    assert f"labels that did not choose the result: {loss:+.1f} ± ".replace("-", "−") in said
    row = table(before, after, 64).rows[1]
    assert row[:3] == [f"{CLEAN}, % ↑", f"{clean[0] / 2:.1f}", f"{clean[1] / 2:.1f}"]
    assert math.isclose(float(row[3].split()[0].replace("−", "-")), (clean[1] - clean[0]) / 2)


@pytest.mark.parametrize(
    ("less", "better"),
    [
        (0.1, False),
        (5.0, True),
        (-5.0, False),
    ],
)
def test_harden_verdict_without_labels(less: float, better: bool) -> None:
    """Features that move less by a tenth of a point, however significantly, are not more robust."""
    backbone = load_backbone("pixels:8")
    moved = np.random.default_rng(0).normal(60, 5, 200)
    pair = [
        Side(backbone, torch.rand(20, 2), (), dict.fromkeys(ATTACKED, values))
        for values in (moved, moved - less)
    ]
    assert decide(*pair, 2.0, True, "an attack")[0] == better


def test_corruption_share_intervals() -> None:
    """Shares of corruptions have the intervals of a cross-validation."""
    before, after = sides((160, 160), (0, 50))
    before.values[CORRUPTED], after.values[CORRUPTED] = shares = 100 * np.random.default_rng(
        0
    ).random((2, 200))
    added = np.array([-100, 100]) / math.sqrt(2)
    half = WIDTH * half_width(np.append(shares[1] - shares[0], added))
    assert table(before, after, 64).rows[-1][3].endswith(f" ± {half:.1f}")
