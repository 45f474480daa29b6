"""Explains why operators of a model run concurrently or not, and compares artifacts."""
