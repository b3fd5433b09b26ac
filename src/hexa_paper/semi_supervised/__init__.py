"""Semi-supervised learners: pseudo-label classifiers whose label set is the classes, a few of which are known."""
