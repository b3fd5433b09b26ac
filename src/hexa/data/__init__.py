"""Images: named sources, decoding, views, batches."""

from hexa.data.sources.opening import open_source
from hexa.data.sources.source import ArraySource, Source, draw_part

__all__ = ["ArraySource", "Source", "draw_part", "open_source"]
