"""The compiled model as one file."""
