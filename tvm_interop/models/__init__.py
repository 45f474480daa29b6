"""Makes networks by name, as ONNX models. Nothing is downloaded.

`list` gives the names of the networks, including all that the six papers in `CITATION.cff` measure.
`build` makes a network, and `skeleton` makes it without weights. `light` makes the architectures
that come with the onnx package.
"""

from . import light
from .catalog import build, skeleton
from .catalog import names as list

__all__ = ["build", "light", "list", "skeleton"]
