"""The recipes of imagenet.yaml: the paper's rows, its ablations, and the other methods as their papers have them."""

from __future__ import annotations

from functools import partial
from typing import Any

from hexa.recipes import register
from hexa.recipes.experiment import Experiment, validate
from hexa.runtime.parsing import read_resource
from hexa_paper import published

_DATA = read_resource("hexa_paper", "imagenet.yaml")


def _make(name: str, given: dict[str, Any]) -> Experiment:
    fields = {field: value for field, value in given.items() if field not in ("title", "published")}
    return validate(
        {"recipe": name, "data": "folder:imagenet", "network": {"name": "resnet50"}, **fields}
    )


def _doc(name: str, given: dict[str, Any], summary: str, cost: str, made: Experiment) -> str:
    times = 1 + (0.75 if "moco" in name else 1) * len(made.hard_examples)
    said = {
        "title": given["title"],
        "epochs": made.epochs,
        "batch": made.batch_size,
        "times": f"{times:g} times that of the plain method; " if made.hard_examples else "",
    }
    return f"""{summary.format(**said)}

    Command: torchrun --standalone --nproc-per-node 8 -m hexa pretrain {name} --data folder:imagenet

    Expected: {given.get("published") or published.expected(name)}. Not run here.

    Cost: {cost.format(**said)}
    """


for _group in (_DATA["rows"], _DATA["others"]):
    for _name, _given in _group["recipes"].items():
        register(
            _name,
            partial(_make, _name, _given),
            partial(_doc, _name, _given, _group["summary"], _group["cost"]),
        )
