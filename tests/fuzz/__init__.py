"""Inputs that nobody would write, to see that they get an error of ours and nothing else.

`python -m tests.fuzz` makes them by the thousand: `inputs` what goes in, `targets` what it goes
into, `child` one process that does so, `__main__` the processes. A crash costs a process, and its
input is kept. `remade` is about artifacts (of `compiled`) that were changed and have right digests:
20,000 of them are `--kinds remade --inputs 20000`, and `--resume` goes on where that was stopped.
"""
