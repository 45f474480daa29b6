"""Latencies of copies from one GPU to another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import LatencyError
from ..program.graph import OpGraph
from .base import LatencyModel, check_size


@dataclass(frozen=True)
class Link:
    """The connection from one GPU to another.

    Attributes
    ----------
    bytes_a_us: bytes that the link carries per microsecond in one direction. 1,000 bytes per
        microsecond are 1 GB/s.
    fixed_us: microseconds that every copy takes in addition to the time for its bytes.
    """

    bytes_a_us: float
    fixed_us: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_a_us > 0:
            raise LatencyError(f"a link carries {self.bytes_a_us} bytes/us; it must be above 0")
        if not (math.isfinite(self.fixed_us) and self.fixed_us >= 0):
            raise LatencyError(
                f"`fixed_us` of a link is {self.fixed_us}; it must be finite, not negative"
            )

    def copy_us(self, nbytes: int) -> float:
        """Microseconds that a copy of `nbytes` takes."""
        return self.fixed_us + nbytes / self.bytes_a_us

    def transfers(self, graph: OpGraph) -> dict[tuple[int, int], float]:
        """Microseconds to copy the data that one operator reads from another, by (producer,
        reader).

        Raises
        ------
        LatencyError: the graph does not say how many bytes its edges carry.
        """
        return {edge: self.copy_us(nbytes) for edge, nbytes in bytes_between(graph).items()}


def bytes_between(graph: OpGraph) -> dict[tuple[int, int], int]:
    """The bytes that each operator reads from each other operator, by (producer, reader).

    Raises
    ------
    LatencyError: the graph does not say how many bytes its edges carry.
    """
    if graph.edge_bytes is None:
        raise LatencyError(
            "the graph does not say how many bytes its edges carry; make it with "
            "`OpGraph.from_edges(..., edge_bytes=...)`, or give the transfers themselves"
        )
    total: dict[tuple[int, int], int] = {}
    for edge, nbytes in zip(graph.edges, graph.edge_bytes, strict=True):
        total[edge] = total.get(edge, 0) + nbytes
    return total


def edge_transfers(latency: LatencyModel, graph: OpGraph) -> npt.NDArray[np.float64]:
    """Ask `latency` for the copy along each edge; shape (graph.num_edges,), microseconds.

    Raises
    ------
    LatencyError: an answer is negative or not finite (the message names the operators); `latency`
        knows nothing of copies between GPUs; or a latency table has too few or too many entries.
    """
    check_size(latency, graph.names)
    known: dict[tuple[int, int], float] = {}
    for u, v in dict.fromkeys(graph.edges):
        us = known[u, v] = float(latency.transfer(u, v))
        if not (math.isfinite(us) and us >= 0):
            raise LatencyError(
                f"the latency model says that the copy from `{graph.names[u]}` to "
                f"`{graph.names[v]}` takes {us} us; a transfer must be finite and not negative"
            )
    return np.array([known[edge] for edge in graph.edges], dtype=np.float64)
