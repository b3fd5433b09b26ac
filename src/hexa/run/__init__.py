"""Runs of experiments: building, training in a run folder, resuming, monitoring, visualisation."""
