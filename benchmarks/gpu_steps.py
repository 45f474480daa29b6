"""The steps of `gpu_visit.py` that run a tool such as ncu, or that run no network as a whole.

    python -m benchmarks.gpu_steps versions --bundle FOLDER --out FILE
    python -m benchmarks.gpu_steps ncu --network squeezenet --bundle FOLDER --out FILE

Each step writes its findings to a JSON file. Its exit code says whether it ran, found something
wrong, or lacks something (`step_facts.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .step_facts import Facts

LIBRARIES = ("cudnn", "cublaslt")
WITH_FAULT = "out_of_bounds.so"
"""The file, in the bundle's folder of small networks, with a kernel that reads out of bounds."""
SANITIZED = "inception_like"
"""The small network that runs under compute-sanitizer."""
FOUND = 9
"""The exit code of compute-sanitizer if it finds a fault."""
NCU_KERNELS = 5
NCU_METRICS = (
    "gpu__time_duration.sum",
    "launch__grid_size",
    "launch__block_size",
    "launch__registers_per_thread",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
)
"""The metrics that ncu reports for `NCU_KERNELS` kernels."""
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
TF32_TOLERANCE = 5e-2
"""Allowed error of a library's operator in TF32, as a share of 1 plus the absolute value of the
result. TF32 keeps 10 bits of each factor."""


def versions(bundle: Path, facts: Facts) -> int:
    """Print the equipment of this machine: GPU, driver, CUDA's tools, kernel libraries, PyTorch."""
    lacking = []
    facts.say(
        python=platform.python_version(),
        system=platform.platform(),
        libc=" ".join(platform.libc_ver()),
        cores=len(os.sched_getaffinity(0)),
        cpu=_cpu_name(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    )
    asked = "name,driver_version,memory.total,mig.mode.current,clocks.max.sm,power.limit"
    smi = _output("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader")
    facts.say(**{"nvidia-smi": smi})
    for tool in ("nvcc", "compute-sanitizer", "ncu"):
        path = cuda_tool(tool)
        facts.say(**{tool: f"{path}: {_last_line(_output(path, '--version'))}" if path else None})
        if path is None:
            lacking.append(f"{tool} is not installed")
    facts.say(torch=_torch_version())
    if importlib.util.find_spec("torch") is None:
        lacking.append("the package `torch` is not installed")
    gpu = _gpu_facts(facts, lacking)
    facts.tell(lacking=lacking)
    for thing in lacking:
        print(f"  missing: {thing}", flush=True)
    return facts.exit_code(missing=[] if gpu else ["there is no GPU that tvm_interop can use"])


def _gpu_facts(facts: Facts, lacking: list[str]) -> bool:
    """Tell which GPU and kernel libraries the package finds; return whether there is a GPU."""
    import tvm_interop
    from tvm_interop._native import cuda
    from tvm_interop.execution.cuda import require_cuda
    from tvm_interop.machine.kernel_libraries import library_version, why_missing

    facts.say(tvm_interop=tvm_interop.__version__)
    for name in LIBRARIES:
        version = library_version(name)
        facts.say(**{name: version})
        if version is None:
            lacking.append(f"{name}: {why_missing(name)}")
    try:
        require_cuda(0)
        facts.say(gpu=cuda.describe_device(0), gpus=cuda.device_count())
    except tvm_interop.DeviceError as error:
        lacking.append(str(error))
        return False
    facts.say(cuda_runtimes=loaded_files("libcudart", "libcuda.", "libcudnn", "libcublasLt"))
    return True


def loaded_files(*names: str) -> list[str]:
    """The files of the shared libraries in this process whose names contain one of `names`."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if any(name in Path(path).name for name in names))


def cuda_tool(name: str) -> str | None:
    """The path of a program of the CUDA toolkit, from PATH or the toolkit's folder."""
    homes = filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda"))
    folders = os.pathsep.join([os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes)])
    return shutil.which(name, path=folders)


def probes(bundle: Path, facts: Facts) -> int:
    """Build `gpu_probes.cu` and run it. Each line of its output is JSON."""
    nvcc = cuda_tool("nvcc")
    if nvcc is None:
        return facts.exit_code(missing=["nvcc is not installed: install it to build the probes"])
    source = Path(__file__).with_name("gpu_probes.cu")
    with TemporaryDirectory() as scratch:
        program = f"{scratch}/probes"
        built = subprocess.run(
            [nvcc, "-O2", "-std=c++17", "-arch=native", "-o", program, str(source)],
            capture_output=True,
            text=True,
        )
        facts.tell(built=built.stdout + built.stderr)
        if built.returncode:
            return facts.exit_code(wrong=[f"nvcc failed: {_last_line(built.stderr)}"])
        done = subprocess.run([program], stdout=subprocess.PIPE, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for probe in found:
        print(f"  {json.dumps(probe)}", flush=True)
    facts.tell(probes=found, connections=os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
    wrong = [f"the probes failed with exit code {done.returncode}"] if done.returncode else []
    return facts.exit_code(wrong=wrong)


def sanitizer(bundle: Path, facts: Facts, network: str | None = None) -> int:
    """Run a network under compute-sanitizer.

    Parameters
    ----------
    network: the network. None runs a small network, and also a kernel with a known fault, which
        compute-sanitizer must find.
    """
    program = cuda_tool("compute-sanitizer")
    if program is None:
        return facts.exit_code(missing=["compute-sanitizer is not installed"])
    wrong = []
    run, none = "tests.gpu.sanitized_run", "SUMMARY: 0 "
    if network is not None:
        artifact = bundle / "networks" / network / "model.tar"
        watched = [("memcheck", run, artifact, 0, none), ("initcheck", run, artifact, 0, none)]
    else:
        artifact, kernel = (
            bundle / "cases" / SANITIZED / "nimble.tar",
            bundle / "cases" / WITH_FAULT,
        )
        watched = [
            ("memcheck", run, artifact, 0, none),
            ("racecheck", run, artifact, 0, none),
            ("memcheck", "tests.gpu.out_of_bounds", kernel, FOUND, "Invalid __global__ read"),
        ]
    for tool, module, file, code, line in watched:
        watch = [program, "--tool", tool, "--error-exitcode", str(FOUND)]
        done = subprocess.run(
            [*watch, sys.executable, "-m", module, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        name = f"{tool} of {module}"
        is_right = done.returncode == code and line in done.stdout
        print(f"  {name}: {'right' if is_right else 'WRONG'}", flush=True)
        facts.tell(**{name: {"exit_code": done.returncode, "output": done.stdout[-4000:]}})
        if not is_right:
            wrong.append(f"{name}: exit code {done.returncode}, {_last_line(done.stdout)}")
    return facts.exit_code(wrong=wrong)


def ncu(bundle: Path, facts: Facts, network: str | None = None) -> int:
    """Run ncu on the kernels that take the most time in a network."""
    program = cuda_tool("ncu")
    if program is None:
        return facts.exit_code(missing=["ncu is not installed"])
    assert network is not None, "this step needs a network"
    path = bundle / "networks" / network / "model.tar"
    slowest = slowest_kernels(path)
    facts.say(slowest_us=slowest)
    names = "|".join(f"{name}(_kernel(_[0-9]+)?)?" for name in slowest)
    watch = [program, "--clock-control", "none", "--csv", "--page", "raw"]
    watch += ["--metrics", ",".join(NCU_METRICS), "--launch-count", str(4 * len(slowest))]
    watch += ["--kernel-name", f"regex:^({names})$"]
    done = subprocess.run(
        [*watch, sys.executable, "-m", "tests.gpu.sanitized_run", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    for line in lines:
        print(f"  {line}", flush=True)
    facts.tell(exit_code=done.returncode, table=lines, output=done.stdout[-4000:])
    wrong = [] if len(lines) > 2 else [f"ncu wrote no table: {_last_line(done.stdout)}"]
    return facts.exit_code(wrong=wrong)


def slowest_kernels(path: Path) -> dict[str, float]:
    """The kernels of TVM that take the most time in a network, each with its microseconds."""
    import tvm_interop
    from tvm_interop.execution.cuda import CudaInstance, require_gpu

    artifact = tvm_interop.load(path)
    plan = artifact.plan
    require_gpu(plan)
    instance = CudaInstance(plan, artifact.load_kernels(), artifact.weights)
    took: dict[str, float] = {}
    for row in instance.profile():
        name = plan.operators[row.op].kernel
        took[name] = took.get(name, 0.0) + row.end_us - row.start_us
    ordered = sorted(took, key=took.__getitem__, reverse=True)
    return {name: round(took[name], 1) for name in ordered[:NCU_KERNELS]}


def library_cases(bundle: Path, facts: Facts) -> int:
    """Run each small operator of cuDNN and cuBLASLt, and name the algorithm that computes it."""
    from tests.library_cases import CASES, library_of, matmul
    from tvm_interop import TVMInteropError
    from tvm_interop.machine.kernel_libraries import library_version, why_missing

    missing = [f"{name}: {why_missing(name)}" for name in LIBRARIES if not library_version(name)]
    wrong = []
    square = (64, 64)
    cases = {**CASES, "matmul in TF32": matmul(square, square, allow_tf32=True)}
    for name, op in cases.items():
        if not library_version(library_of(op)):
            continue
        try:
            found = _library_case(op)
        except TVMInteropError as error:
            wrong.append(f"{name}: {error}")
            continue
        facts.say(**{name: found})
        if found["error"] > 1 or not found["same_bits"]:
            wrong.append(f"{name}: wrong numbers or bits")
    return facts.exit_code(missing=missing, wrong=wrong)


def _library_case(op: Any) -> dict[str, Any]:
    """Run an operator uncaptured, captured in a CUDA graph, and as a linked graph.

    The result has four facts: the error as a share of the allowed error, whether the bits of all
    ways are the same, the algorithm, and the ways for which no CUDA graph could be made.
    """
    import numpy as np

    from tests.library_cases import numbers, plan_of, reference
    from tvm_interop.execution.cuda import CudaInstance

    arrays = numbers(op)
    results, told, no_graph = [], "", []
    for dispatch in ("captured", "streams", "linked"):
        instance = CudaInstance(plan_of(op), None, {}, dispatch=dispatch)
        if instance.dispatch != dispatch:
            no_graph.append(dispatch)
        told = next(iter(instance.implementations.values()))
        for v, array in enumerate(arrays):
            instance.write(v, array)
        instance.run()
        results.append(instance.read(len(arrays)))
    expected = reference(op, arrays)
    tolerance = TF32_TOLERANCE if op.fields().get("allow_tf32") else TOLERANCE[op.dtype]
    allowed = tolerance * (1 + np.abs(expected))
    return {
        "error": float((np.abs(results[0] - expected) / allowed).max()),
        "same_bits": all(np.array_equal(result, results[0]) for result in results),
        "implementation": told,
        "no_graph": no_graph,
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "")


def _torch_version() -> str | None:
    """PyTorch's version, and the versions of CUDA and cuDNN in it, from a new process.

    PyTorch loads its own CUDA libraries. In the current process, this would hide which CUDA
    libraries our package finds by itself, so a new process imports PyTorch.
    """
    text = "import torch as t; print(t.__version__, t.version.cuda, t.backends.cudnn.version())"
    told = _output(sys.executable, "-c", text)
    return _last_line(told) if told else None


def _output(*command: str | None) -> str | None:
    """The output of a command; None if it fails or is missing."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _last_line(text: str | None) -> str:
    return ((text or "").strip().splitlines() or [""])[-1]


STEPS: dict[str, Callable[[Path, Facts], int]] = {
    "versions": versions,
    "probes": probes,
    "sanitizer": sanitizer,
    "library-cases": library_cases,
}
STEPS_OF_NETWORKS: dict[str, Callable[[Path, Facts, str | None], int]] = {
    "sanitizer": sanitizer,
    "ncu": ncu,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=[*STEPS, *STEPS_OF_NETWORKS])
    parser.add_argument("--network", help="name of a network in the bundle")
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the unpacked bundle")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for what is found")
    arguments = parser.parse_args()
    facts = Facts(arguments.out)
    if arguments.network is None:
        if arguments.step not in STEPS:
            parser.error(f"`{arguments.step}` needs a network: name it with --network")
        return STEPS[arguments.step](arguments.bundle, facts)
    if arguments.step not in STEPS_OF_NETWORKS:
        parser.error(f"`{arguments.step}` looks at no network: leave out --network")
    return STEPS_OF_NETWORKS[arguments.step](arguments.bundle, facts, arguments.network)


if __name__ == "__main__":
    raise SystemExit(main())
