"""The objective of hexa in a LightningModule: SimCLR with adversarial views, trained by PyTorch Lightning on one device.

Run: python examples/lightning_module.py (needs the package pytorch-lightning)
"""

import argparse

try:
    import pytorch_lightning as pl
except ModuleNotFoundError:
    raise SystemExit(
        "this example needs PyTorch Lightning: pip install pytorch-lightning"
    ) from None

import torch
from torch.utils.data import DataLoader, TensorDataset

import hexa
from hexa.core import Batch, Setting
from hexa.data import open_source
from hexa.data.views.making import Views, ViewsConfig
from hexa.hard_examples import Adversarial
from hexa.methods import SimCLR, SimCLRConfig
from hexa.nn import backbones
from hexa.objective import Objective
from hexa.runtime.random import Stream
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone

VIEW_SIZE = 16  # pixels
NETWORK = backbones.NetworkConfig(name="small-resnet", widths=(16, 32, 64))


class HexaModule(pl.LightningModule):
    """A method with its hard examples. The losses of a step are back-propagated one after another."""

    def __init__(self, objective: Objective, views: Views, seed: int) -> None:
        super().__init__()
        # Leave backward and step to training_step, because a step has several backward passes.
        self.automatic_optimization = False
        self.objective = objective
        self.method = objective.method
        self.views = views
        self.stream = Stream(seed)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.method.parameters(), lr=0.002)

    def training_step(self, data: list[torch.Tensor], _: int) -> None:
        images, index = data
        stream = self.stream.child("step", self.global_step)
        batch = Batch(self.views(images, stream), index, stream, self.global_step)
        for term in self.objective.losses(batch):
            self.manual_backward(term.loss)
            self.log_dict({name: part.loss for name, part in term.parts.items()})
        self.optimizers().step()
        self.optimizers().zero_grad()
        self.objective.commit(batch)

    def on_train_epoch_end(self) -> None:
        if (self.current_epoch + 1) % 2 == 0:
            metrics = self.trainer.callback_metrics
            terms = ", ".join(f"{name} {float(loss):.3f}" for name, loss in metrics.items())
            print(f"epoch {self.current_epoch + 1}: {terms}")


def knn_accuracy(backbone: torch.nn.Module) -> float:
    """Return the k-NN accuracy of frozen features on the test images, in percent."""
    ready = Backbone(backbone, Preparation(NETWORK.mean, NETWORK.std, VIEW_SIZE), NETWORK)
    return hexa.evaluate("knn", ready, "digits")["metrics"]["top1"]


def main() -> None:
    parser = argparse.ArgumentParser(description="SimCLR with adversarial views in Lightning")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the images (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws")
    options = parser.parse_args()
    pl.seed_everything(options.seed)

    # Build the method around a small ResNet. Adversarial views get batch-norms of their own, "aux".
    images = open_source("digits", "train").images
    setting = Setting(data_size=len(images), batch_size=128, branches=("main", "aux"))
    method = SimCLR(SimCLRConfig(temperature=0.2), backbones.build(NETWORK), setting)
    objective = Objective(method, {"adversarial": Adversarial()})
    views = Views(ViewsConfig(size=VIEW_SIZE, scale=(0.3, 1.0), flip_probability=0.0))
    print(f"k-NN of random features: {knn_accuracy(method.backbone):.1f} %")

    # Train it like any other module.
    data = TensorDataset(images, torch.arange(len(images)))
    loader = DataLoader(data, batch_size=128, shuffle=True, drop_last=True)
    trainer = pl.Trainer(
        max_epochs=options.epochs,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    method.train()
    trainer.fit(HexaModule(objective, views, options.seed), loader)
    print(f"k-NN of trained features: {knn_accuracy(method.backbone):.1f} %")


if __name__ == "__main__":
    main()
