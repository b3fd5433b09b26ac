"""Made-up costs and stored runs, so that plans and tables are tested without training."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from hexa_paper.benchmark import SCHEMES
from hexa_paper.plan import Costs, Job, Plan
from hexa_paper.request import Request, Target
from hexa_paper.studies import Arm, Study
from tests.reporting.conftest import make_run as make_run  # a fixture

#: The smallest networks.
TINY = {"network.widths": [4, 8], "training.device": "cpu", "training.precision": "fp32"}
#: What a benchmark would have measured.
MEASURED = {
    "schemes": {name: {"images_per_second": 1000.0} for name in SCHEMES},
    "views_images_per_second": 1e4,
    "machine": {"device": "a fast one", "threads": 3, "time": "2024-05-06T07:08:09+00:00"},
}


#: What `hexa reproduce all` would have found, without any part.
RECORD: dict[str, Any] = {
    "data": "cifar10",
    "images": 50_000,
    "seeds": [0, 1, 5],
    "epochs": 2,
    "passes": {"fine-tuned top-1": 2},
    "hours": {"given": 1.0, "spent": 0.5},
    "machine": {"device": "a processor", "threads": 2, "time": "2024-05-06T07:08:09+00:00"},
    "left_out": {"table4-moco": "no --data-voc"},
    "parts": {},
}


def request_for(data: str = "digits", **changes: Any) -> Request:
    return Request(data, targets=(Target(data),), num_images=1000, **changes)


def costs_for(arms: Iterable[Arm], *_: object, **__: object) -> Costs:
    """A second an image for the plain step, and one more for every further term."""
    return {arm.recipe: {name: 1.0 + len(terms) for name, terms in SCHEMES.items()} for arm in arms}


def jobs_of(study: Study, request: Request, costs: Costs | None = None) -> list[Job]:
    """The final jobs at the rates that a study has without a search."""
    plan = Plan(study, request, costs)
    return plan.final_jobs(plan.best_rates([]))


def stored_run(job: Job, **scores: float) -> dict[str, Any]:
    """What a job would have stored, with these metrics or made-up ones."""
    draw = random.Random(job.name)
    results = []
    for measure in job.measures:
        metrics = {
            name: scores.get(name, 50 + 10 * draw.random())
            for name in measure.metrics or ("mAP@1", "mAP@2")
        }
        results.append(
            {
                "title": measure.title,
                "protocol": f"{measure.protocol}/made-up",
                "metrics": metrics,
                "data": measure.source,
                "options": dict(measure.options),
                "data_facts": {
                    "test": {
                        "known_as": "CIFAR-10" if "cifar10" in measure.source else None,
                        "images": 10_000,
                    }
                },
                "details": {},
                "notes": [],
                "seed": job.experiment.seed,
            }
        )
    return job.record | {"results": results, "pretrain_seconds": 60.0, "environment": {}}
