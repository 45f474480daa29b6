"""Schedules, compiles and checks the kernels that TVM generates for a program's operators."""
