"""Images: sources by name, decoding, views, and batches of them."""

from hexa.data.sources.opening import ArraySource, Source, open_source

__all__ = ["ArraySource", "Source", "open_source"]
