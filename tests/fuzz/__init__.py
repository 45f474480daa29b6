"""A fuzz test: invalid inputs must give one of our errors, and nothing else.

`python -m tests.fuzz` makes inputs by the thousand. `inputs` makes the inputs, and `targets` has
the functions that get them. `child` is one process that tries inputs, and `__main__` starts the
processes. A crash ends only its process, and its input is kept.

`remade` changes artifacts of `compiled` and corrects their digests. `--kinds remade --inputs 20000`
tries 20,000 of them. `--resume` continues where an earlier call was stopped.
"""
