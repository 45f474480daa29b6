"""The instances of a session that compiles its model for each combination of input shapes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..errors import ExecutionError
from .after_fork import renew_in_children
from .pool import Pool

Key = tuple[Any, ...]
"""The shapes of the inputs that the model leaves open, in the order of the inputs."""
Count = Callable[[], None] | None
"""A function to call when instances are used; None to call nothing."""


class ReadyShapes:
    """Holds the instances for the combinations of input shapes that were used last.

    Any thread may call any method. No method waits for a compilation. So the model can run for some
    shapes while it is compiled for others.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        """Make the object, without any instances yet.

        Parameters
        ----------
        most: the largest number of shapes.
        most_bytes: the largest total size of the tensors of all instances. The instances for the
            shapes that were added last are kept even if their own tensors are larger.
        """
        self._most = most
        self._most_bytes = most_bytes
        self._by_shape: OrderedDict[Key, Pool] = OrderedDict()
        self._is_closed = False
        self._renew()
        renew_in_children(self, ReadyShapes._renew)

    def _renew(self) -> None:
        """Make a new lock, also in a forked child."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_shape)

    def get(self, key: Key) -> Pool | None:
        """Return the instances for the shapes `key`, without marking the shapes as used."""
        return self._by_shape.get(key)

    def use(self, key: Key, count: Count) -> Pool | None:
        """Return the instances for the shapes `key`, and call `count`, which counts a run.

        If there are no instances for these shapes, return None and do not call `count`.
        """
        with self._lock:
            pool = self._by_shape.get(key)
            if pool is not None:
                self._by_shape.move_to_end(key)
                if count is not None:
                    count()
            return pool

    def add(self, key: Key, pool: Pool, count: Count) -> list[Key]:
        """Add instances, and call `count`, which counts a run.

        Return the shapes whose instances were dropped because the instances were too many or too
        large. The instances of the least recently used shapes are dropped first.

        Raises
        ------
        ExecutionError
            The session was closed.
        """
        with self._lock:
            if self._is_closed:
                raise ExecutionError("the session was closed while it compiled; make a new one")
            self._by_shape[key] = pool
            self._by_shape.move_to_end(key)
            if count is not None:
                count()
            dropped = []
            while self._are_too_many():
                dropped.append(self._by_shape.popitem(last=False)[0])
            return dropped

    def _are_too_many(self) -> bool:
        if len(self._by_shape) <= 1:
            return False
        pools = self._by_shape.values()
        nbytes = sum(pool.own_nbytes for pool in pools) + max(pool.turns_nbytes for pool in pools)
        return len(self._by_shape) > self._most or nbytes > self._most_bytes

    def replace(self, key: Key, pool: Pool) -> bool:
        """Use the instances `pool` from now on; return False if the shapes `key` were dropped."""
        with self._lock:
            if key in self._by_shape:
                self._by_shape[key] = pool
            return key in self._by_shape

    def close(self) -> None:
        """Drop all instances. No instances can be added from now on."""
        with self._lock:
            self._is_closed = True
            self._by_shape.clear()
