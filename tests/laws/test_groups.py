"""Batches that `bn_groups` does not divide: runs of images stay separate, for every method and
number of crops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hexa.config import ConfigError, choices
from hexa.core import MAIN, MethodConfig
from hexa.testing.cases import SIZE, one_step
from tests.laws import cases
from tests.laws.cases import Case

GROUPS = {"bn_groups": 3}
#: Of eight images: runs of 3, 3 and 2.
LAST_RUN = slice(6, 8)

CROPS = {"as it needs": (), "of two sizes": (SIZE, SIZE, 8, 8, 8)}


@pytest.fixture(
    params=[
        (name, crops) for name in choices(MethodConfig, "name", "hexa.methods") for crops in CROPS
    ],
    ids=str,
)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    method, crops = request.param
    if CROPS[crops]:
        monkeypatch.setitem(cases.CROPS, method, CROPS[crops])
    found = Case(method, {"contrast.bn_groups": 3} if method == "pcl-v2" else GROUPS)
    try:
        found.build()
    except ConfigError as error:
        pytest.skip(f"refused in a line: {error}")
    return found


def test_group_isolation(case: Case) -> None:
    """The images of one run of a batch do not enter another."""
    method = case.build()
    data = case.batch()
    other = replace(data, crops=tuple(crop.clone() for crop in data.crops))
    for crop in other.crops:
        crop[LAST_RUN] = 1 - crop[LAST_RUN]
    found = method.embed(method.anchors(data), MAIN)
    changed = method.embed(method.anchors(other), MAIN)
    torch.testing.assert_close(changed[:, :6], found[:, :6], rtol=0, atol=1e-12)
    assert not torch.allclose(changed[:, LAST_RUN], found[:, LAST_RUN])


def test_group_division_of_shares(case: Case) -> None:
    """Five of eight images: runs of 2, 2 and 1."""
    whole = replace(
        case, hard_examples={"adversarial": {"fraction": 0.6}, "cutmix": {"fraction": 0.6}}
    )
    whole = whole if whole.fits else replace(case, hard_examples={"adversarial": {"fraction": 0.6}})
    method = whole.build()
    objective = whole.objective(method)
    one_step(
        objective,
        torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1),
        whole.batch(),
    )
    assert all(bool(value.isfinite().all()) for value in method.state_dict().values())
