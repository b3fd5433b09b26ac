"""Made-up costs and stored runs, so that plans and tables are tested without training."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from hexa.measure.benchmark import SCHEMES
from hexa_paper.asking import Request, Target
from hexa_paper.plan import Costs, Job
from hexa_paper.studies import Study

MakeRun = Callable[..., dict[str, Any]]


def request_for(data: str = "digits", **changes: Any) -> Request:
    return Request(data, (Target(data),), 1000, **changes)


def costs_for(study: Study) -> Costs:
    """A second an image for the plain step, and one more for every further term."""
    return {arm.recipe: {name: 1.0 + len(terms) for name, terms in SCHEMES.items()} for arm in study.arms}


def stored_run(job: Job, **scores: float) -> dict[str, Any]:
    """What a job would have stored, with these metrics or made-up ones."""
    draw = random.Random(job.name)
    results = []
    for measure, source, *_ in job.measures:
        metrics = {name: scores.get(name, 50 + 10 * draw.random()) for name in measure.metrics or ("mAP@1", "mAP@2")}
        results.append(
            {
                "title": measure.title,
                "protocol": f"{measure.protocol}/made-up",
                "metrics": metrics,
                "data": source,
                "options": dict(measure.options),
                "data_facts": {"test": {"known_as": "CIFAR-10" if "cifar10" in source else None, "images": 10_000}},
                "details": {},
                "notes": [],
                "seed": job.experiment.seed,
            }
        )
    return job.record() | {"results": results, "pretrain_seconds": 60.0, "environment": {}}


@pytest.fixture
def request_of() -> Callable[..., Request]:
    return request_for
