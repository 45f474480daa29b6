"""Times kernel checks, and counts faults: `python -m benchmarks.kernel_check [NETWORK ...]`.

The compiler checks that the kernels of each model that it compiles compute right results. This
program compiles each network, a file `NAME.onnx` or one of `tvm_interop.models.list()`, in a
process of its own. The latency database is empty at the start. The table has the processor time of
the check and of the rest of compilation, in seconds, and the number of kernels at fault.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import onnx

import tvm_interop
from tvm_interop import models
from tvm_interop.compiler.checked_kernels import KernelChecker
from tvm_interop.compiler.checked_libraries import LibraryChecker


class Row(NamedTuple):
    """The results of one network.

    Attributes
    ----------
    checked, libraries: number of kernels of TVM, and of libraries, that were checked.
    plain: for each kernel that failed the check, by name, what was wrong with it.
    check_s, rest_s: seconds of processor time of the check, and of the rest of compilation.
    """

    network: str
    checked: int
    libraries: int
    plain: dict[str, str]
    check_s: float
    rest_s: float


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("networks", nargs="*", default=models.list(), metavar="NETWORK")
    arguments.add_argument("--scheduler", default="auto")
    given = arguments.parse_args()
    print("| | TVM's kernels | libraries' | at fault | check s | rest s | share |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    faults: dict[str, str] = {}
    check_s = rest_s = 0.0
    for network in given.networks:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as process:
            try:
                row = process.submit(measured, network, given.scheduler).result()
            except tvm_interop.TVMInteropError as error:
                print(f"| {network} | refused: {error} | | | | | |", flush=True)
                continue
        share = row.check_s / row.rest_s
        print(
            f"| {row.network} | {row.checked} | {row.libraries} | {len(row.plain)} | "
            f"{row.check_s:.2f} | {row.rest_s:.2f} | {share:.3f} |",
            flush=True,
        )
        faults |= {f"{network}, {name}": fault for name, fault in row.plain.items()}
        check_s, rest_s = check_s + row.check_s, rest_s + row.rest_s
    print(f"in all {check_s:.1f} s of checks, {rest_s:.1f} s of other work: {check_s / rest_s:.3f}")
    for name, fault in faults.items():
        print(f"{name}: {fault}")
    return 1 if faults else 0


def measured(network: str, scheduler: str) -> Row:
    """Compile the network with an empty latency database, and time the checks of its kernels."""
    model = onnx.load(network) if network.endswith(".onnx") else models.build(network)
    seconds = 0.0

    def timed(check: Callable[..., object]) -> Callable[..., object]:
        def checked(*args: object, **options: object) -> object:
            nonlocal seconds
            began = time.process_time()
            try:
                return check(*args, **options)
            finally:
                seconds += time.process_time() - began

        return checked

    KernelChecker.check = timed(KernelChecker.check)  # type: ignore[method-assign,assignment]
    LibraryChecker._faults = timed(LibraryChecker._faults)  # type: ignore[method-assign,assignment]
    began = time.process_time()
    artifact = tvm_interop.compile(model, scheduler=scheduler, latency_db=":memory:")
    rest_s = time.process_time() - began - seconds
    found = artifact.manifest.kernel_check
    assert found is not None
    return Row(network, found.checked, found.libraries, found.plain, seconds, rest_s)


if __name__ == "__main__":
    raise SystemExit(main())
