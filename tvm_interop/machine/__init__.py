"""This computer: its CPU and vector instructions, targets, and the kernel libraries installed."""
