"""Self-supervised visual pre-training with hard examples."""
