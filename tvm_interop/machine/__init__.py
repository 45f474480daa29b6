"""Describes this machine: its CPU and vector instructions, TVM targets, and kernel libraries."""
