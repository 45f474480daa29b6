"""Lowers a Relax module to a `Program`.

The modules here rewrite and merge operators, group the operators that kernel libraries can compute,
fuse operators into units, extract the units into a program, and divide large operators into parts.
"""
