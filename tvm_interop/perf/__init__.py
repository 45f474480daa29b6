"""Measures artifacts, and other engines beside them, each in a process of its own."""
