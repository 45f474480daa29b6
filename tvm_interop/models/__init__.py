"""Models to try things on, made on the spot: nothing is downloaded."""

from . import light

__all__ = ["light"]
