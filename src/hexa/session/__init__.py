"""Carrying out an experiment: the run and its folder, its monitor, and what it costs on this machine."""
