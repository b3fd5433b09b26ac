"""A run: built from an experiment, trained in a folder of its own, resumed, monitored and looked at."""
