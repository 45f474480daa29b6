"""Makes PyTorch's exporter to ONNX read its tables once in a process, not at each export.

At each export, PyTorch parses the source of 500 functions of onnxscript, and asks its C++ library
several times for the names of all operators. That takes half of the time of a small export.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def quick_exports() -> Iterator[None]:
    """While the body of the `with` statement runs, `torch.onnx.export` keeps its tables."""
    import torch.onnx

    export = torch.onnx.export
    with pytest.MonkeyPatch.context() as patch:

        def first(*args: Any, **options: Any) -> Any:
            # The exporter's modules are slow to import, so they are changed at the first export.
            patch.setattr(torch.onnx, "export", export)
            _keep_tables(patch)
            return export(*args, **options)

        patch.setattr(torch.onnx, "export", first)
        yield


def _keep_tables(patch: pytest.MonkeyPatch) -> None:
    import torch
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    kept = staticmethod(_kept(ONNXRegistry.from_torchlib))
    patch.setattr(ONNXRegistry, "from_torchlib", kept)
    materialise, done = utils._materialize_cpp_cia_ops, set()

    def materialise_new() -> None:
        names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if len(names) not in done:  # A library has registered operators meanwhile.
            materialise()
            done.add(len(names))

    patch.setattr(utils, "_materialize_cpp_cia_ops", materialise_new)


def _kept(from_torchlib: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which makes each registry once and returns copies. If a library has
    registered operators meanwhile, it makes a new registry.
    """
    import torch

    known: dict[Any, Any] = {}

    def registry(*version: Any, **named: Any) -> Any:
        key = (len(torch._C._dispatch_get_all_op_names()), *version, *named.values())
        if key not in known:
            known[key] = from_torchlib(*version, **named)
        made = copy.copy(known[key])
        # The exporter adds this package's translations to its registry, at the front of lists.
        made.functions = {name: list(each) for name, each in made.functions.items()}
        return made

    return registry
