"""The built-in serving policies, one per file."""

# Importing a module registers its policy, so that `make_policy` finds it by name.
from . import auto, batching, pos, search, sequential, streams, top

__all__ = ["auto", "batching", "pos", "search", "sequential", "streams", "top"]
