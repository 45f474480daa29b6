"""`python -m tests.cuda_emulation MODEL ...` executes the CUDA kernels of models on the CPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from tvm_interop import TVMInteropError, models

from .compare import ARCHS, Verdict, check_kernel, kernels_of


def main() -> int:
    """Check each kernel, and print what was found.

    Returns
    -------
    1 if a kernel is at fault; 0 otherwise.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.cuda_emulation", description=__doc__)
    parser.add_argument(
        "model", nargs="+", help="an ONNX file, or the name of a network in `tvm_interop.models`"
    )
    parser.add_argument("--image-size", type=int, help="the size of networks that are named")
    parser.add_argument("--batch", type=int, default=1, help="the batch of networks that are named")
    parser.add_argument("--only", default="", help="kernels with this text in their name")
    parser.add_argument("--arch", default=",".join(ARCHS), help="such as sm_80,sm_90")
    parser.add_argument(
        "--no-sanitizers",
        action="store_true",
        help="run faster, and do not look for accesses outside of tensors and arrays",
    )
    given = parser.parse_args()
    archs = given.arch.split(",")
    verdicts = []
    for name in given.model:
        print(f"{name}:")
        try:
            kernels = kernels_of(_model(name, given.batch, given.image_size), archs)
        except TVMInteropError as error:
            parser.error(str(error))
        for kernel in kernels:
            if given.only in kernel.name:
                verdicts.append(check_kernel(kernel, None, archs, not given.no_sanitizers))
                print(f"  {described(verdicts[-1])}", flush=True)
    if not verdicts:
        parser.error(f"no kernel has `{given.only}` in its name")
    print(summary(verdicts))
    return int(any(verdict.fault for verdict in verdicts))


def _model(name: str, batch: int, image_size: int | None) -> Any:
    """Build the network `name`; return `name` itself if it is not a built-in network."""
    return models.build(name, batch, image_size) if name in models.list() else name


def described(verdict: Verdict) -> str:
    """One line about the verdict on a kernel."""
    name = verdict.kernel.name
    if verdict.kernel.alike > 1:
        name += f" (and {verdict.kernel.alike - 1} like it)"
    if verdict.not_executed:
        return f"{name}: not executed: {verdict.not_executed}"
    if verdict.fault:
        return f"{name}: WRONG: {verdict.fault}"
    return f"{name}: right, largest error {verdict.error:.1e}"


def summary(verdicts: Iterable[Verdict]) -> str:
    """The numbers of executed and of wrong kernels, and the names of the kernels not executed."""
    verdicts = list(verdicts)
    missing = [verdict for verdict in verdicts if verdict.not_executed]
    wrong = [verdict for verdict in verdicts if verdict.fault]
    lines = [
        f"{len(verdicts) - len(missing)} of {len(verdicts)} distinct kernels executed, "
        f"{len(wrong)} wrong"
    ]
    lines += [f"  not executed: {v.kernel.name}: {v.not_executed}" for v in missing]
    lines += [f"  wrong: {v.kernel.name}: {v.fault}" for v in wrong]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
