"""Chooses a provider's kernel for each operator, and a memory layout for each tensor.

A plain tensor is row-major. A blocked tensor is an image that keeps 8 or 16 channels of each pixel
side by side in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import OutOfTimeError
from ..lowering.groups import ELEMENTWISE, pattern_of
from ..machine.kernel_libraries import TVM
from ..program.library_op import library_op
from ..program.program import Operator, Program, Value
from ..program.storage import Layout, StoredType, block_of
from .provider_choice import (
    LatencyOf,
    PlainChoice,
    can_run,
    fastest_known,
    fastest_plain,
    given_to,
    guessed_on_cpu,
    is_hopeless,
)
from .time_budget import TimeBudget
from .two_labels import PairCost, cheapest_labels

OtherKernels = Callable[[Program, Mapping[int, float]], Mapping[int, float]]
"""Prices kernels that may replace a library's kernels after layouts are chosen.

It gets a program with blocked tensors, and the latencies of the library's kernels in microseconds,
by the operator's index. It returns the latencies of the operators that other kernels compute
faster.
"""


def _no_other_kernels(_program: Program, _us: Mapping[int, float]) -> Mapping[int, float]:
    return {}


def choose_kernels(
    program: Program,
    providers: Sequence[str],
    latency_of: LatencyOf,
    blocked: Layout = "blocked16",
    other_kernels: OtherKernels = _no_other_kernels,
) -> Program:
    """Choose the kernels and the layouts of tensors that take the least time in total.

    Plain tensors are row-major. Three things are measured: each operator on plain tensors, with
    TVM's kernel and with each library's kernel; each library's kernel on blocked tensors; and the
    time to change each tensor from plain to blocked or back. If a library's kernel works with one
    of the two layouts and a tensor has the other, the library reorders the tensor within the
    kernel. A minimum cut finds the layouts for which the sum of the latencies of all operators is
    the least (see `cheapest_labels`).

    Ties between layouts go to plain tensors. TVM's kernel is chosen only if it is clearly faster
    than the library's, because a library's kernel can be divided into more parts and can take
    blocked tensors. Kernels are chosen once for a model, not for each schedule. So all schedules of
    the model run the same kernels and give the same bits. Operators are measured one after the
    other, on one thread.

    Parameters
    ----------
    providers: the names of the available providers. If `tvm` is not among them, TVM's kernels run
        only operators that no provider among them can run.
    latency_of: makes the latency model that measures the operators of a program with the same
        tensors as `program`.
    blocked: the layout of blocked tensors.
    other_kernels: gives the latencies of kernels that may later replace the library's kernels for
        blocked tensors. The layouts are chosen as if these kernels already ran.
    """
    plain = fastest_plain(program, providers, latency_of, _CLEARLY_FASTER)
    chosen = plain.program
    for library in (name for name in providers if name != TVM):
        costs = _LayoutCosts(program, plain, library, latency_of, blocked, other_kernels)
        if not costs.free:
            continue
        labels = cheapest_labels(costs.free, costs.pairs(), costs.equal)
        return laid_out(chosen, {v for v in labels if labels[v] == 1}, library, blocked)
    return chosen


def choose_in_time(
    program: Program,
    providers: Sequence[str],
    latency_of: LatencyOf,
    budget: TimeBudget,
    blocked: Layout = "blocked16",
    other_kernels: OtherKernels = _no_other_kernels,
) -> Program:
    """Choose as `choose_kernels` does; a fixed rule chooses for operators not measured in time.

    By the fixed rule, an operator gets the kernel of the first library that can run it. There is
    one exception. With a time budget of 0 nothing is measured, and operators of some kinds keep
    TVM's kernel (see `guessed_on_cpu`).

    If the time ends before all layouts are measured, a fixed rule chooses the layouts too. A tensor
    becomes blocked if the first library among `providers` can run all operators that read or write
    it, except element-wise operators. This library then runs these operators. Latencies that were
    measured on plain tensors do not count, because they say little about blocked tensors.

    Parameters
    ----------
    providers: as in `choose_kernels`, at least one of them a library.
    latency_of: as in `choose_kernels`, but its latency models raise `OutOfTimeError` when `budget`
        is spent.
    budget: the time for the choice. It also records the operators that were not measured.
    blocked: the layout of blocked tensors.
    other_kernels: as in `choose_kernels`; it too may raise `OutOfTimeError`.
    """
    if budget.measures_nothing:
        chosen = guessed_on_cpu(program, providers, budget)
    else:
        try:
            return choose_kernels(program, providers, latency_of, blocked, other_kernels)
        except OutOfTimeError:
            budget.leave_out("measuring kernels on blocked tensors")
            chosen = fastest_known(program, providers, latency_of, budget, _CLEARLY_FASTER)
    library = next(name for name in providers if name != TVM)
    return laid_out(chosen, blockable_for(library, program, blocked), library, blocked)


_CLEARLY_FASTER = 0.95
"""TVM's kernel is chosen only if its latency is at most this fraction of the library kernel's."""


_NEVER_US = 1e9
"""The latency, in microseconds, that is assumed for a kernel that is not worth measuring."""


class _LayoutCosts:
    """The costs in microseconds of keeping each tensor row-major (plain) or blocked.

    Attributes
    ----------
    free: the tensors that may have a blocked layout; none is an alias of another tensor.
    equal: pairs of tensors that must have the same layout, because one element-wise operator works
        on both.
    """

    def __init__(
        self,
        program: Program,
        plain: PlainChoice,
        library: str,
        latency_of: LatencyOf,
        layout: Layout,
        other_kernels: OtherKernels,
    ) -> None:
        self._program, self._plain = program, plain
        self._library_ops = [i for i, op in enumerate(program.operators) if can_run(library, op)]
        block = block_of(layout)
        self._elementwise = of_any_layout(program, block)
        self.free = _blockable(program, self._library_ops, self._elementwise, block)
        self.equal = [
            (self._roots(i)[0], root)
            for i in self._elementwise
            for root in self._roots(i)[1:]
            if root in self.free
        ]
        self._ops = [i for i in self._library_ops if self.free.intersection(self._roots(i))]
        blocked = laid_out(given_to(plain.program, self._ops, library), self.free, library, layout)
        latency = latency_of(blocked)
        hopeless = {i for i in self._ops if is_hopeless(latency, blocked.operators[i], i)}
        measured = [i for i in self._ops if i not in hopeless]
        times_us = latency.stages([[[i]] for i in measured])
        self._blocked_us = dict(zip(measured, times_us.tolist(), strict=True))
        self._blocked_us |= other_kernels(blocked, self._blocked_us)
        self._blocked_us |= dict.fromkeys(hopeless, _NEVER_US)
        self._reorder_us = _reorder_us(
            [program.values[v] for i in self._ops for v in images_of(program.operators[i])],
            library,
            latency_of,
            program,
            layout,
        )

    def pairs(self) -> list[PairCost]:
        """The costs of all operators, which depend on the layouts of their tensors."""
        return [cost for i in self._ops for cost in self._costs_of(i)]

    def _roots(self, op: int) -> list[int]:
        return [self._program.storage_of(v) for v in images_of(self._program.operators[op])]

    def _costs_of(self, i: int) -> Iterable[PairCost]:
        """The costs of an operator. Each cost depends on the layouts of two of its tensors.

        The operator's data and output are one pair. Each tensor that the operator adds to its
        result forms a pair with the output.
        """
        data, *added, output = images_of(self._program.operators[i])
        blocked_us = self._blocked_us[i]
        data_us, output_us = self._reorder(data), self._reorder(output)
        first, second = self._label(data), self._label(output)
        # `blocked_us` is the time of the fastest kernel for blocked tensors. If a tensor is plain,
        # the kernel also takes time to reorder it. `blocked_us` includes the time to reorder
        # tensors that are always plain. The lines below add the time to reorder tensors that may be
        # blocked.
        us = (
            (self._plain.us[i], blocked_us + (data_us if first is not None else 0.0)),
            (blocked_us + (output_us if second is not None else 0.0), blocked_us),
        )
        yield PairCost(first, second, us)
        for v in added:
            added_us = self._reorder(v)
            yield PairCost(self._label(v), second, ((0.0, added_us), (added_us, 0.0)))

    def _label(self, value: int) -> int | None:
        root = self._program.storage_of(value)
        return root if root in self.free else None

    def _reorder(self, value: int) -> float:
        known = self._program.values[value]
        return self._reorder_us[known.shape, known.dtype]


def blockable_for(library: str, program: Program, layout: Layout) -> set[int]:
    """The values that may have the blocked layout `layout` if `library` runs all operators that it
    can run.
    """
    able = [i for i, op in enumerate(program.operators) if can_run(library, op)]
    block = block_of(layout)
    return _blockable(program, able, of_any_layout(program, block), block)


def _blockable(
    program: Program, library_ops: Sequence[int], elementwise: Sequence[int], block: int
) -> set[int]:
    """The values that may be blocked, with `block` channels in a block.

    An image that is not an alias may be blocked if every operator that reads or writes it can work
    on a blocked image. Inputs, outputs and weights of the model stay plain.
    """
    flexible = {*library_ops, *elementwise}
    fixed = {program.storage_of(v) for v in (*program.inputs, *program.outputs)}
    fixed.update(program.weights)
    for i, op in enumerate(program.operators):
        touched = {*op.inputs, *op.outputs}
        images = set(images_of(op)) if i in flexible else set()
        fixed.update(program.storage_of(v) for v in touched - images)
    for v, value in enumerate(program.values):
        root = program.values[program.storage_of(v)]
        if not _fits_blocks(value, root, block):
            fixed.add(program.storage_of(v))
    alike = [{program.storage_of(v) for v in images_of(program.operators[i])} for i in elementwise]
    while plain := {v for roots in alike if roots & fixed for v in roots - fixed}:
        fixed |= plain
    return {v for v, value in enumerate(program.values) if value.alias_of is None} - fixed


def _fits_blocks(value: Value, root: Value, block: int) -> bool:
    """Whether `value` is an image that can be blocked.

    If `value` is only a part of `root`, the part must consist of complete blocks of channels.
    """
    if (
        len(value.shape) != 4
        or value.dtype not in ("float32", "bfloat16")
        or value.shape[1] < block
    ):
        return False
    if value.alias_of is None:
        return True
    channel_nbytes = value.nbytes // value.shape[1]
    if not channel_nbytes:
        return False  # An image without pixels has no blocks.
    is_last = value.offset + value.nbytes == root.nbytes
    begins_a_block = value.offset % (block * channel_nbytes) == 0
    whole = begins_a_block and (value.shape[1] % block == 0 or is_last)
    return value.shape[2:] == root.shape[2:] and value.shape[0] == root.shape[0] == 1 and whole


def images_of(op: Operator) -> list[int]:
    """The tensors of an operator that may be blocked.

    The tensors are in this order: the operator's data, the tensors that it adds to its result, and
    its output.
    """
    if op.description is None:
        return [*op.inputs, *op.outputs]
    values = (*op.inputs, *op.outputs)
    return [values[argument] for argument in op.description.may_be_blocked]


def of_any_layout(program: Program, block: int) -> list[int]:
    """The element-wise operators that can run in any layout; see `_any_layout`."""
    return [i for i in range(len(program.operators)) if _any_layout(program, i, block)]


def _any_layout(program: Program, i: int, block: int) -> bool:
    """Whether operator `i` can run in any layout.

    It can if it computes each element independently, and if the number of channels of each of its
    tensors is a multiple of `block`.
    """
    op = program.operators[i]
    if op.description is not None or program.kernels is None:
        return False
    values = [program.values[v] for v in (*op.inputs, *op.outputs)]
    return (
        pattern_of(program.kernels[op.kernel]) == ELEMENTWISE
        and all(v.shape == values[0].shape for v in values)
        and len(values[0].shape) == 4
        and values[0].shape[1] % block == 0
        and not any(program.is_constant(v) for v in op.inputs)
    )


def laid_out(program: Program, blocked: Iterable[int], library: str, layout: Layout) -> Program:
    """Return `program` with layout `layout` for the values whose ids are in `blocked`.

    `library` runs all operators that read or write a value with the new layout.
    """
    blocked = set(blocked)
    values = [
        replace(v, layout=layout) if program.storage_of(i) in blocked else v
        for i, v in enumerate(program.values)
    ]
    operators = []
    for op in program.operators:
        layouts: tuple[Layout, ...] = tuple(values[v].layout for v in (*op.inputs, *op.outputs))
        if op.description is not None and layout in layouts:
            described = op.description.with_fields(layouts=layouts)
            op = replace(op, description=described, library=library)
        operators.append(op)
    return replace(program, values=values, operators=operators)


def _reorder_us(
    images: Sequence[Value],
    library: str,
    latency_of: LatencyOf,
    program: Program,
    layout: Layout,
) -> dict[tuple[tuple[int, ...], str], float]:
    """The time to change an image's layout, in microseconds, by the image's shape and type.

    The time is the mean of two measured times: for the change from plain to blocked layout, and
    back.
    """
    kinds = list(dict.fromkeys((v.shape, v.dtype) for v in images))
    values: list[Value] = []
    operators = []
    for shape, dtype in kinds:
        stored: tuple[StoredType, ...] = ("bfloat16",) * 2 if dtype == "bfloat16" else ()
        for layouts in (("plain", layout), (layout, "plain")):
            description = library_op(
                op="reorder", shapes=(shape, shape), layouts=layouts, stored=stored
            )
            at = len(values)
            values += [Value(f"v{at + k}", shape, dtype, layout=layouts[k]) for k in (0, 1)]
            operators.append(Operator(f"r{at}", "", (at,), (at + 1,), description, library))
    turning = replace(program, values=values, operators=operators, weights={})
    times = latency_of(turning).stages([[[i]] for i in range(len(operators))])
    return {kind: float(times[2 * k : 2 * k + 2].mean()) for k, kind in enumerate(kinds)}
