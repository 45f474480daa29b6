"""Loads the shared library `libtvm_interop.so` and wraps its classes and functions for Python."""
