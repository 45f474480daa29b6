"""Proves programs of several streams safe: plans of ours, and anybody's.

It stands apart from everything that plans: nothing here imports the planners or what they use, and
the algorithm, `passes/check`, includes nothing of theirs.
"""
