"""Measurements of this machine: costs of training, and diagnostics."""
