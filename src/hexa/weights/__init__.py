"""Backbones in files: hexa's own and those of other software, the preparation of their images, and
export."""
