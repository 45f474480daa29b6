"""Lowers a Relax module to a `Program`: rewriting, fusion, library calls, extraction, splitting."""
