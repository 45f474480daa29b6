"""Removes padded tensors from kernels, so that convolutions over positions read unpadded inputs.

A convolution's kernel first copies its input into a longer tensor, with zeros before the first
position. This tensor does not have the same number of elements for each position, as the proofs
need. So each read of an element of the longer tensor is replaced by the expression that was written
to this element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .kernel_stores import Store, with_values


def without_padded(
    each: Sequence[list[Store]],
    kernels: Sequence[tirx.PrimFunc],
    has_layout: Callable[[Sequence[Sequence[int]]], bool],
) -> tuple[list[list[Store]], bool]:
    """Return the statements of a kernel for each length, without those that write padded tensors.

    Parameters
    ----------
    each: the statements of the kernel for each length.
    has_layout: a function that takes the shapes of a tensor, one for each length. It returns
        whether each position has the same number of elements.

    Returns
    -------
    The statements, and whether there was a padded tensor.
    """
    found, is_padded = [list(stores) for stores in each], False
    i = 0
    while i < len(found[0]):
        shapes = [[int(size) for size in stores[i].buffer.shape] for stores in found]
        if has_layout(shapes) or not all(
            _is_only_copy(stores, i, kernel) for stores, kernel in zip(found, kernels, strict=True)
        ):
            i += 1
            continue
        found = [_read_through(stores, i) for stores in found]
        is_padded = True
    return found, is_padded


def _is_only_copy(stores: Sequence[Store], i: int, kernel: tirx.PrimFunc) -> bool:
    """Whether reads of the buffer that statement `i` writes can be replaced by the written value.

    The reads can be replaced only if no other statement writes the buffer. The statement must write
    each element once, and must write all elements before any of them is read. The tensors that it
    reads must not be written later.
    """
    own, later = stores[i], stores[i + 1 :]
    others = (*stores[:i], *later)
    if own.conditions or any(param.same_as(own.buffer) for param in kernel.params):
        return False
    if any(each.buffer.same_as(own.buffer) for each in others):
        return False
    read = _sources(own)
    if any(source.same_as(each.buffer) for source in read for each in (own, *later)):
        return False
    variables = [variable for variable, _ in own.loops]
    if any(v.same_as(var) for each in others for v, _ in each.loops for var in variables):
        return False
    extents = [extent for _, extent in own.loops]
    return extents == [int(size) for size in own.buffer.shape] and all(
        isinstance(index, tirx.Var) and index.same_as(variable)
        for index, variable in zip(own.indices, variables, strict=True)
    )


def _sources(store: Store) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(store.value, (ir.TensorLoad, lambda node: found.append(node.source)))
    return found


def _read_through(stores: Sequence[Store], i: int) -> list[Store]:
    """Return the statements without statement `i`.

    Other statements that read the buffer of statement `i` now compute the value themselves.
    """
    own = stores[i]
    variables = [variable for variable, _ in own.loops]

    def value(node: Any) -> Any:
        if not node.source.same_as(own.buffer):
            return node
        return with_values(own.value, dict(zip(variables, node.indices, strict=True)))

    def through(expression: Any) -> Any:
        return tvm_ffi.structural_map(expression, (ir.TensorLoad, value), order="post")

    return [
        *stores[:i],
        *(
            replace(
                store,
                indices=list(map(through, store.indices)),
                value=through(store.value),
                conditions=list(map(through, store.conditions)),
            )
            for store in stores[i + 1 :]
        ),
    ]
