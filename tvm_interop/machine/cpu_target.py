"""Makes TVM targets for CPUs, by default with the vector instructions of this machine."""

from __future__ import annotations

from typing import Any

from ..errors import DeviceError, did_you_mean, first_line
from .cpu_features import host_features, missing_features, target_features


def cpu_target(target: Any) -> Any:
    """Return the TVM target to compile for.

    If `target` names neither a CPU nor instructions, and is for this machine's architecture, the
    result uses the instructions of this machine's CPU.

    Raises
    ------
    DeviceError
        TVM cannot read `target`, it is not a target for CPUs, or LLVM does not know its CPU.
    """
    import tvm

    try:
        resolved = tvm.target.Target(target)
    except Exception as error:
        raise DeviceError(
            f"`{target}` is not a target that TVM knows: {first_line(error)}; give a target such "
            "as `llvm` or `llvm -mcpu=haswell`"
        ) from error
    if resolved.kind.name != "llvm":
        raise DeviceError(f"target `{resolved.kind.name}` is not supported; give `llvm` or `cuda`")
    attrs = dict(resolved.attrs)
    mcpu, triple = str(attrs.get("mcpu", "")), str(attrs.get("mtriple", ""))
    if mcpu and not tvm.target.codegen.llvm_is_valid_cpu(mcpu, triple):
        known = [str(name) for name in tvm.target.codegen.llvm_get_cpu_archlist(resolved)]
        raise DeviceError(
            f"LLVM knows no CPU `{mcpu}`{did_you_mean(mcpu, known)} for `{triple}`; give another "
            "`-mcpu`"
        )
    elsewhere = attrs.get("mtriple") != tvm.target.Target("llvm").attrs.get("mtriple")
    if elsewhere or "mcpu" in attrs or "mattr" in attrs or not host_features():
        return resolved
    # Name a baseline CPU and add this CPU's instructions, so that LLVM uses the widest vectors.
    features = [f"+{name}" for name in host_features()]
    return tvm.target.Target({"kind": "llvm", **attrs, "mcpu": "x86-64", "mattr": features})


NOT_THIS_CPU = "this machine's CPU cannot run kernels for their target"
"""The reason that users see if kernels were not checked because `runs_here` is False."""


def runs_here(target: Any) -> bool:
    """Whether this machine's CPU can run code that was compiled for the CPU target `target`."""
    import tvm

    here = tvm.target.Target("llvm").attrs.get("mtriple")
    return target.attrs.get("mtriple") == here and not missing_features(target_features(target))
