"""Python imports this module at the start of each process that a test starts (see `conftest`).

TVM and tvm-ffi import PyTorch if it is installed, which takes two of the three seconds in which a
process imports TVM. Few processes need PyTorch. So this module makes PyTorch seem not installed
while TVM or tvm-ffi is imported. A later import of PyTorch works. The process of the tests
themselves does import PyTorch together with TVM, so that both cases are tested.
"""

from __future__ import annotations

import sys


class _NoTorchForTvm:
    """An import hook that hides PyTorch while TVM or tvm-ffi is imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Return None, so that Python asks the next hook.

        Raises
        ------
        ModuleNotFoundError: TVM or tvm-ffi asks for PyTorch.
        """
        if name == "torch" and (_is_being_imported("tvm") or _is_being_imported("tvm_ffi")):
            raise ModuleNotFoundError("here TVM is imported without PyTorch", name=name)


def _is_being_imported(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


sys.meta_path.insert(0, _NoTorchForTvm)  # type: ignore[arg-type]
