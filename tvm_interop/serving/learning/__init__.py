"""Training of learned schedulers and serving policies, with PyTorch (extra `rl`).

Trained networks are evaluated in NumPy and do not need PyTorch.
"""
