"""Track B by another library: lightly's MoCo-v2 and SimCLR with the settings of its CIFAR-10 benchmark, on one core.

    OMP_NUM_THREADS=1 python benchmarks/speedrun/peers.py moco|simclr --data parquet:PATH/cifar10 --out FOLDER
        --result FILE --epochs N [--rate 0.06] [--batch 512] [--queue 4096] [--seeds 0] [--held-out]

The rules are those of `hexa speedrun B`: the same 2,000 images of a seed, the record's network (lightly's ResNet-18
has more parameters than the track allows), processor time from opening the images to trained weights, k-NN with all
others as neighbours. What is lightly's own: views (`SimCLRTransform`), loss, memory bank, heads, momentum update, and
from its benchmark SGD with momentum 0.9, weight decay 5e-4, a rate of 0.06 for each 128 images, a cosine, both views
as queries. Not as there: batch-norms are not split. It trains in fp32 and decodes images in each epoch, as that
benchmark does on a CPU. A row is written as soon as it exists, and rows that FILE has are not made again.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import MoCoProjectionHead, SimCLRProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms import SimCLRTransform
from torch import Tensor, nn
from torchvision.datasets import ImageFolder

from hexa import recipes
from hexa.measure.speedrun import _images, _measured, track
from hexa.nn.backbones import build
from hexa.recipes.experiment import override
from hexa.runtime.packages import processor_name, provenance, version
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone

TRACK = track("B")
NETWORK = override(
    recipes.get(TRACK.recipe), {name: value for name, value in TRACK.fields.items() if name.startswith("network.")}
).network
#: lightly's views normalise by ImageNet's statistics.
PREPARATION = Preparation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 32, crop=1.0)


class MoCo(nn.Module):
    """Queries and keys of a momentum twin, both views in either role; the bank of the loss holds the keys."""

    def __init__(self, backbone: nn.Module, queue: int) -> None:
        super().__init__()
        self.query = nn.Sequential(backbone, MoCoProjectionHead(128, 512, 128))
        self.key = copy.deepcopy(self.query)
        deactivate_requires_grad(self.key)
        self.loss = NTXentLoss(temperature=0.1, memory_bank_size=(queue, 128))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        update_momentum(self.query, self.key, 0.99)
        return 0.5 * (self._half(one, two) + self._half(two, one))

    def _half(self, query: Tensor, key: Tensor) -> Tensor:
        with torch.no_grad():
            keys = self.key(key)
        loss: Tensor = self.loss(self.query(query), keys)
        return loss


class SimCLR(nn.Module):
    """Both views of all images against each other."""

    def __init__(self, backbone: nn.Module, _: int) -> None:
        super().__init__()
        self.query = nn.Sequential(backbone, SimCLRProjectionHead(128, 512, 128))
        self.loss = NTXentLoss()

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.query(one), self.query(two))
        return loss


METHODS = {"moco": MoCo, "simclr": SimCLR}


def train(method: str, folder: Path, seed: int, epochs: int, rate: float, batch: int, queue: int) -> nn.Module:
    """The backbone after training on the images of a folder."""
    torch.manual_seed(seed)
    backbone = build(NETWORK)
    images = ImageFolder(folder / "train", SimCLRTransform(input_size=32, gaussian_blur=0.0))
    loader = torch.utils.data.DataLoader(images, batch, shuffle=True, drop_last=True)
    model = METHODS[method](backbone, queue).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, rate * batch / 128, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for (one, two), *_ in loader:
            optimizer.zero_grad()
            model(one, two).backward()
            optimizer.step()
        schedule.step()
    return backbone


def main() -> None:
    """Every seed that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.06)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--queue", type=int, default=4096)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--held-out", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keys = ("method", "epochs", "rate", "batch", "queue", "held_out")
    about: dict[str, Any] = {key: getattr(given, key) for key in keys}
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    for seed in given.seeds:
        key = about | {"seed": seed}
        if any(key.items() <= row.items() for row in stored["rows"]):
            continue
        images, scored = _images(TRACK, given.data, given.out, seed, given.held_out)
        begun, clock = time.process_time(), time.perf_counter()
        folder = Path(images.partition(":")[2])
        fields = (given.epochs, given.rate, given.batch, given.queue)
        backbone = train(given.method, folder, seed, *fields).eval()
        row = {"seconds": time.process_time() - begun, "wall_seconds": time.perf_counter() - clock}
        found = Backbone(backbone, PREPARATION, NETWORK)
        row |= {"metrics": _measured(TRACK, found, scored, given.held_out)}
        row |= provenance() | {"device": processor_name(), "torch": version("torch"), "lightly": version("lightly")}
        stored["rows"].append(key | row)
        given.result.write_text(json.dumps(stored, indent=1) + "\n")
        print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
