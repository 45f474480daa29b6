"""A fuzz test: invalid inputs must give one of our errors, and nothing else.

`python -m tests.fuzz` tries inputs by the thousand. The module `inputs` makes the inputs, and
`targets` has the functions that get them. `child` is the program of one process that tries inputs,
and `__main__` starts these processes. A crash ends only one process, and the input that caused it
is kept.

The kind of inputs `remade` consists of artifacts from the module `compiled` that are changed and
get correct digests again. `--kinds remade --inputs 20000` tries 20,000 such inputs. `--resume`
continues where an earlier call was stopped.
"""
