"""`relay.build`, which compiles a module into a library for the graph executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..artifact.artifact import Artifact
from ..compiler.api import compile as compile_to_artifact
from ..errors import DeviceError, InputError
from ..machine.target_text import read_target


@dataclass(frozen=True)
class PlacedLibrary:
    """The result of `lib["default"](dev)`: a compiled model and its device, for `GraphModule`.

    Attributes
    ----------
    artifact: the compiled model.
    device: the device that the model is to run on.
    """

    artifact: Artifact
    device: Any


class Library:
    """The result of `build`, with the methods of Relay's library for the graph executor.

    Attributes
    ----------
    artifact: the compiled model. All functions of this package that take an artifact accept it.
    """

    def __init__(self, artifact: Artifact, name: str = "default") -> None:
        self.artifact = artifact
        self._name = name

    def __getitem__(self, name: str) -> Callable[[Any], PlacedLibrary]:
        """Return a function that places the library on a device, as `lib["default"](dev)` does.

        Raises
        ------
        InputError
            `name` is not the library's name. For example, `name` is a number in scripts for old
            versions of TVM, in which `build` returned a triple of graph, library and parameters.
        """
        if name != self._name:
            raise InputError(
                f'the library has no `{name}`: it has lib["{self._name}"](dev); graph, lib and '
                "params are now one library, which export_library writes into one file"
            )
        return lambda device: PlacedLibrary(self.artifact, _checked(device, self.artifact))

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Write the library into one file, which `tvm_interop.load` reads."""
        self.artifact.save(path)

    def get_params(self) -> dict[str, Any]:
        """The weights of the model, by name."""
        values = self.artifact.plan.values
        return {
            values[v].name: tvm.runtime.tensor(np.ascontiguousarray(array))
            for v, array in self.artifact.weights.items()
        }


def build(
    ir_mod: tvm.IRModule,
    target: Any = None,
    target_host: Any = None,
    *,
    params: Mapping[str, Any] | None = None,
    mod_name: str = "default",
    **options: Any,
) -> Library:
    """Compile a module for the graph executor.

    Operators are scheduled to run side by side. If `relay.transform.InterOpSchedule` was applied to
    the module, its schedule is used. Otherwise the module gets the default schedule of
    `tvm_interop.compile`.

    Parameters
    ----------
    ir_mod: the module from `relay.frontend.from_onnx`, or any Relax IRModule.
    target: a TVM target for a CPU, or text with options such as `llvm -mcpu=core-avx2`. The default
        is the target of the surrounding `with target:` block, or `llvm` outside such a block.
    target_host: must be a target for a CPU. It is not used, and accepted only because old scripts
        pass it.
    params: values of the module's parameters that are weights, by name.
    mod_name: the name by which the library is indexed: `default` for `lib["default"]`.
    options: options of `tvm_interop.compile`.

    Raises
    ------
    UnsupportedModelError, InputError, DeviceError, ScheduleError
        The same cases as for `tvm_interop.compile`. Also InputError if `params` names a parameter
        that the module lacks, and DeviceError if `target_host` is not a target for a CPU.
    """
    if target_host is not None:
        _check_host(target_host)
    if target is None:
        target = tvm.target.Target.current(allow_none=True) or "llvm"
    resolved = read_target(target) if isinstance(target, str) else target
    module = _bind(ir_mod, params) if params else ir_mod
    return Library(compile_to_artifact(module, target=resolved, **options), mod_name)


def _bind(module: tvm.IRModule, params: Mapping[str, Any]) -> tvm.IRModule:
    names = [param.name for param in module["main"].params]
    for name in params:
        if name not in names:
            raise InputError(f"the module has no parameter `{name}`; it has {', '.join(names)}")
    arrays = {
        name: np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
        for name, value in params.items()
    }
    bound: tvm.IRModule = relax.transform.BindParams("main", arrays)(module)
    return bound


def _check_host(target_host: Any) -> None:
    text = read_target(target_host) if isinstance(target_host, str) else target_host
    kind = tvm.target.Target(text).kind.name
    if kind != "llvm":
        raise DeviceError(f"target_host `{kind}` is not supported; leave it out, or give `llvm`")


def _checked(device: Any, artifact: Artifact) -> Any:
    kind = artifact.plan.streams[0].device.partition(":")[0] if artifact.plan.streams else "cpu"
    if device.dlpack_device_type() != tvm.device(kind).dlpack_device_type():
        raise DeviceError(
            f"the library was built for `{kind}`, and {device} is of another kind; build the "
            "library for the device's kind"
        )
    return device
