"""Compiles a model to an artifact.

The compiler chooses kernels, measures the operators, schedules them on streams and makes a plan.
"""
