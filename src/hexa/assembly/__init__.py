"""From an experiment to the objects that carry it out: method, objective, settings, and the weights it starts from."""
