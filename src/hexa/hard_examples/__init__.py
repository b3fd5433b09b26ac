"""Hard examples, one file a kind; a new kind is found by being a file of this package."""

from hexa.hard_examples.adversarial import Adversarial, AdversarialConfig
from hexa.hard_examples.chain import Chain, ChainConfig
from hexa.hard_examples.cutmix import CutMix, CutMixConfig
from hexa.hard_examples.mixup import Mixup, MixupConfig
from hexa.hard_examples.unmix import UnMix, UnMixConfig
from hexa.hard_examples.vat import VAT, VATConfig

__all__ = [
    "VAT",
    "Adversarial",
    "AdversarialConfig",
    "Chain",
    "ChainConfig",
    "CutMix",
    "CutMixConfig",
    "Mixup",
    "MixupConfig",
    "UnMix",
    "UnMixConfig",
    "VATConfig",
]
