"""HEXA-MoCo in one file: MoCo-v2 that learns from clean, adversarial and cut-mixed views.

A step has five parts (Li et al., 2020, arXiv 2012.13493):

1. The momentum encoder turns the second view of every image into its key, the pseudo-label.
2. The clean view x has the loss L_std: recognise the own key among the keys of earlier steps.
3. The adversarial view is x + ε · sign ∂L_std/∂x. The backward pass of L_std leaves this gradient behind.
4. The cut-mixed view has a box of another image. Both keys are its pseudo-labels, weighted by area.
5. The sum L_std + L_adv + L_cmx updates the encoder; the momentum encoder and the queue of keys follow.

Run: python examples/hexa_moco.py
"""

import argparse

import torch

import hexa
from hexa.core import Setting
from hexa.data import open_source
from hexa.data.loading.loaders import PretrainLoader
from hexa.data.views.making import Views, ViewsConfig
from hexa.hard_examples import Adversarial, CutMix
from hexa.methods import MoCo, MoCoConfig
from hexa.nn import backbones
from hexa.objective import Objective
from hexa.runtime.random import Stream
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone

parser = argparse.ArgumentParser(description="HEXA-MoCo on handwritten digits")
parser.add_argument("--epochs", type=int, default=24, help="passes over the images (default: 24)")
parser.add_argument("--seed", type=int, default=0, help="seed of all random draws (default: 0)")
options = parser.parse_args()

BATCH_SIZE = 128
VIEW_SIZE = 16  # pixels
LEARNING_RATE = 0.002
MEAN = (0.3, 0.3, 0.3)  # of the pixels of each channel
STD = (0.37, 0.37, 0.37)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Open the images. "folder:PATH" and "cifar10" work alike.
images = open_source("digits", "train")

# Draw two views of each image: crops and contrast, because digits have no colour and no mirror image.
views = ViewsConfig(
    size=VIEW_SIZE,
    scale=(0.3, 1.0),
    saturation=0.0,
    hue=0.0,
    flip_probability=0.0,
    grayscale_probability=0.0,
    blur_probability=0.0,
)
loader = PretrainLoader(images, Views(views), BATCH_SIZE, Stream(options.seed), DEVICE)

# Build MoCo around a small ResNet. Adversarial views get batch-norms of their own, "aux".
torch.manual_seed(options.seed)
network = backbones.NetworkConfig(name="small-resnet", widths=(16, 32, 64))
setting = Setting(
    data_size=len(images),
    batch_size=BATCH_SIZE,
    branches=("main", "aux"),
    mean=MEAN,
    std=STD,
    seed=options.seed,
)
# Shuffle keys between 4 groups of batch statistics, so that statistics do not give keys away.
config = MoCoConfig(queue_size=512, momentum=0.99, temperature=0.1, bn_groups=4)
method = MoCo(config, backbones.build(network), setting).to(DEVICE)

# Add the hard examples: ε = 1/255, and boxes of size Beta(5, 3), as published.
hard_examples = {"adversarial": Adversarial(epsilon=1.0), "cutmix": CutMix()}
objective = Objective(method, hard_examples)

# Warm up and anneal the learning rate.
learned = [parameter for parameter in method.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(learned, lr=LEARNING_RATE)
num_steps = options.epochs * loader.steps_per_epoch
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, num_steps)


def knn_accuracy() -> float:
    """Return the k-NN accuracy of the frozen features on the test images, in percent."""
    backbone = Backbone(method.backbone, Preparation(MEAN, STD, VIEW_SIZE), network)
    result = hexa.evaluate("knn", backbone, "digits", device=DEVICE)
    method.train()
    return result["metrics"]["top1"]


print(f"k-NN of random features: {knn_accuracy():.1f} %")

for epoch in range(options.epochs):
    for batch in loader.epoch(epoch):
        losses = {}
        # Back-propagate one term after another: clean, adversarial, cut-mixed.
        for term in objective.losses(batch):
            term.loss.backward()
            losses |= {name: part.loss for name, part in term.parts.items()}
        # Update the encoder.
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        # Let the momentum encoder follow, and put the new keys into the queue.
        objective.commit(batch)
    if (epoch + 1) % 4 == 0:
        terms = ", ".join(f"{name} {float(loss):.3f}" for name, loss in losses.items())
        print(f"epoch {epoch + 1}: {terms}")

print(f"k-NN of trained features: {knn_accuracy():.1f} %")
