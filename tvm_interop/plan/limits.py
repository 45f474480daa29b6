"""Limits of the numbers in a plan.

Within these limits, no computation with the numbers overflows.
"""

DTYPES = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""Types of tensors, as NumPy spells them. NumPy knows `bfloat16` once `ml_dtypes` is imported."""

MAX_OPERATORS = 2**20
MAX_STREAMS = 2**12
MAX_THREADS = 2**12
MAX_DEVICES = 2**10
MAX_RANK = 32
MAX_REPEATED = 64
"""The largest number of inputs of an operator, unless twice the number of the plan's values is
larger. Without this limit, an attacker could make a file in which an operator reads the same values
hundreds of thousands of times, to waste time.
"""
MAX_DIMENSION = 2**40
MAX_PARAMETER = 2**31 - 1
"""Largest parameter of a library's operator, for example a stride or a number of groups."""
MAX_BYTES = 2**46
"""Largest total size of all tensors of a plan, in bytes: 64 TiB."""
