"""See the hard examples that a run, or a recipe's random network, makes of real images."""
