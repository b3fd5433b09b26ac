"""Comparison of backbones on the user's images: scores, intervals and verdicts of `hexa compare` and `hexa adapt`."""
