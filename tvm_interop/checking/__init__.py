"""Proves that this project's plans, and other programs of several streams, are safe.

The checker is independent of the planners, so that it cannot share a mistake with them. Nothing
here imports a planner or a planner's helpers. The algorithm, `passes/check` in C++, includes none
of their headers.
"""
