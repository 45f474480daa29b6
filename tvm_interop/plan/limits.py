"""How large the numbers of a plan may be, so that nothing computed from them overflows."""

DTYPES = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""Types of tensors, as NumPy spells them; `bfloat16` is for those between operators only."""

MAX_OPERATORS = 2**20
MAX_STREAMS = 2**12
MAX_THREADS = 2**12
MAX_DEVICES = 2**10
MAX_RANK = 32
MAX_REPEATED = 64
"""Inputs that an operator may have whatever the plan; others no more than twice the plan's values:
an operator that reads the same ones by the hundred thousand was made to take long."""
MAX_DIMENSION = 2**40
MAX_PARAMETER = 2**31 - 1
"""The largest parameter of a library's operator: a stride, say, or the number of groups."""
MAX_BYTES = 2**46
"""The most bytes of all tensors of a plan together: 64 TiB."""
