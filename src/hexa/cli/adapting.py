"""The commands `adapt` and `harden`, which train given weights on the user's images within a time limit."""

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
    option("BACKBONE", "start from these weights: a run folder · a file of weights · timm:NAME"),
    option("--data SOURCE", "train on these images: " + SOURCES, required=True),
    option(
        "--labelled SOURCE",
        "evaluate on these labelled images; training never uses their labels",
    ),
    GROUPS,
    option(
        "--time TIME",
        "limit the whole command to this time, such as 90s, 30m or 2h (default: 30m)",
        type=duration,
        default="30m",
    ),
    PLAN,
    *MACHINE,
)
_DESCRIBED = (
    "Inspect the images, plan a training that fits the time, train, and compare the result with the initial weights. "
    "Every field of the experiment is an option, as in `hexa pretrain {}`. After an interruption, the same command "
    "continues."
)


@command(
    "continue training a backbone on your own images, and measure whether it helped",
    *_SHARED,
    option("--out RUN", "write the run to this folder (default: runs/adapt)", default="runs/adapt"),
    option("--domain NAME", DOMAINS + " (default: by the look of the images)"),
    description=_DESCRIBED.format("adapt --help"),
    open=True,
)
def adapt(given: Given, extra: Fields) -> int:
    return _carry_out(given, extra)


@command(
    "make a backbone robust against attacks on your own images, and measure gain and cost",
    *_SHARED,
    option(
        "--strength EPSILON",
        "attack with radius ε = EPSILON/255 during training (default: 4)",
        type=float,
        default=4.0,
    ),
    option(
        "--price POINTS",
        "allow clean accuracy to fall by this many percentage points (default: 2)",
        type=float,
        default=2.0,
    ),
    option(
        "--out RUN", "write the run to this folder (default: runs/harden)", default="runs/harden"
    ),
    option(
        "--domain NAME",
        "choose by the kind of images whether views are mirrored (default: by the look of the images)",
    ),
    description=_DESCRIBED.format("teacher --help"),
    open=True,
)
def harden(given: Given, extra: Fields) -> int:
    return _carry_out(given, extra, strength=given.strength, price=given.price)


def _carry_out(given: Given, extra: Fields, **more: Any) -> int:
    """Run the command; return exit status 2 if the time is too short to train. more: further options of `harden`."""
    from hexa.runtime import files

    out = files.check_target_folder(given.out)
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
