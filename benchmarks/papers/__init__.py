"""The tables and figures of the papers: the claims of each, and our results.

    python -m benchmarks.papers --list
    python -m benchmarks.papers ios --figure 9
    python -m benchmarks.papers --quick            # what `make papers` runs

Each table or figure is one function with the decorator `registry.experiment`. A module belongs to
a paper if its name is the paper's, or begins with the paper's name and an underscore. Results are
kept in `benchmarks/results/papers`, pictures and pages in `docs/papers`.
"""
