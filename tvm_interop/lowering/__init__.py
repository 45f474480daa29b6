"""Lowers a Relax module to a `Program`.

The modules in this folder rewrite and merge operators, and find groups of operators that kernel
libraries can compute. They fuse operators into units, one kernel each. They make a program of these
units, and divide large operators into parts.
"""
