"""The package's version, as its distribution has it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tvm-interop")
except PackageNotFoundError:  # Run from a source tree against a library built by hand.
    __version__ = "0+unknown"
