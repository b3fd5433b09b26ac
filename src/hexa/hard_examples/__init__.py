"""Hard examples, one file per kind; a new kind is found because it is a file of this package."""

from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.cutmix import CutMix
from hexa.hard_examples.mixup import Mixup
from hexa.hard_examples.randaugment import RandAugment
from hexa.hard_examples.vat import VAT

__all__ = ["VAT", "Adversarial", "CutMix", "Mixup", "RandAugment"]
