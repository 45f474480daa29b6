"""The package's version, from the metadata of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    for distribution in ("tvm-interop", "tvm-interop-runtime"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "0+unknown"  # The package runs from a source tree and is not installed.


__version__ = _installed()
