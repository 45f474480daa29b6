"""Makes kernels with a planted fault, to test that the check of kernels finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx

FAULTS: dict[str, Callable[[Any], list[tuple[Any, Any]]]] = {}
"""Functions that find the possible places of each fault in a kernel, by the fault's name.

A place for a fault is a node of the kernel's code, with the node that would replace it.
"""


def with_fault(kernel: tirx.PrimFunc, fault: str, rng: np.random.Generator) -> tirx.PrimFunc | None:
    """The kernel with one fault at a random place, or None if there is no place for the fault."""
    places = FAULTS[fault](kernel)
    if not places:
        return None
    place, instead = places[int(rng.integers(len(places)))]

    def planted(node: Any) -> Any:
        return instead if node.same_as(place) else node

    return tvm_ffi.structural_map(kernel, (type(place), planted))


def _fault(kind: type) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a function as a fault that replaces nodes of the class `kind`.

    The registered function returns None to keep a node.
    """

    def register(instead: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def places(kernel: Any) -> list[tuple[Any, Any]]:
            nodes: list[Any] = []
            tvm_ffi.structural_walk(kernel.body, (kind, nodes.append))
            return [(node, new) for node in nodes if (new := instead(node)) is not None]

        FAULTS[instead.__name__.replace("_", " ").strip()] = places
        return instead

    return register


@_fault(tirx.For)
def _last_iteration_is_missing(loop: Any) -> Any:
    if int(loop.extent) < 2:
        return None
    return tirx.For(loop.loop_var, loop.min, loop.extent - 1, loop.kind, loop.body)


@_fault(tirx.For)
def _one_iteration_too_many(loop: Any) -> Any:
    return tirx.For(loop.loop_var, loop.min, loop.extent + 1, loop.kind, loop.body)


@_fault(tirx.For)
def _first_iteration_is_missing(loop: Any) -> Any:
    if int(loop.extent) < 2:
        return None
    return tirx.For(loop.loop_var, loop.min + 1, loop.extent - 1, loop.kind, loop.body)


@_fault(tvm.ir.TensorLoad)
def _reads_one_further(load: Any) -> Any:
    return _load_at(load, [*load.indices[:-1], load.indices[-1] + 1]) if load.indices else None


@_fault(tvm.ir.TensorLoad)
def _reads_one_before(load: Any) -> Any:
    return _load_at(load, [*load.indices[:-1], load.indices[-1] - 1]) if load.indices else None


@_fault(tvm.ir.TensorLoad)
def _reads_the_row_before(load: Any) -> Any:
    if len(load.indices) < 2:
        return None
    return _load_at(load, [load.indices[0] - 1, *load.indices[1:]])


@_fault(tirx.BufferStore)
def _writes_one_further(store: Any) -> Any:
    indices = [*store.indices[:-1], store.indices[-1] + 1]
    return tirx.BufferStore(store.buffer, store.value, indices)


@_fault(tirx.FloatImm)
def _a_constant_is_hardly_another(number: Any) -> Any:
    return tirx.FloatImm(number.ty.dtype, number.value * 1.001) if number.value else None


@_fault(tirx.Add)
def _adds_the_wrong_way(node: Any) -> Any:
    return tirx.Sub(node.a, node.b) if "float" in str(node.ty.dtype) else None


@_fault(tirx.BufferStore)
def _flushes_denormals(store: Any) -> Any:
    if not _computes_float32(store):
        return None
    least = tirx.const(float(np.finfo(np.float32).tiny), "float32")
    value = store.value
    small = tirx.And(value < least, value > -least)
    return tirx.BufferStore(store.buffer, tirx.Select(small, value * 0.0, value), store.indices)


@_fault(tirx.BufferStore)
def _drops_nan(store: Any) -> Any:
    if not _computes_float32(store):
        return None
    value = store.value
    kept = tirx.Select(value <= tirx.max_value("float32"), value, tirx.max_value("float32"))
    return tirx.BufferStore(store.buffer, kept, store.indices)


@_fault(tirx.BufferStore)
def _rounds_to_half(store: Any) -> Any:
    if not _computes_float32(store):
        return None
    value = tirx.Cast("float32", tirx.Cast("float16", store.value))
    return tirx.BufferStore(store.buffer, value, store.indices)


def _computes_float32(store: Any) -> bool:
    return str(store.value.ty.dtype) == "float32" and not isinstance(store.value, tirx.FloatImm)


def _load_at(load: Any, indices: list[Any]) -> Any:
    return tirx.BufferLoad(load.source, indices)


def kernels() -> dict[str, tirx.PrimFunc]:
    """Kernels of many kinds, by name. The last parameter of each kernel is its output."""
    x = te.placeholder((7, 37), name="x")
    y = te.placeholder((37, 19), name="y")
    z = te.placeholder((7, 37), name="z")
    n = te.placeholder((2, 3, 9, 9), name="n")
    k = te.reduce_axis((0, 37), name="k")
    r = te.reduce_axis((0, 37), name="r")
    i, j = te.reduce_axis((0, 3), name="i"), te.reduce_axis((0, 3), name="j")
    zero = tirx.const(0.0, "float32")
    total = te.compute((7,), lambda a: te.sum(x[a, r], axis=r), name="total")
    made = {
        "add": ([x, z], te.compute((7, 37), lambda a, b: x[a, b] + z[a, b] * 0.5)),
        "relu": ([x], te.compute((7, 37), lambda a, b: _above(x[a, b], zero))),
        "sigmoid": ([x], te.compute((7, 37), lambda a, b: te.sigmoid(x[a, b]) + 1.0)),
        "transpose": ([x], te.compute((37, 7), lambda a, b: x[b, a])),
        "product": ([x, y], te.compute((7, 19), lambda a, b: te.sum(x[a, k] * y[k, b], axis=k))),
        "mean": ([x], te.compute((7, 37), lambda a, b: x[a, b] - total[a] * (1.0 / 37.0))),
        "pad": ([x], te.compute((9, 40), lambda a, b: _padded(x, a, b))),
        "pool": (
            [n],
            te.compute(
                (2, 3, 4, 4),
                lambda a, b, c, d: te.sum(n[a, b, 2 * c + i, 2 * d + j] / 9.0, axis=[i, j]),
            ),
        ),
        "tile": ([x], te.compute((14, 74), lambda a, b: x[a % 7, b % 37])),
        "row": ([x], te.compute((37,), lambda a: x[3, a] * 2.0)),
    }
    return {
        name: te.create_prim_func([*inputs, output]).with_attr("global_symbol", name)
        for name, (inputs, output) in made.items()
    }


def _above(value: Any, bound: Any) -> Any:
    return tirx.Select(tirx.Not(value <= bound), value, bound)


def _padded(x: Any, a: Any, b: Any) -> Any:
    inside = tirx.all(a >= 1, a < 8, b >= 1, b < 38)
    return tirx.if_then_else(inside, x[a - 1, b - 1], tirx.const(0.25, "float32"))
