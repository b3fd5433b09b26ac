"""Gradient accumulation beyond its law: memory, statistics, stochastic layers, merged passes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.memory import peak_bytes
from hexa import recipes
from hexa.config import ConfigError
from hexa.core import MAIN
from hexa.core.example import Score
from hexa.core.micro_batches import MicroBatches
from hexa.data import open_source
from hexa.measure.costs import measure
from hexa.methods.moco import MoCo
from hexa.methods.simsiam import SimSiam
from hexa.objective import ObjectiveConfig
from hexa.recipes.experiment import override
from hexa.run.build import setting_of
from hexa.testing.laws import micro_batches_add_up
from hexa.training.overfitting import one_step_and_many
from tests.distributed.together import run_together
from tests.end_to_end.endings import ALONE
from tests.laws.cases import BATCH, Case, backward

BOTH: dict[str, dict[str, object]] = {"adversarial": {}, "cutmix": {}}


def gradients(case: Case, parts: int, config: ObjectiveConfig | None = None) -> torch.Tensor:
    method = case.build()
    backward(case.objective(method, config, accumulate=parts), case.batch())
    return torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])


@pytest.mark.parametrize("method", ["moco", "simclr"])
def test_peak_memory(method: str) -> None:
    """Four micro-batches keep less than half of the activations."""
    peaks = []
    for parts in (1, 4):
        case = Case(method, {"bn_groups": 4}, BOTH, sizes=(48, 48))
        built = case.build()
        objective = case.objective(built, accumulate=parts)
        batch = case.batch()
        backward(objective, batch)  # gradients exist from here on
        objective.commit(batch)
        standing = [*built.state_dict().values(), *batch.crops]
        peaks.append(
            peak_bytes(lambda o=objective, b=batch: backward(o, b), torch.device("cpu"), standing)
        )
    assert peaks[1] < peaks[0] / 2


def test_running_statistics() -> None:
    """They move as by one pass of the whole batch."""
    found = []
    for parts in (1, 4):
        case = Case("moco", {"bn_groups": 4})
        method = case.build()
        backward(case.objective(method, accumulate=parts), case.batch())
        found.append({n: b for n, b in method.named_buffers() if "running" in n})
    torch.testing.assert_close(found[1], found[0], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("method", ["moco", "pcl-v2"])
def test_split_terms(method: str) -> None:
    """Terms that share a pass are cut across their border."""
    case = Case(method, {}, {"cutmix": {"fraction": 0.5}}, kept=True)
    config = ObjectiveConfig(split=True, clean_fraction=0.5)
    torch.testing.assert_close(
        gradients(case, 3, config), gradients(case, 1, config), atol=1e-10, rtol=1e-10
    )


@pytest.mark.parametrize("images", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("method", ["moco", "simclr"])
def test_few_images(method: str, images: int) -> None:
    """A hard example of few images, in fewer micro-batches than the clean term, has the gradients of the whole pass."""
    entry = {"fraction": images / BATCH, "steps": 2, "step_size": 0.5}
    case = Case(method, {}, {"adversarial": entry})
    torch.testing.assert_close(
        gradients(case, 2),
        gradients(case, 1),
        atol=1e-10,
        rtol=1e-10,
    )


@pytest.mark.parametrize(
    ("images", "parts", "expected"),
    [
        (1, 2, [1]),
        (3, 2, [3]),
        (7, 3, [3, 2, 2]),
        (7, 8, [3, 2, 2]),
    ],
)
def test_sizes(images: int, parts: int, expected: list[int]) -> None:
    """Two images or more each, the larger micro-batches first, in order and without gaps."""
    score = Score(Dropping(), accumulate=parts)  # type: ignore[arg-type]
    rows = MicroBatches(score, (torch.zeros(images, 3, 2, 2),), MAIN).rows
    numbers = torch.arange(images)
    assert [len(numbers[part]) for part in rows] == expected
    assert torch.equal(torch.cat([numbers[part] for part in rows]), numbers)


class Dropping(nn.Module):
    """A method's `embed` and `loss`, with dropout and a loss that compares all images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            nn.Flatten(),
            nn.Linear(12, 4),
            nn.Dropout(0.5),
        ).double()

    def embed(self, crops: tuple[torch.Tensor, ...], branch: object) -> torch.Tensor:
        return torch.stack([self.layer(crop) for crop in crops])

    def loss(self, embedding: torch.Tensor, labels: object) -> torch.Tensor:
        return (embedding @ embedding.mT).square().mean(-1)

    clean_loss = loss


def test_dropout_replay() -> None:
    """The second pass drops what the first dropped."""
    method = Dropping()
    score = Score(method, accumulate=4)  # type: ignore[arg-type]
    crops = (torch.rand(8, 3, 2, 2, dtype=torch.float64),)
    batches = MicroBatches(score, crops, MAIN)
    embedding = batches.embedding()
    again = torch.cat([batches.embed(number) for number in range(4)], 1)
    assert torch.equal(again, embedding)
    assert int((embedding == 0).sum()) > 0
    method.loss(again, None).mean().backward()
    weight = method.layer[1].weight
    expected = weight.grad.clone()
    weight.grad = None
    method.loss(embedding, None).mean().backward()
    for replay in batches.replays(embedding):
        replay.backward()
    torch.testing.assert_close(weight.grad, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("parts", [3, 8])
def test_refused_number(parts: int) -> None:
    """A number that does not divide the batch, or leaves one image for each micro-batch."""
    fields = {"batch_size": 8, "method.queue_size": 64, "training.accumulate": parts}
    with pytest.raises(ConfigError) as refused:
        setting_of(override(recipes.get("digits-moco-v2"), fields), 1347)
    assert [path for path, _ in refused.value.problems] == ["training.accumulate"]


@pytest.mark.parametrize("parts", [6, 32])
def test_timing(parts: int) -> None:
    """Steps with micro-batches are timed on a CPU, where the batch is smaller than that of the run."""
    fields = ALONE | {"batch_size": 192, "method.queue_size": 768, "views.size": 64}
    fields["network.widths"] = [16, 32]
    fields["training.accumulate"] = parts
    costs = measure(override(recipes.get("digits-moco-v2"), fields), open_source("digits"), ())
    assert min(costs.steps.values()) > 0


def test_loss_per_image_with_labels_of_the_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that are made of the clean embedding get it, also if each image has its own loss."""
    monkeypatch.setattr(SimSiam, "loss_per_image", True)
    micro_batches_add_up(Case("simsiam", {}, {"adversarial": {}}).made())


@pytest.mark.parametrize(
    "hard",
    [{"vat": {}}, {"adversarial": {"epsilon": 4, "step_size": 4}}],
)
def test_passes_of_micro_batches(hard: dict[str, dict[str, object]]) -> None:
    """VAT's direction and the check for overfitting are computed in micro-batches, too."""
    case = Case("moco", {}, hard)
    method = case.build()
    seen = set[int]()

    def hook(_: object, given: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            seen.add(len(given[0]))

    method.backbone.register_forward_pre_hook(hook)
    objective = case.objective(method, accumulate=4)
    backward(objective, case.batch())
    one_step_and_many(objective, case.batch())
    assert seen == {2}


def test_timing_with_clusters() -> None:
    """Few images are timed, although the clusters are fewer than the images of an epoch alone."""
    fields = ALONE | {"method.name": "deepcluster-v2", "method.num_prototypes": [600]}
    costs = measure(override(recipes.get("digits-moco-v2"), fields), open_source("digits"), ())
    assert min(costs.steps.values()) > 0


def in_two_processes() -> list[str]:
    """The laws that are broken, none if all is well."""
    broken = []
    for name in ("moco", "deepcluster-v2", "swav", "simclr"):
        for hard in ({}, BOTH):
            try:
                micro_batches_add_up(Case(name, {}, hard).made())
            except AssertionError as error:
                broken.append(f"{name} {error}")
    return broken


def test_two_processes() -> None:
    """The law holds where a process has half of the batch, in two micro-batches."""
    assert run_together(2, in_two_processes) == [[], []]


def test_wrong_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law finds a loss that is declared to be per image, but compares images."""
    loss = MoCo.loss
    monkeypatch.setattr(
        MoCo,
        "loss",
        lambda self, z, labels: loss(self, z - z.mean(1), labels),
    )
    with pytest.raises(AssertionError, match="loss_per_image"):
        micro_batches_add_up(Case("moco").made())
