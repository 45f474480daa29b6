"""Explains why operators of a model do or do not run concurrently, and compares artifacts."""
