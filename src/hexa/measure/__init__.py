"""What this machine does: images per second of each scheme, and what is missing or wrong."""
