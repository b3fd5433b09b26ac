"""Each law finds its fault; `hexa check` reports it in a line, and ends with status 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa import recipes
from hexa.config import UserError
from hexa.core import MAIN, Example
from hexa.hard_examples.cutmix import CutMix
from hexa.methods.byol import BYOL
from hexa.run.build import Machine, build_method, setting_of
from hexa.testing import LAWS
from hexa.testing.check import looks_wrong
from tests.conftest import Says
from tests.laws.cases import Case

#: `hexa check` hides a GPU, but here torch has seen it.
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a law forks, and beside a GPU autograd does not"
)


def impure(real: Callable[..., Any]) -> Callable[..., Any]:
    def loss(self: BYOL, embedding: Any, labels: Any) -> Any:
        next(self.parameters()).data.add_(0.01)
        return real(self, embedding, labels)

    return loss


def misordered(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, embedding, labels: real(self, embedding, labels).flip(1)


def scaled(
    real: Callable[..., Any], first: Any, change: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Scale losses by a factor that each commit changes."""

    def loss(self: BYOL, embedding: Any, labels: Any) -> Any:
        return real(self, embedding, labels) * self.encoder.__dict__.get("scale", first)

    def commit(self: BYOL, *given: Any) -> None:
        before = self.encoder.__dict__.get("scale", first)
        self.encoder.__dict__["scale"] = change(before)

    BYOL.commit = commit  # type: ignore[method-assign]
    return loss


def remembered_by_itself(real: Callable[..., Any]) -> Callable[..., Any]:
    return scaled(real, 1, lambda before: before + 1)


def made_anew(real: Callable[..., Any]) -> Callable[..., Any]:
    return scaled(real, torch.ones(()), lambda before: before * 0.9)


def read_by_the_host(real: Callable[..., Any]) -> Callable[..., Any]:
    def loss(self: BYOL, embedding: Any, labels: Any) -> Any:
        return real(self, embedding, labels) * (1 + 0 * int(embedding.detach().sum()))

    return loss


def written_by_a_mask(real: Callable[..., Any]) -> Callable[..., Any]:
    def loss(self: BYOL, embedding: Any, labels: Any) -> Any:
        found = real(self, embedding, labels)
        found[found < 0] = found.detach()[:0, 0]  # no loss is below 0
        return found

    return loss


def altered(
    real: Callable[..., Any], change: Callable[[Example, Any], dict[str, Any]]
) -> Callable[..., Any]:
    """Change some fields of the mixed example, which may depend on the stream."""

    def made(self: CutMix, source: Example, stream: Any) -> Example:
        mixed = real(self, source, stream)
        return replace(mixed, **change(mixed, stream))

    return made


def drawn_on_the_host(real: Callable[..., Any]) -> Callable[..., Any]:
    def change(mixed: Example, stream: Any) -> dict[str, Any]:
        down = int(torch.randint(12, (), generator=stream.generator()))
        return {"crops": tuple(crop.roll(down, 2) for crop in mixed.crops)}

    return altered(real, change)


def of_this_process(real: Callable[..., Any]) -> Callable[..., Any]:
    from hexa.runtime import processes

    return lambda self, embedding, labels: real(self, embedding, labels) * (1 + processes.rank())


def brighter(real: Callable[..., Any]) -> Callable[..., Any]:
    def change(mixed: Example, stream: Any) -> dict[str, Any]:
        return {"crops": tuple(crop + 0.5 for crop in mixed.crops)}

    return altered(real, change)


def unweighed(real: Callable[..., Any]) -> Callable[..., Any]:
    def change(mixed: Example, stream: Any) -> dict[str, Any]:
        return {"mixture": tuple((labels, 0.9995 * weight) for labels, weight in mixed.mixture)}

    return altered(real, change)


@pytest.mark.parametrize(
    ("law", "of", "name", "fault", "said"),
    [
        (
            "nothing_changes_before_commit",
            BYOL,
            "loss",
            impure,
            "`encoder.* changed before `commit`",
        ),
        ("loss_is_pure", BYOL, "loss", impure, "`loss` changed `encoder"),
        ("losses_follow_their_images", BYOL, "loss", misordered, "losses of reordered images"),
        ("step_is_static", BYOL, "loss", remembered_by_itself, "two steps differ"),
        ("step_is_static", BYOL, "loss", made_anew, "a replayed step differs"),
        ("step_is_static", BYOL, "loss", read_by_the_host, "the host waits"),
        (
            "step_is_static",
            BYOL,
            "loss",
            written_by_a_mask,
            "waits for the device: aten.index_put_",
        ),
        ("step_is_static", CutMix, "__call__", drawn_on_the_host, "two steps differ"),
        ("a_resumed_method_goes_on", BYOL, "loss", remembered_by_itself, "after a checkpoint"),
        (
            "two_processes_equal_one",
            BYOL,
            "loss",
            of_this_process,
            "two processes and one",
        ),
        ("hard_examples_are_valid_pixels", CutMix, "__call__", brighter, "pixels of cutmix range"),
        (
            "mixture_weights_sum_to_one",
            CutMix,
            "__call__",
            unweighed,
            "the sum of the weights of cutmix",
        ),
    ],
)
def test_law_faults(
    monkeypatch: pytest.MonkeyPatch,
    law: str,
    of: type,
    name: str,
    fault: Callable[..., Any],
    said: str,
) -> None:
    """Each law finds its fault."""
    case = Case("byol", {}, {"cutmix": {}} if of is CutMix else {}).made()
    LAWS[law](case)
    monkeypatch.setattr(BYOL, "commit", BYOL.commit)  # put back whatever a fault does
    monkeypatch.setattr(of, name, fault(getattr(of, name)))
    with pytest.raises(AssertionError, match=said):
        LAWS[law](case)


def test_branch_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that ignores the branch is found."""
    case = Case("byol", {}, {"adversarial": {}}).made()
    embed = BYOL.embed
    monkeypatch.setattr(BYOL, "embed", lambda self, crops, branch: embed(self, crops, MAIN))
    with pytest.raises(AssertionError, match="no pass went through `aux`"):
        LAWS["nothing_changes_before_commit"](case)


def test_backbone_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backbone that cannot be exported breaks a law, and is refused before the training."""
    case = Case("byol").made()
    monkeypatch.setattr(BYOL, "backbone", property(lambda self: self.encoder))
    with pytest.raises(UserError, match=r"BYOL.backbone is not .* it lacks conv1.*; unknown"):
        LAWS["backbone_can_be_exported"](case)
    experiment = recipes.get("digits-moco-v2").model_copy(update={"method": case.method})
    with pytest.raises(UserError, match="is not the network"):
        build_method(experiment, setting_of(experiment, 1347), Machine.of(experiment))


def test_processes_with_a_fraction() -> None:
    """The law of two processes holds for the whole batch alone: each takes its own first images."""
    case = Case("moco", {}, {"adversarial": {"fraction": 0.5}}).made()
    LAWS["two_processes_equal_one"](case)


def of_variances(self: BYOL, embedding: Any, labels: Any) -> Any:
    """VICReg without its covariances: a hinge on the standard deviation, and the distance of the views."""
    hinge = (1 - embedding.std(1, correction=0)).clamp(min=0).mean(-1, keepdim=True)  # [V, 1]
    return hinge + (embedding - embedding.flip(0)).square().mean(-1)


def test_variance_loss_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of variances on the sphere causes a warning."""
    experiment = recipes.get("digits-moco-v2")
    byol = Case("byol", {}, {}).made().method
    experiment = experiment.model_copy(update={"method": byol, "hard_examples": {}})
    assert looks_wrong(experiment) == ""
    assert looks_wrong(recipes.get("digits-moco-v2")) == ""
    monkeypatch.setattr(BYOL, "loss", of_variances)
    assert "encoder.project" in looks_wrong(experiment)
    embed = BYOL.embed
    monkeypatch.setattr(BYOL, "embed", lambda self, *given: 2 * embed(self, *given))
    assert looks_wrong(experiment) == ""


PLUGIN = """
from typing import Literal
from hexa import recipes
from hexa.core import HardExample
from hexa.recipes.experiment import override


class Grey(HardExample):
    kind: Literal["grey"] = "grey"

    def __call__(self, source, stream):
        return source.at(tuple((crop.detach().mean(1, True).expand_as(crop) + 0.7) for crop in source.crops))


def digits():
    return override(recipes.get("digits-moco-v2"), {"hard_examples.grey": {"kind": "grey"}})
"""


def test_check_command(tmp_path: Path, says: Says) -> None:
    """A broken law is reported; the pages that show how to add a method check unbroken ones."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    out = says(f"check {tmp_path / 'mine.py'}:digits", status=1).out
    assert out.count("ok ") + out.count("BROKEN") == len(LAWS)
    tried = "moco on 8 images of 12 pixels, fp64, CPU; cases: plain, adversarial, cutmix, grey"
    assert out.startswith(tried)
    assert "grey: pixels of grey range from" in out


FAULTY = """
from typing import Literal
from hexa import recipes
from hexa.methods.simclr import SimCLR, SimCLRConfig
from hexa.recipes.experiment import override


class FaultyConfig(SimCLRConfig):
    name: Literal["faulty"] = "faulty"


class Faulty(SimCLR, config=FaultyConfig):
    def {name}(self, *given):
        {line}


def digits():
    return override(recipes.get("digits-moco-v2"), {{"method": {{"name": "faulty"}}}})
"""


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("loss", "return super().loss(*given).detach()", "no gradient"),
        ("commit", "raise KeyError('x')", "mine.py:14"),
    ],
)
def test_check_of_a_fault(tmp_path: Path, says: Says, name: str, line: str, said: str) -> None:
    """Every error of a method is a broken law."""
    (tmp_path / "mine.py").write_text(FAULTY.format(name=name, line=line))
    out = says(f"check {tmp_path / 'mine.py'}:digits", status=1)
    assert said in out.out
    assert "Traceback" not in out.err
