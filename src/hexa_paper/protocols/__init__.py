"""Evaluation protocols of the paper, one file each, in addition to those of `hexa.evaluation.protocols`."""
