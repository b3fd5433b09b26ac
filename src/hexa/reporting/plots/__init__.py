"""The paper's figures as functions that return a matplotlib Figure, or a Gallery to draw."""
