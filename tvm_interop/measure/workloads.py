"""Describes operators independently of their model, so that models can share measurements."""

from __future__ import annotations

import hashlib

from ..latency.measurement import Workload
from ..machine.kernel_libraries import library_version
from ..program.program import Operator, Program


def workload_hash(op: Operator, kernel_hashes: dict[str, str]) -> str:
    """A hash of everything that decides how long an operator takes.

    For a kernel of TVM, the hash is computed from the kernel. For a kernel of a library, it is
    computed from the library's name and version and from the operator's description. A kernel may
    be divided into shares (parts of its iterations), each an operator. The hash of such an operator
    includes the number of shares.
    """
    if op.library is None or op.description is None:
        decides = kernel_hashes[op.kernel]
    else:
        decides = f"{op.library} {library_version(op.library)}:{op.description.to_json()}"
    if op.share is not None:  # All shares of a kernel take equally long: one hash for all.
        decides += f" 1/{op.share[1]}"
    return hashlib.sha256(decides.encode()).hexdigest()[:16]


def describe_workload(program: Program, op: int, hash_: str) -> Workload:
    """Describe operator `op` for the database; `hash_` is its `workload_hash`."""
    operator = program.operators[op]
    arguments = program.arguments_of(op)
    written = [program.values[v] for v in operator.outputs]
    return Workload(
        hash=hash_,
        name=_name(operator),
        arguments=tuple((dtype, shape) for dtype, shape, _ in arguments),
        flops=operator.flops,
        nbytes=sum(nbytes for _, _, nbytes in arguments),
        parallel_extent=max(_elements(value.shape) for value in written),
    )


def _name(operator: Operator) -> str:
    if operator.library is None or operator.description is None:
        return operator.kernel
    return f"{operator.library}.{operator.description.op}"


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count
