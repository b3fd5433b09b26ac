"""Batches of images and views, for training and for evaluation."""
