"""Models to try things on, made on the spot: nothing is downloaded.

`list` names the networks the papers measure, `build` makes one, `skeleton` makes it without
weights; `light` holds the architectures that come with the onnx package.
"""

from . import light
from .catalog import build, skeleton
from .catalog import names as list

__all__ = ["build", "light", "list", "skeleton"]
