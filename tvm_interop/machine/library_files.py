"""Finds the file of a kernel library, without loading it."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import NamedTuple


class LibraryFile(NamedTuple):
    """Where to look for a kernel library.

    Attributes
    ----------
    override: the environment variable that can name the library's file.
    package: the Python package that contains the library.
    file: the library's file name. The system's loader looks for it if the package is not installed.
    """

    override: str
    package: str
    file: str

    def find(self) -> str:
        """Return the path or name of the file to load."""
        override = os.environ.get(self.override)
        if override:
            return override
        beside_python = os.path.join(sys.prefix, "lib", self.file)
        # Look in the usual folder first. This is faster than reading the package's metadata.
        if os.path.isfile(beside_python):
            return os.path.realpath(beside_python)
        import importlib.metadata

        try:
            files = importlib.metadata.files(self.package) or ()
        except importlib.metadata.PackageNotFoundError:
            files = ()
        for file in files:
            if file.name == self.file:
                return os.path.realpath(str(file.locate()))
        return self.file


_END_BYTES = 1 << 16


def file_identity(path: str) -> str:
    """Return a text that identifies a library's file. Different builds of a library have different
    texts.

    The text is computed from the beginning and the end of the file. They hold the tables of
    functions and sections, which differ between builds.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open(path, "rb") as file:
        first = file.read(_END_BYTES)
        nbytes = file.seek(0, os.SEEK_END)
        file.seek(max(nbytes - _END_BYTES, 0))
        return f"{nbytes} bytes, {hashlib.sha256(first + file.read()).hexdigest()}"


ONEDNN = LibraryFile("TVM_INTEROP_ONEDNN_LIBRARY", "onednn-cpu-gomp", "libdnnl.so.3")
CUDNN = LibraryFile("TVM_INTEROP_CUDNN_LIBRARY", "nvidia-cudnn-cu13", "libcudnn.so.9")
CUBLASLT = LibraryFile("TVM_INTEROP_CUBLASLT_LIBRARY", "nvidia-cublas", "libcublasLt.so.13")
