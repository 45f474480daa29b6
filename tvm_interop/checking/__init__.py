"""Proves that this project's plans, and other programs of several streams, are safe.

The checker is independent of the planners, so that it cannot share a mistake with them. No module
of this package imports a planner or a planner's helpers. The checker's algorithm is the C++ code in
`passes/check`, which includes no header of the planners.
"""
