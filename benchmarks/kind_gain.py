"""Measures how much time a model saves if libraries can run one more kind of operator.

    python -m benchmarks.kind_gain model.onnx relax.image.resize2d

For one kind of operator, a recogniser finds the groups of operators that a kernel library can run.
The model is compiled once with this recogniser and once without it. Both run sequentially, with
each operator divided over the given number of cores. Rounds are interleaved. The model without the
recogniser takes part twice, and the difference between its two times is the noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.options import add_rounds
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.compiler.speed_check import interleaved_rounds
from tvm_interop.errors import InputError, did_you_mean
from tvm_interop.lowering.groups import RECOGNISERS
from tvm_interop.program.import_files import import_files
from tvm_interop.scheduling.paired_rounds import PairedRatio, paired_ratio

ROUNDS = 100


@dataclass(frozen=True)
class Gain:
    """The times of a model without and with the recogniser of one operator kind.

    Attributes
    ----------
    without_us, with_us: median microseconds of the model without and with the recogniser.
    ratio: time with the recogniser over time without it.
    noise: ratio of the times of two copies of the model without the recogniser.
    """

    without_us: float
    with_us: float
    ratio: PairedRatio
    noise: PairedRatio

    def __str__(self) -> str:
        low, high = self.ratio.interval
        return (
            f"{self.without_us:.1f} us without, {self.with_us:.1f} us with: ratio "
            f"{self.ratio.ratio:.3f} ({low:.3f} to {high:.3f}), noise {self.noise.ratio:.3f}, "
            f"{self.ratio.rounds} rounds"
        )


def gain(model: Any, operator: str, cores: int = 1, rounds: int = ROUNDS) -> Gain:
    """Measure the gain if libraries run the groups that begin with the Relax operator.

    Parameters
    ----------
    operator: name of the Relax operator, such as `relax.image.resize2d`.
    cores: number of cores over which each operator is divided.

    Raises
    ------
    InputError
        No recogniser is registered for the operator.
    """
    with _without(operator):
        plain = _compiled(model, cores)
    homes = (plain, plain, _compiled(model, cores))
    instances = [home.instance(home.plan(home.sequential())) for home in homes]
    timed = interleaved_rounds([i.executor for i in instances], plain.backend.clock)
    first, again, changed = np.array(list(islice(timed, rounds))).T
    return Gain(
        float(np.median(first)),
        float(np.median(changed)),
        paired_ratio(changed, first),
        paired_ratio(again, first),
    )


def _compiled(model: Any, cores: int) -> Compilation:
    return Compilation(model, CompileOptions(streams=cores, threads=1, latency_db=":memory:"))


@contextmanager
def _without(operator: str) -> Iterator[None]:
    import_files("tvm_interop.lowering.recognise")
    if operator not in RECOGNISERS:
        raise InputError(
            "no recogniser is registered for "
            f"`{operator}`{did_you_mean(operator, list(RECOGNISERS))}"
        )
    taken = RECOGNISERS.pop(operator)
    try:
        yield
    finally:
        RECOGNISERS[operator] = taken


def main() -> None:
    """Print the gain."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kind_gain", description=__doc__)
    parser.add_argument("model", help="an ONNX file or a network's name")
    parser.add_argument("operator", help="operator of Relax, such as relax.image.resize2d")
    parser.add_argument("--cores", type=int, default=1)
    add_rounds(parser, ROUNDS)
    given = parser.parse_args()
    print(gain(given.model, given.operator, given.cores, given.rounds))


if __name__ == "__main__":
    main()
