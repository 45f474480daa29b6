"""Binds a stage's operators to tensors and kernels, to time them on executors of this process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .._native.operators import BoundOperator
from ..execution.instance import Clock
from ..execution.kernels import Kernels
from ..plain_data import is_float
from ..program.host_memory import aligned_copy, aligned_empty
from ..program.program import Program
from ..program.storage import stored_shape
from .repeats import Measure
from .stage_timer import Streams


def measured_by(clock: Clock, executors: Sequence[Any], seed: int) -> Measure:
    """A function that runs executors in turns, in random order, and times them.

    The clock runs an executor untimed before each timed run, but only before the first one if the
    runs take long (`LONG_S`). In later calls of the function, executors whose runs take long are
    not run untimed at all, and run in turns of their own.

    `seed` is the seed of the random order in which the executors run.
    """
    seeds = itertools.count(seed)
    shortest_s = [math.inf] * len(executors)

    def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
        times: dict[int, list[float]] = {}
        took_long = {i for i in indices if LONG_S <= shortest_s[i] < math.inf}
        for primed, some in (
            (True, [i for i in indices if i not in took_long]),
            (False, [i for i in indices if i in took_long]),
        ):
            if some:
                chosen = [executors[i] for i in some]
                found = clock.measure_interleaved(chosen, 0, repeats, next(seeds), primed=primed)
                times |= dict(zip(some, found, strict=True))
        for i, seconds in times.items():
            shortest_s[i] = min(shortest_s[i], *seconds)
        return [times[i] for i in indices]

    return measure


LONG_S = 2e-3
"""A run that takes at least this many seconds takes long. `kLongSeconds` in `measure.cc` says why
such a run needs no untimed run before it."""


class SharedTensors:
    """Tensors that several timers of one model share, so that each is allocated and filled once.

    Two timers share a tensor if it stands for the same value and has the same shape and type in
    both. The timers must not run at the same time.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Any] = {}

    def get(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The tensor stored under `key`; `make` makes the tensor when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class StageOperators:
    """Binds the operators of stages to tensors and kernels, which are made on first use and kept.

    Each value of the program has two tensors. Operators that read the value read the first tensor,
    and the operator that computes the value writes the second. So no stage changes the tensors that
    another stage reads, and a measured time does not depend on earlier measurements. Only operators
    of the same stage read each other's results. With a single tensor for each value, a result would
    be computed again and again from earlier results, and could become a denormal number. Denormal
    numbers make some kernels 20 times slower.
    """

    def __init__(
        self,
        program: Program,
        kernels: Kernels,
        to_device: Callable[[np.ndarray], Any],
        seed: int = 0,
        shared: SharedTensors | None = None,
    ) -> None:
        """Prepare. Tensors and library kernels are made when they are needed.

        Parameters
        ----------
        kernels: the kernels of the program's operators.
        to_device: copies an array into a new tensor on the device.
        seed: seed of the random numbers in tensors.
        shared: tensors that other timers of this model use too; None if no tensors are shared. All
            timers that share tensors have the same seed.
        """
        self._shared = shared or SharedTensors()
        self._program = program
        self._kernels = kernels
        self._to_device = to_device
        self._random = np.random.default_rng(seed).standard_normal(2 * _RANDOM).astype(np.float32)
        self._tensors: dict[int, Any] = {}
        self._results: dict[int, Any] = {}
        self._made: dict[tuple[int, frozenset[int]], Any] = {}
        self._made_nbytes = 0

    def bind(self, streams: Streams) -> tuple[list[Any], list[BoundOperator]]:
        """The tensors of a stage, and its operators bound to them.

        The groups of a stage are independent, so no operator waits for operators on other streams.
        """
        placed = [(op, s) for s, ops in enumerate(streams) for op in ops]
        operators = [self._program.operators[op] for op, _ in placed]
        computed = frozenset(v for operator in operators for v in operator.outputs)
        values = dict.fromkeys(v for op in operators for v in (*op.inputs, *op.outputs))
        number = {v: i for i, v in enumerate(values)}
        bound = [
            BoundOperator(
                operator.name,
                self.kernel(op, computed),
                [number[v] for v in (*operator.inputs, *operator.outputs)],
                s,
                (),
                operator.share,
            )
            for (op, s), operator in zip(placed, operators, strict=True)
        ]
        return [self._tensor(v, computed) for v in values], bound

    def bind_in_a_row(self, streams: Streams, times: int) -> tuple[list[Any], list[BoundOperator]]:
        """Bind a stage's operators as `bind` does, for a stage that runs several times in a row.

        Each repetition begins when the repetition before it has ended on all streams. The stages of
        a model follow each other in the same way.
        """
        tensors, operators = self.bind(streams)
        if not operators:
            return tensors, []
        first = {op.stream: i for i, op in reversed([*enumerate(operators)])}
        last = {op.stream: i for i, op in enumerate(operators)}
        repeated = list(operators)
        for begin in range(len(operators), times * len(operators), len(operators)):
            before = begin - len(operators)
            for i, op in enumerate(operators):
                ends = [before + last[s] for s in last if s != op.stream]
                repeated.append(op._replace(waits=ends if first[op.stream] == i else ()))
        return tensors, repeated

    def names(self, streams: Streams) -> list[str]:
        """The names of a stage's operators."""
        return [self._program.operators[op].name for ops in streams for op in ops]

    def kernel(self, op: int, computed: frozenset[int] = frozenset()) -> Any:
        """The kernel that runs operator `op`: a library's kernel, or TVM's.

        Parameters
        ----------
        computed: the values that the stage computes. An operator that reads such a value reads the
            tensor that the stage writes. A library's kernel is bound to its tensors, so there is
            one kernel for each choice of tensors.

        Raises
        ------
        ExecutionError
            The library has no kernel for the operator.
        """
        operator = self._program.operators[op]
        values = (*operator.inputs, *operator.outputs)
        key = op, computed.intersection(operator.inputs)
        if key not in self._made:
            tensors = [self._tensor(v, computed | {*operator.outputs}) for v in values]
            self._made[key] = self._kernels.of(operator, tensors)
            self._made_nbytes += self._nbytes(op)
            self._drop_old()
        return self._made[key]

    def _drop_old(self) -> None:
        """Forget the kernels that were made first, if the kernels hold too much memory.

        The last kernel stays. Executors keep their kernels until they have run.
        """
        while self._made_nbytes > _KEPT_NBYTES and len(self._made) > 1:
            oldest = next(iter(self._made))
            del self._made[oldest]
            self._made_nbytes -= self._nbytes(oldest[0])

    def _nbytes(self, op: int) -> int:
        """About how much memory the kernel of operator `op` holds: a library packs the weights."""
        operator = self._program.operators[op]
        return 0 if operator.library is None else weights_nbytes(self._program, [op])

    def _tensor(self, value: int, computed: frozenset[int]) -> Any:
        """The tensor of a value, made on first use.

        The tensor of a weight holds the weight. Other tensors hold random floats, or 0 if they are
        of integers. If the value is among `computed`, the stage writes the tensor, which holds
        zeros at first.
        """
        tensors = self._results if value in computed else self._tensors
        if value not in tensors:
            if value in self._program.weights:
                tensors[value] = self._to_device(aligned_copy(self._program.weights[value]))
            else:
                described = self._program.values[value]
                shape = stored_shape(described.shape, described.layout)
                key = value, value in computed, shape, described.dtype
                tensors[value] = self._shared.get(
                    key, lambda: self._to_device(self._array(value, value in computed))
                )
        return tensors[value]

    def _array(self, value: int, is_computed: bool) -> np.ndarray:
        described = self._program.values[value]
        array = aligned_empty(stored_shape(described.shape, described.layout), described.dtype)
        # Integers are 0, because 0 is a valid index. Floats are neither denormal, infinite nor NaN.
        if not is_computed and is_float(array.dtype):
            # The numbers of each tensor begin at another place in `self._random`, so no two tensors
            # are equal. If two tensors were equal, an operator that subtracts them would compute
            # only zeros.
            first = _STEP * value % _RANDOM
            _fill(array, self._random[first : first + _RANDOM])
        else:
            array[...] = 0
        return array


def weights_nbytes(program: Program, ops: Iterable[int]) -> int:
    """The size in bytes of the weights that the operators `ops` read."""
    weights = program.weights
    read = {v for op in ops for v in program.operators[op].inputs}
    return sum(weights[v].nbytes for v in read if v in weights)


def tensor_nbytes(program: Program, aligned: Callable[[int], int]) -> Iterator[int]:
    """The size in bytes of each tensor that the stages of a program may need, rounded up by
    `aligned`.
    """
    computed = {v for op in program.operators for v in op.outputs}
    for v, value in enumerate(program.values):
        yield aligned(value.nbytes)
        if v in computed:
            yield aligned(value.nbytes)


_KEPT_NBYTES = 2**29
"""The largest size in bytes of the packed weights that kernels hold between measurements. A kernel
whose weights no longer fit is prepared again when it is needed."""

_RANDOM = 65537
"""How many random numbers are drawn. A larger tensor repeats them, because drawing takes time."""

_STEP = 7919
"""Where the next value's tensor begins in the random numbers, relative to this value's tensor."""


def _fill(array: np.ndarray, numbers: np.ndarray) -> None:
    """Fill a contiguous array with `numbers`, which are repeated as often as needed."""
    flat = array.reshape(-1)
    end = flat.size // numbers.size * numbers.size
    flat[:end].reshape(-1, numbers.size)[...] = numbers
    flat[end:] = numbers[: flat.size - end]
