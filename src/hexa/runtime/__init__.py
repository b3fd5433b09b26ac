"""Processes, devices, precision, progress and named random streams: a leaf that every other package
may import."""
