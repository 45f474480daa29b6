"""Random graphs with an oracle: `python -m tests.random_graphs 0 200 --log graphs.jsonl`.

`generator` makes graphs of some eighty kinds of operators, `judge` compiles one with several
schedulers and compares it with the `oracles`, `blame` finds nodes at fault, `conditioning` tells
rounding from faults, `minimise` cuts a failing graph down, `__main__` runs many in processes that
may crash, and goes on where a log ends.
"""
