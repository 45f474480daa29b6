"""The verb `tvm-interop devices`, which lists the devices and kernel libraries of this machine."""

from __future__ import annotations

from typing import Any

import typer

from ..machine.cpu_features import host_features
from ..machine.cpu_name import cpu_model
from . import options
from .console import json_text

_MOST_GPUS = 16


def list_devices(
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the devices that models can run on: the CPU, GPUs, and the kernel libraries found."""
    facts = _facts()
    typer.echo(json_text(facts) if as_json else _summary(facts))


def _facts() -> dict[str, Any]:
    import tvm

    from .._native import cpu as _runtime
    from ..machine.kernel_libraries import TVM, library_version, provider_names

    return {
        "cpu": {
            "model": cpu_model().partition(" [")[0],
            "cores": _runtime.allowed_cores(),
            "features": list(host_features()),
        },
        "cuda": [_gpu(device) for device in map(tvm.cuda, range(_MOST_GPUS)) if device.exist],
        "kernels": {TVM: tvm.__version__}
        | {name: library_version(name) for name in provider_names() if name != TVM},
    }


def _gpu(device: Any) -> dict[str, Any]:
    return {
        "index": device.index,
        "name": device.device_name,
        "compute": device.compute_version,
        "memory_bytes": int(device.total_global_memory),
    }


def _summary(facts: dict[str, Any]) -> str:
    from ..machine.kernel_libraries import why_missing

    cpu = facts["cpu"]
    lines = [f"cpu      {cpu['model']}, {cpu['cores']} cores for this process"]
    if cpu["features"]:
        lines.append(f"         {' '.join(cpu['features'])}")
    lines += [
        f"cuda:{gpu['index']}   {gpu['name']}, compute {gpu['compute']}, "
        f"{gpu['memory_bytes'] / 2**30:.0f} GiB"
        for gpu in facts["cuda"]
    ] or ["cuda     none"]
    for name, version in facts["kernels"].items():
        lines.append(f"kernels  {name} {version or f'is missing: {why_missing(name)}'}")
    return "\n".join(lines)
