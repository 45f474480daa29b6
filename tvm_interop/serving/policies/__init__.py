"""The policies: one a file, found by name."""

# Each registers itself under its name.
from . import auto, batching, pos, search, sequential, streams, top

__all__ = ["auto", "batching", "pos", "search", "sequential", "streams", "top"]
