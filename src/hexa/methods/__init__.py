"""Self-supervised methods, one file each; a new one is found by being a file of this package."""

from hexa.methods.moco import MoCo, MoCoConfig

__all__ = ["MoCo", "MoCoConfig"]
