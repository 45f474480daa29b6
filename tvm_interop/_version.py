"""The package's version, from the metadata of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tvm-interop")
except PackageNotFoundError:  # The package runs from a source tree and is not installed.
    __version__ = "0+unknown"
