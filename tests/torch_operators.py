"""Compares PyTorch's operators, as programs of `torch.export`, with PyTorch itself.

PyTorch's own tests describe its operators, with samples of inputs for each operator. This module
exports some of these samples, compiles the programs and compares the results:
    python -m tests.torch_operators                      # all operators; takes an hour
    python -m tests.torch_operators cumsum nn.functional.pad --samples 20

The program prints a line for each operator: `right`, or what is wrong.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import tvm_interop
from tvm_interop.errors import TVMInteropError

LEFT_OUT = (
    "bernoulli", "cauchy", "complex", "empty", "exponential", "fft.", "geometric", "linalg.",
    "log_normal", "multinomial", "new_empty", "normal", "polar", "rand", "sparse", "uniform",
)  # fmt: skip
"""Beginnings of the names of operators that draw numbers, or compute complex or sparse tensors."""
_TYPES = (torch.float32, torch.int64, torch.bool)
_SECONDS = 300
_OWN_TYPES = frozenset({torch.float32, torch.int32, torch.int64, torch.bool})


class _Module(torch.nn.Module):
    def __init__(self, call: Callable[[Any], Any]) -> None:
        super().__init__()
        self._call = call

    def forward(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(_tensors(self._call(tensors)))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _taken_out(value: Any, tensors: list[torch.Tensor]) -> Callable[[Any], Any]:
    """Copy the tensors in `value` to the list `tensors`. Return a function that rebuilds `value`
    with the given tensors in their places.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().clone())
        number = len(tensors) - 1
        return lambda given: given[number]
    if isinstance(value, dict):
        parts = {key: _taken_out(each, tensors) for key, each in value.items()}
        return lambda given: {key: part(given) for key, part in parts.items()}
    if type(value) in (list, tuple):
        each = [_taken_out(one, tensors) for one in value]
        kind = type(value)
        return lambda given: kind(part(given) for part in each)
    return lambda given: value


def samples_of(operator: Any, dtype: torch.dtype, count: int) -> list[tuple[Any, Any]]:
    """Return modules that call the operator, and their inputs, evenly chosen from its samples."""
    found = []
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=False):
        tensors: list[torch.Tensor] = []
        given = _taken_out((sample.input, *sample.args), tensors)
        named = _taken_out(dict(sample.kwargs), tensors)

        def call(t: Any, given: Any = given, named: Any = named) -> Any:
            return operator.op(*given(t), **named(t))

        if tensors and all(t.numel() and t.dtype in _OWN_TYPES for t in tensors):
            found.append((_Module(call), tensors))
    step = max(1.0, len(found) / count)
    return [found[int(i * step)] for i in range(min(count, len(found)))]


def fault_of(module: torch.nn.Module, tensors: list[torch.Tensor]) -> str | None:
    """Compile and run a module; return how the results differ from PyTorch's, or None.

    The result is also None if PyTorch cannot export the module.
    """
    wanted = module([each.clone() for each in tensors])
    if not wanted or any(each.is_complex() for each in wanted):
        return None
    try:
        program = torch.export.export(module, (tensors,))
    except Exception:  # PyTorch raises errors of many classes if it cannot export a module.
        return None
    try:
        session = tvm_interop.Session(tvm_interop.compile(program, time_budget=0))
    except TVMInteropError as error:
        return f"refused: {error}"
    names = list(program.graph_signature.user_inputs)
    feeds = {each.name: tensors[names.index(each.name)].numpy() for each in session.get_inputs()}
    for want, got in zip(wanted, session.run(None, feeds), strict=True):
        array = want.detach().numpy()
        if (array.dtype, array.shape) != (got.dtype, got.shape):
            return f"wrong: {array.dtype} {array.shape} becomes {got.dtype} {got.shape}"
        if not np.allclose(got, array, 1e-3, 2e-4, equal_nan=True):
            return f"wrong: {array.ravel()[:3]} becomes {got.ravel()[:3]}"
    return None


def _check(operator: Any, count: int) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    faults = [
        f"{str(dtype).removeprefix('torch.')} {[tuple(each.shape) for each in tensors]} {fault}"
        for dtype in _TYPES
        if operator.supports_dtype(dtype, "cpu")
        for module, tensors in samples_of(operator, dtype, count)
        if (fault := fault_of(module, tensors)) is not None
    ]
    name = operator.name + (operator.variant_test_name and f".{operator.variant_test_name}")
    print(f"{name}: {'; '.join(faults) or 'right'}", flush=True)


def main() -> None:
    """Check the operators that the command line names, or all."""
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="names, such as nn.functional.pad")
    parser.add_argument("--samples", type=int, default=6, help="samples for each type of elements")
    args = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    for operator in op_db:
        if args.operators:
            if operator.name not in args.operators:
                continue
        elif operator.name.startswith(LEFT_OUT):
            continue
        # A process of its own, since a fault in machine code ends the process.
        process = fork.Process(target=_check, args=(operator, args.samples))
        process.start()
        process.join(_SECONDS)
        if process.exitcode != 0:
            process.kill()
            print(f"{operator.name}: ended with {process.exitcode}", flush=True)


if __name__ == "__main__":
    main()
