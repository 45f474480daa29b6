"""Learning to schedule and to serve: training, with PyTorch (extra `rl`); what was learned runs
in NumPy."""
