"""Tracks of speedrun.py by other libraries, on one core: lightly, stable-pretraining, lightly-train from weights.

    OMP_NUM_THREADS=1 python benchmarks/speedrun/peers.py METHOD --track B --data parquet:PATH/cifar10 --out FOLDER
        --result FILE --epochs N [--rate RATE] [--batch 128] [--queue 1024] [--start WEIGHTS] [--seeds 0] [--held-out]

METHOD is moco, simclr, byol, swav or vicreg by lightly, or stable-simclr by stable-pretraining, from random weights
(A, B); train-simclr or train-dino by lightly-train, from --start (C). The rules are the track's: the same images of a
seed, the record's network (lightly's ResNet-18 has more parameters than A and B allow) or the given weights, processor
time from opening the images to trained weights without the import of packages, the track's evaluation.

What is lightly's own: views, losses, memory bank, heads, momentum update, and from its CIFAR-10 benchmark SGD with
momentum 0.9, weight decay 5e-4, a rate of 0.06 for each 128 images (SwAV: Adam, 0.001), a cosine, both views as
queries. VICReg is not in that benchmark; its views and optimizer are SimCLR's. Not as there: batch-norms are not
split. stable-pretraining's module, views, head, loss (a temperature of 0.5), LARS at 5 for batches of 256 and schedule
are those of its example on CIFAR-10. lightly-train has all its own settings but for rate, epochs, one process that
loads images, and the sizes of views and of scored images, which are those of the record. Images are PNG files. All
train in fp32 and decode images in each epoch. A row is written as soon as it exists, and rows that FILE has are not
made again.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss, SwaVLoss, VICRegLoss
from lightly.models.modules import heads
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms import SimCLRTransform, SwaVTransform
from speedrun import Track, _images, _measured, track
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from torchvision.io import encode_png

from hexa import recipes
from hexa.data import open_source
from hexa.nn.backbones import build
from hexa.recipes.experiment import override
from hexa.runtime.packages import processor_name, provenance, version
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone, load_backbone

#: lightly's views normalise by ImageNet's statistics.
STATISTICS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class MoCo(nn.Module):
    """Queries and keys of a momentum twin, both views in either role; the bank of the loss holds the keys."""

    def __init__(self, backbone: nn.Module, queue: int) -> None:
        super().__init__()
        self.query = nn.Sequential(backbone, heads.MoCoProjectionHead(128, 512, 128))
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


class Siamese(nn.Module):
    """Both views by one network, and a loss of both."""

    def __init__(self, backbone: nn.Module, head: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.query, self.loss = nn.Sequential(backbone, head), loss

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.query(one), self.query(two))
        return loss


class BYOL(nn.Module):
    """The momentum twin's embedding of the other view is predicted."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.query = nn.Sequential(backbone, heads.BYOLProjectionHead(128, 1024, 256))
        self.key = copy.deepcopy(self.query)
        deactivate_requires_grad(self.key)
        self.predictor, self.loss = (
            heads.BYOLPredictionHead(256, 1024, 256),
            NegativeCosineSimilarity(),
        )

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        update_momentum(self.query, self.key, 0.99)
        with torch.no_grad():
            keys = [self.key(view) for view in (two, one)]
        queries = [self.predictor(self.query(view)) for view in (one, two)]
        return torch.stack(
            [self.loss(query, key) for query, key in zip(queries, keys, strict=True)]
        ).mean()


class SwAV(nn.Module):
    """Each view's codes of 512 prototypes are predicted from the other."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.query = nn.Sequential(backbone, heads.SwaVProjectionHead(128, 512, 128))
        self.prototypes, self.loss = heads.SwaVPrototypes(128, 512), SwaVLoss()

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        self.prototypes.normalize()
        codes = [self.prototypes(nn.functional.normalize(self.query(view))) for view in (one, two)]
        loss: Tensor = self.loss(codes, [])
        return loss


LIGHTLY: dict[str, Callable[[nn.Module, int], nn.Module]] = {
    "moco": MoCo,
    "simclr": lambda backbone, _: Siamese(
        backbone, heads.SimCLRProjectionHead(128, 512, 128), NTXentLoss()
    ),
    "byol": lambda backbone, _: BYOL(backbone),
    "swav": lambda backbone, _: SwAV(backbone),
    "vicreg": lambda backbone, _: Siamese(
        backbone, heads.VICRegProjectionHead(128, 2048, 2048), VICRegLoss()
    ),
}
LIGHTLY_TRAIN, STABLE = ("train-simclr", "train-dino"), "stable-simclr"


def by_lightly(given: argparse.Namespace, one: Track, folder: Path, seed: int) -> Backbone:
    """The backbone after training on the images of a folder."""
    torch.manual_seed(seed)
    fields = {name: value for name, value in one.fields.items() if name.startswith("network.")}
    network = override(recipes.get(one.recipe), fields).network
    backbone = build(network)
    swav = given.method == "swav"
    two_crops = {
        "crop_sizes": (32,),
        "crop_counts": (2,),
        "crop_min_scales": (0.14,),
        "crop_max_scales": (1.0,),
    }
    views = SwaVTransform(**two_crops, cj_strength=0.5, gaussian_blur=0.0) if swav else None
    images = ImageFolder(folder, views or SimCLRTransform(input_size=32, gaussian_blur=0.0))
    loader = torch.utils.data.DataLoader(images, given.batch, shuffle=True, drop_last=True)
    model = LIGHTLY[given.method](backbone, given.queue).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = given.rate * given.batch / 128
    optimizer: Any = torch.optim.SGD(trained, rate, momentum=0.9, weight_decay=5e-4)
    if swav:
        optimizer = torch.optim.Adam(trained, rate, weight_decay=1e-6)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs)
    for _ in range(given.epochs):
        for (first, second), *_ in loader:
            optimizer.zero_grad()
            model(first, second).backward()
            optimizer.step()
        schedule.step()
    return Backbone(backbone.eval(), Preparation(*STATISTICS, 32, crop=1.0), network)


def by_stable_pretraining(
    given: argparse.Namespace, one: Track, folder: Path, seed: int
) -> Backbone:
    """The backbone after training on the images of a folder."""
    import lightning
    import stable_pretraining as stable
    from stable_pretraining import forward
    from stable_pretraining.data import transforms

    torch.manual_seed(seed)
    fields = {name: value for name, value in one.fields.items() if name.startswith("network.")}
    network = override(recipes.get(one.recipe), fields).network
    backbone = build(network)

    def view(least: float, *more: Any) -> Any:
        return transforms.Compose(
            transforms.RGB(),
            transforms.RandomResizedCrop((32, 32), scale=(least, 1.0)),
            transforms.RandomHorizontalFlip(p=0.5),
            transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, p=0.8),
            transforms.RandomGrayscale(p=0.2),
            *more,
            transforms.ToImage(**stable.data.static.CIFAR10),
        )

    views = transforms.MultiViewTransform(
        [view(0.2), view(0.08, transforms.RandomSolarize(threshold=0.5, p=0.2))]
    )
    images = stable.data.FromTorchDataset(
        ImageFolder(folder), names=["image", "label"], transform=views
    )
    loader = torch.utils.data.DataLoader(images, given.batch, shuffle=True, drop_last=True)
    layers = [
        nn.Linear(128, 2048),
        nn.BatchNorm1d(2048),
        nn.ReLU(inplace=True),
        nn.Linear(2048, 2048),
    ]
    layers += [nn.BatchNorm1d(2048), nn.ReLU(inplace=True), nn.Linear(2048, 256)]
    module = stable.Module(
        backbone=backbone,
        projector=nn.Sequential(*layers),
        forward=forward.simclr,
        simclr_loss=stable.losses.NTXEntLoss(temperature=0.5),
        optim={
            "optimizer": {"type": "LARS", "lr": given.rate, "weight_decay": 1e-6},
            "scheduler": {"type": "LinearWarmupCosineAnnealing"},
            "interval": "epoch",
        },
    )
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = lightning.Trainer(max_epochs=given.epochs, accelerator="cpu", devices=1, **quiet)
    stable.Manager(trainer=trainer, module=module, data=stable.data.DataModule(train=loader))()
    statistics = stable.data.static.CIFAR10
    preparation = Preparation(tuple(statistics["mean"]), tuple(statistics["std"]), 32, crop=1.0)
    return Backbone(backbone.cpu().eval(), preparation, network)


class Whole(nn.Module):
    """A timm network for lightly-train, whose own wrapper leaves out what EfficientNets have after the last stage."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def feature_dim(self) -> int:
        return int(self.network.num_features)

    def forward_features(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": self.network.forward_features(x)}

    def forward_pool(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"pooled_features": x["features"].mean((2, 3), keepdim=True)}

    def get_model(self) -> nn.Module:
        network: nn.Module = self.network
        return network


def by_lightly_train(given: argparse.Namespace, one: Track, folder: Path, seed: int) -> Backbone:
    """The given weights, trained on."""
    import lightly_train

    size = one.fields["views.size"]
    start = load_backbone(given.start)
    out = given.out / f"{given.method}-{given.epochs}-{given.rate}-{seed}"
    lightly_train.pretrain(
        out=out,
        data=folder,
        model=Whole(start.network),
        method=given.method.removeprefix("train-"),
        epochs=given.epochs,
        batch_size=given.batch,
        num_workers=0,
        devices=1,
        accelerator="cpu",
        precision="32-true",
        seed=seed,
        optim_args={"lr": given.rate},
        transform_args={
            "image_size": (size, size),
            "normalize": {"mean": start.mean, "std": start.std},
        },
        overwrite=True,
    )
    return start.eval().prepared(size=round(size * one.fields.get("views.test_scale", 1)))


def as_files(data: str, folder: Path) -> Path:
    """All training images of a source as PNG files of a folder for each class."""
    if not folder.exists():
        source, partial = open_source(data, "train"), folder.with_name(folder.name + "-partial")
        labels: Sequence[int] = np.asarray(source.labels).tolist()
        for row, label in enumerate(labels):
            file = partial / str(label) / f"{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode_png(source.decode(row)).numpy().tobytes())
        partial.rename(folder)
    return folder


def main() -> None:
    """Every seed that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=(*LIGHTLY, *LIGHTLY_TRAIN, STABLE))
    parser.add_argument("--track", default="B")
    parser.add_argument("--data", required=True)
    parser.add_argument("--start")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--queue", type=int, default=1024)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--held-out", action="store_true")
    given = parser.parse_args()
    if given.rate is None:
        given.rate = {"swav": 0.001, "train-simclr": 0.3, "train-dino": 0.03, STABLE: 5.0}.get(
            given.method, 0.06
        )
    if given.method in LIGHTLY_TRAIN and given.start is None:
        parser.error("lightly-train goes on from weights: give --start")
    torch.set_num_threads(1)
    one, train, package = track(given.track), by_lightly, "lightly"
    if given.method in LIGHTLY_TRAIN:
        train, package = by_lightly_train, "lightly_train"
    elif given.method == STABLE:
        train, package = by_stable_pretraining, "stable_pretraining"
    importlib.import_module(package)  # before the clock begins
    keys = ("method", "track", "epochs", "rate", "batch", "queue", "held_out")
    about: dict[str, Any] = {key: getattr(given, key) for key in keys}
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    for seed in given.seeds:
        key = about | {"seed": seed}
        if any(
            key.items() <= ({"track": "B"} | row).items() for row in stored["rows"]
        ):  # older rows have no track
            continue
        images, scored = _images(one, given.data, given.out, seed, given.held_out)
        kept = Path(images.partition(":")[2], "train")
        folder = (
            as_files(given.data, given.out / f"{one.data}-png") if one.per_class is None else kept
        )
        begun, clock = time.process_time(), time.perf_counter()
        found = train(given, one, folder, seed)
        row = {"seconds": time.process_time() - begun, "wall_seconds": time.perf_counter() - clock}
        row |= {"metrics": _measured(one, found, scored, given.held_out)}
        row |= provenance() | {"device": processor_name()}
        row |= {
            name: version(name)
            for name in ("torch", "lightly", "lightly-train", "stable-pretraining")
        }
        stored["rows"].append(key | row)
        given.result.write_text(json.dumps(stored, indent=1) + "\n")
        print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
