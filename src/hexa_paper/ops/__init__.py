"""Pure functions on tensors, for the compared methods."""
