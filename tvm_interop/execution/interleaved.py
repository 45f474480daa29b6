"""Times several `GraphModule`s against each other, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import InputError
from .graph_module import GraphModule


def measure_interleaved(
    modules: Mapping[str, GraphModule], repeats: int, warmup: int = 2, seed: int = 0
) -> dict[str, np.ndarray]:
    """Time modules against each other.

    Each of `repeats` rounds runs every module once, in a new random order. So a change of the
    machine's speed affects all modules alike.

    Returns
    -------
    The times of each module, in microseconds, shape (repeats,).

    Raises
    ------
    InputError
        A module runs on a server, or some modules run on the CPU and others on a GPU. Their times
        are measured by different clocks, so they cannot be compared.
    """
    instances = [module._instance for module in modules.values()]
    if not instances:
        return {}
    clock = instances[0].clock
    if any(instance.clock is None for instance in instances) or clock is None:
        raise InputError(
            "modules on servers cannot be timed against other modules; use `benchmark`"
        )
    if any(instance.clock is not clock for instance in instances):
        raise InputError(
            "modules on the CPU and on a GPU cannot be timed against each other; use `benchmark`"
        )
    executors = [instance.executor for instance in instances]
    seconds = clock.measure_interleaved(executors, warmup, repeats, seed)
    return {name: np.array(s) * 1e6 for name, s in zip(modules, seconds, strict=True)}
