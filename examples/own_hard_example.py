"""A hard example of your own in one file: the worst of a few rotations and shifts of each view.

Small rotations and shifts fool networks (Engstrom et al., ICML 2019). The worst-of-k attack of that paper draws k
rotations and shifts of each view and keeps the one with the largest loss. It needs no gradient. Each try costs one
forward pass.

Run: python examples/own_hard_example.py
"""

import argparse
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

import hexa
from hexa import recipes
from hexa.core import Example, HardExample
from hexa.ops import draws
from hexa.recipes.experiment import Experiment, override
from hexa.run.visualize import visualize
from hexa.runtime.random import Stream


class WorstTurn(HardExample):
    """The rotation and shift of each view with the largest loss; the pseudo-label stays."""

    kind: Literal["worst-turn"] = "worst-turn"
    tries: PositiveInt = 3
    """Rotations and shifts that are tried, k."""
    angle: PositiveFloat = 30.0
    """Largest rotation in degrees, to either side."""
    shift: PositiveFloat = 0.1
    """Largest shift as a share of the side of a view, in either direction."""

    def __call__(self, source: Example, stream: Stream) -> Example:
        views = tuple(crop.detach() for crop in source.crops)
        worst = self._turned(views, stream.child("try", 0))
        highest = self._loss(source, worst)  # [V, B]
        for number in range(1, self.tries):
            # Try one more rotation and shift of each view.
            turned = self._turned(views, stream.child("try", number))
            loss = self._loss(source, turned)
            # Keep it if its loss is larger.
            harder = loss > highest
            pairs = zip(harder, turned, worst, strict=True)
            worst = tuple(torch.where(h[:, None, None, None], new, old) for h, new, old in pairs)
            highest = torch.maximum(loss, highest)
        return source.at(worst)

    @torch.no_grad()
    def _loss(self, source: Example, views: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of each view, [V, B], without moving statistics of batch-norms."""
        return source.score_at(views)

    def _turned(self, views: tuple[Tensor, ...], stream: Stream) -> tuple[Tensor, ...]:
        """Turn and shift each view [B, C, S, S] by amounts of its own."""
        return tuple(
            self._turn(view, stream.child("view", number)) for number, view in enumerate(views)
        )

    def _turn(self, view: Tensor, stream: Stream) -> Tensor:
        # Draw from the stream, so that a resumed run draws the same.
        amounts = 2 * draws.uniforms(len(view), 3, stream) - 1  # [B, 3], between -1 and 1
        angle = torch.deg2rad(self.angle * amounts[:, 0])
        # In coordinates of affine_grid a side has the length 2.
        shift = 2 * self.shift * amounts[:, 1:]
        first = torch.stack([angle.cos(), -angle.sin(), shift[:, 0]], dim=1)
        second = torch.stack([angle.sin(), angle.cos(), shift[:, 1]], dim=1)
        theta = torch.stack([first, second], dim=1).to(view)  # [B, 2, 3]
        grid = F.affine_grid(theta, list(view.shape), align_corners=False)
        turned = F.grid_sample(view, grid, padding_mode="border", align_corners=False)
        # Bilinear interpolation stays in [0, 1] up to rounding.
        return turned.clamp(0, 1)


def digits() -> Experiment:
    """Return the recipe: SimCLR on the embedded digits, with worst rotations and shifts."""
    changes = {
        "network.widths": (16, 32, 64),
        "method": {"name": "simclr", "temperature": 0.2},
        "hard_examples": {"worst-turn": {"kind": "worst-turn"}},
        "optimizer": {"name": "adamw", "learning_rate": 0.002},
        "epochs": 8,
    }
    return override(recipes.get("digits-moco-v2"), changes)


def main() -> None:
    parser = argparse.ArgumentParser(description="SimCLR with a hard example of your own on digits")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the images (default: 8)")
    parser.add_argument("--out", default="runs/worst-turn", help="folder of the run")
    options = parser.parse_args()
    recipe = f"{__file__}:digits"
    before = hexa.evaluate("knn", f"random:{recipe}", "digits")
    print(f"k-NN of random features: {before['metrics']['top1']:.1f} %")
    run = hexa.pretrain(recipe, epochs=options.epochs, out=options.out)
    after = hexa.evaluate("knn", run, "digits")
    print(f"k-NN of trained features: {after['metrics']['top1']:.1f} %")
    picture = visualize(run, "digits", run / "worst-turn.png", num_images=4)
    print(f"picture: {picture}")


if __name__ == "__main__":
    main()
