"""Backbones in files: hexa's own and those of other software, how images are prepared for them, and export."""
