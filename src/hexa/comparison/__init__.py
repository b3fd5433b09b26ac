"""Backbones beside each other on the user's images, each at its own size: what `hexa compare` and `hexa adapt` say."""
