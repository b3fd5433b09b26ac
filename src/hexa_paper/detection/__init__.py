"""Detectors on frozen or trained backbones: images, training, scoring."""
