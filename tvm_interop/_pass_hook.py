"""Adds the pass `InterOpSchedule` to TVM's module `tvm.relax.transform`.

If TVM is not imported yet, the pass is added when TVM is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    # The base classes in `importlib.abc` are for type checkers only. To import that module at run
    # time would take longer than to import this package.
    Loader = MetaPathFinder = object

_MODULE = "tvm.relax.transform"
_PASS = "InterOpSchedule"


def install() -> None:
    """Add the pass to TVM's module: at once if TVM is imported, otherwise when TVM is imported."""
    if _MODULE in sys.modules:
        _hang(sys.modules[_MODULE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _hang(module: ModuleType) -> None:
    """Make `module` import the pass when a user first reads the attribute with the pass's name."""

    def find(name: str) -> Any:
        if name != _PASS:
            raise AttributeError(f"module `{_MODULE}` has no attribute `{name}`")
        from .transform import InterOpSchedule

        setattr(module, _PASS, InterOpSchedule)
        return InterOpSchedule

    module.__getattr__ = find  # type: ignore[method-assign]


class _Finder(MetaPathFinder):
    """An import hook that adds the pass to TVM's module once the module has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        _hang(module)
