"""Makes PyTorch's exporter to ONNX read its tables once in a process, not at each export.

At each export, PyTorch parses the source of 500 functions of onnxscript, and asks its C++ library
several times for the names of all operators. That takes half of the time of a small export.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
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
    from torch.onnx._internal.exporter import _registration, _schemas

    translations = _registration.onnxscript_apis
    patch.setattr(translations, "get_torchlib_ops", cache(translations.get_torchlib_ops))
    signature = cache(_schemas.op_signature_from_function)
    patch.setattr(_schemas, "op_signature_from_function", signature)
    materialise, done = utils._materialize_cpp_cia_ops, set()

    def materialise_new() -> None:
        names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if len(names) not in done:  # A library has registered operators meanwhile.
            materialise()
            done.add(len(names))

    patch.setattr(utils, "_materialize_cpp_cia_ops", materialise_new)
