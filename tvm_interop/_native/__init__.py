"""What Python sees of the shared library: where it is, and its classes and functions."""
