"""Tests random graphs against oracles: `python -m tests.random_graphs 0 200 --log graphs.jsonl`.

`generator` makes graphs of some eighty kinds of operators; one of five seeds gives a graph with
`If`, `Loop` and `Scan`. `judge` compiles a graph with several schedulers and compares it with the
`oracles`. `blame` finds the nodes at fault, and `conditioning` distinguishes rounding from faults.
`minimise` reduces a failing graph. `__main__` runs many graphs in processes that may crash, and
continues at the end of a log.
"""
