"""The package's version, from the metadata of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tvm-interop")
except PackageNotFoundError:  # Run from a source tree against a library built by hand.
    __version__ = "0+unknown"
