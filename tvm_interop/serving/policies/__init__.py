"""The policies: one a file, found by name."""

# Each registers itself under its name.
from . import sequential, streams

__all__ = ["sequential", "streams"]
