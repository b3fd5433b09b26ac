"""Commands that train given weights on a person's images within a time."""

from __future__ import annotations

import os
import shlex
from typing import Any

from hexa.cli.declare import (
    DOMAINS,
    GROUPS,
    MACHINE,
    PLAN,
    SOURCES,
    Fields,
    Given,
    command,
    duration,
    import_networks,
    option,
)
from hexa.cli.training import shorthand

#: Options that both commands share.
_SHARED = (
    option("BACKBONE", "weights to begin from: a run · a file of weights · timm:NAME"),
    option("--data SOURCE", "images to learn from: " + SOURCES, required=True),
    option("--labelled SOURCE", "labelled images to judge by; labels are never trained on"),
    GROUPS,
    option(
        "--time TIME",
        "time for everything, such as 90s, 30m or 2h (default: 30m)",
        type=duration,
        default="30m",
    ),
    PLAN,
    *MACHINE,
)
_DESCRIBED = (
    "Look at the images, plan what fits the time, train, and compare start and result. Any field of the experiment is "
    "an option, as in `hexa pretrain {}`. After an interruption the same command continues."
)


@command(
    "train given weights further on your own images within a time, and say whether it helped",
    *_SHARED,
    option("--out RUN", "the run folder (default: runs/adapt)", default="runs/adapt"),
    option("--domain NAME", DOMAINS + " (default: by the look of the images)"),
    description=_DESCRIBED.format("adapt --help"),
    open=True,
)
def adapt(given: Given, extra: Fields) -> int:
    return _carry_out(given, extra)


@command(
    "make given weights robust against attacks on your own images within a time, and say what it gained and cost",
    *_SHARED,
    option(
        "--strength EPSILON",
        "radius of the attacks in grey levels (default: 4)",
        type=float,
        default=4.0,
    ),
    option(
        "--price POINTS",
        "points of clean accuracy that may be lost (default: 2)",
        type=float,
        default=2.0,
    ),
    option("--out RUN", "the run folder (default: runs/harden)", default="runs/harden"),
    option("--domain NAME", "kind of images: whether they may be mirrored"),
    description=_DESCRIBED.format("teacher --help"),
    open=True,
)
def harden(given: Given, extra: Fields) -> int:
    return _carry_out(given, extra, strength=given.strength, price=given.price)


def _carry_out(given: Given, extra: Fields, **more: Any) -> int:
    """Carry out a command; its exit status is 2 if the time is not enough to train. more: what only `harden` asks."""
    from hexa.runtime import targets

    out = targets.check_folder(given.out)
    import_networks()
    from hexa import recipes
    from hexa.adaptation.command import adapt as run
    from hexa.adaptation.harden import HardenRequest
    from hexa.adaptation.request import AdaptRequest
    from hexa.cli import fields
    from hexa.runtime.console import Console

    machine = {path: v for path, v in shorthand(given).items() if path.startswith("training.")}
    kind = HardenRequest if more else AdaptRequest
    request = kind(
        given.backbone,
        given.data,
        labelled=given.labelled,
        seconds=given.time,
        domain=given.domain,
        fields={**extra, **machine},
        groups=given.groups,
        **more,
    )
    known = fields.of_experiment(recipes.get(kind.recipe))
    fields.check_names(request.fields, known, given.options)
    go_on = "the same command"
    if os.environ.get("WORLD_SIZE", "1") == "1":
        go_on = shlex.join(["hexa", *given.arguments])
    record = run(
        request, out, only_plan=given.plan, console=Console(), begun=given.begun, go_on=go_on
    )
    return 2 if "verdict" in record and "winner" not in record else 0
