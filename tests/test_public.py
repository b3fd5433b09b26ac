"""The functions of `hexa` itself: what they take, and that they do not depend on the caller's modes of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hexa
from tests.evaluation.given import QUIET
from tests.refusals import one_line
from tests.run.test_run import TINY

RANDOM = "random:small-resnet-4-8"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: hexa.evaluate("knn", RANDOM, Path("/no")), "/no; give the path of a folder"),  # type: ignore[arg-type]
        (
            lambda: hexa.adapt("x", "digits", labeled="y"),
            "labeled: unknown field; known: .*",
        ),
        (
            lambda: hexa.compare(["a", "b"], "digits", tim="9s"),
            "unknown option 'tim'; did you mean 'time'\\?",
        ),
        (lambda: hexa.load_backbone(torch.nn.Linear(2, 2)), "a loaded backbone, not a Linear"),  # type: ignore[arg-type]
        (lambda: hexa.compare("a", "digits"), "compare: backbones must be a list, got 'a'"),
    ],
)
def test_public_arguments(call: Callable[[], object], expected: str) -> None:
    with one_line(f"{expected}$", ValueError):
        call()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_caller_grad_mode(mode: Callable[[], Any], tmp_path: Path) -> None:
    """The caller's mode changes nothing."""
    fields = {**TINY, "network.widths": [16, 16], "batch_size": 256}
    quiet = QUIET | {"epochs": 1, "preset": "cifar"}

    def trained(name: str) -> tuple[str, dict[str, float]]:
        backbone = hexa.load_backbone(
            hexa.pretrain("digits-hexa-moco", out=tmp_path / name, **fields)
        )
        return backbone.content_hash(), hexa.evaluate("linear", backbone, "digits", **quiet)[
            "metrics"
        ]

    plain = trained("plain")
    with mode():
        assert trained("other") == plain
        assert not torch.is_grad_enabled()
