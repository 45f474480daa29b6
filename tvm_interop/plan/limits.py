"""Limits of the numbers in a plan, so that nothing computed from them overflows."""

DTYPES = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""Types of tensors, as NumPy spells them. `bfloat16` is for tensors between operators only."""

MAX_OPERATORS = 2**20
MAX_STREAMS = 2**12
MAX_THREADS = 2**12
MAX_DEVICES = 2**10
MAX_RANK = 32
MAX_REPEATED = 64
"""Largest number of inputs of an operator, or twice the number of the plan's values if that is
more. The limit keeps out a plan that only wastes time: an operator could otherwise read the same
values hundreds of thousands of times."""
MAX_DIMENSION = 2**40
MAX_PARAMETER = 2**31 - 1
"""Largest parameter of a library's operator, for example a stride or a number of groups."""
MAX_BYTES = 2**46
"""Most bytes of all tensors of a plan together: 64 TiB."""
