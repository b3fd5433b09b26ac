"""Hard examples, one file a kind; a new kind is found by being a file of this package."""

from hexa.hard_examples.adversarial import Adversarial, AdversarialConfig
from hexa.hard_examples.cutmix import CutMix, CutMixConfig

__all__ = ["Adversarial", "AdversarialConfig", "CutMix", "CutMixConfig"]
