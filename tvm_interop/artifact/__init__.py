"""Reads, writes, checks and signs the file that holds a compiled model."""
