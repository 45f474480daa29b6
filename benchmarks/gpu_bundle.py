"""Makes one file to carry to a machine with a GPU: `gpu.py` and all that it needs.

The bundle holds kernels, plans, weights, the outputs of onnxruntime, TVM's runtime without its
compiler, and this package. It also holds the ONNX models, for PyTorch if that is installed on the
GPU's machine. That machine needs neither a network nor a compiler: unpack the bundle and run
`sh run.sh`.

Operators are fused only as far as libraries could fuse them too. So one set of TVM's kernels serves
both the plans with libraries and the plans without. The bundle does not hold cuDNN and cuBLASLt
themselves.

    python -m benchmarks.gpu_bundle dist/gpu-bundle.tar.xz [--python 3.12] [--networks ...]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import numpy_helper

import tvm_interop
from tvm_interop._native import library as _library
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.errors import DeviceError, TVMInteropError
from tvm_interop.kernels.build_cuda import DEFAULT_ARCHS
from tvm_interop.machine.kernel_libraries import TVM, provider_names
from tvm_interop.models.source import read_onnx

from .gpu import LIBRARY_PLAN

GPU_LIBRARIES = [name for name in provider_names("cuda") if name != TVM]
NETWORKS = ("squeezenet", "inception_v3", "nasnet_a", "randwire")
"""The networks in running order. The first networks are the most informative for their time."""
MOST_BYTES = 60 * 10**6
_PERIOD = 4093
"""Large weights repeat after this many numbers, so that they compress well. The number is prime, so
that two channels of a weight do not get the same numbers."""
_PACKAGES = (
    "apache-tvm-ffi",
    "numpy",
    "ml-dtypes",
    "msgspec",
    "onnx",
    "platformdirs",
    "protobuf",
    "typing-extensions",
)
_SCRIPTS = ("gpu.py", "torch_gpu.py", "torch_twin.py")
_RUN = """#!/bin/sh
# Checks and times the networks on this machine's GPU. Options are those of gpu.py.
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/site:$here" PYTHONSAFEPATH=1 TVM_USE_RUNTIME_LIB=1
export TVM_INTEROP_LIBRARY="$here/site/tvm_interop/libtvm_interop.so"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here/lib"
exec "${PYTHON:-python%s}" -m benchmarks.gpu --networks "$here/networks" "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, help="version of Python on the GPU's machine")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--arch", nargs="+", default=DEFAULT_ARCHS)
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "gpu-bundle"
        for network in arguments.networks:
            add_network(folder / "networks" / network, network, arguments.arch)
        (folder / "networks" / "order.txt").write_text("\n".join(arguments.networks) + "\n")
        add_runtime(folder, arguments.python)
        (folder / "benchmarks").mkdir()
        for script in _SCRIPTS:
            shutil.copy(Path(__file__).with_name(script), folder / "benchmarks")
        (folder / "run.sh").write_text(_RUN % arguments.python)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(arguments.out, "w:xz") as tar:
            tar.add(folder, folder.name)
    nbytes = arguments.out.stat().st_size
    print(f"wrote {arguments.out}, {nbytes / 1e6:.1f} MB")
    if nbytes > MOST_BYTES:
        raise TVMInteropError(f"the bundle has {nbytes} bytes, more than {MOST_BYTES}")


def add_network(folder: Path, name: str, archs: list[str]) -> None:
    """Compile a network for sequential execution, and write the files for `gpu.py` to `folder`.

    They include the outputs of onnxruntime for two sets of inputs.
    """
    folder.mkdir(parents=True)
    began = time.monotonic()
    model = read_onnx(name)
    repeat_weights(model)
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "reference.npz", **reference(model))
    options = CompileOptions("cuda", archs=archs, providers=[TVM, *GPU_LIBRARIES])
    compilation = Compilation(model, options)
    artifact = compilation.artifact(compilation.sequential())
    # Write two plans with the same kernels and weights. The first needs kernel libraries, and the
    # second, in the artifact, does not.
    (folder / LIBRARY_PLAN).write_text(artifact.plan.to_json())
    plain = artifact.fallback or artifact.plan
    replace(artifact, plan=plain, fallback=None).save(folder / "model.tar")
    took = time.monotonic() - began
    print(
        f"{name}: {took:.0f} s, kernels of {len(artifact.machine_code()) / 1e6:.1f} MB", flush=True
    )


def repeat_weights(model: onnx.ModelProto) -> None:
    """Replace large float32 weights by a short random sequence that repeats.

    The weights keep their standard deviation.
    """
    pattern = np.random.default_rng(0).standard_normal(_PERIOD).astype(np.float32)
    for initializer in model.graph.initializer:
        weight = numpy_helper.to_array(initializer)
        if weight.dtype == np.float32 and weight.size > _PERIOD:
            repeated = np.resize(pattern, weight.shape) * np.float32(weight.std())
            initializer.CopyFrom(numpy_helper.from_array(repeated, initializer.name))


def reference(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Two sets of random inputs and the outputs of onnxruntime, by name.

    `input1_0` is the first input of the second set, and `output1_0` the first output for that set.
    """
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    arrays = {}
    for which in (0, 1):
        rng = np.random.default_rng(which)
        feeds = {i.name: rng.standard_normal(i.shape, np.float32) for i in session.get_inputs()}
        outputs = session.run(None, feeds)
        arrays |= {f"input{which}_{i}": array for i, array in enumerate(feeds.values())}
        arrays |= {f"output{which}_{i}": array for i, array in enumerate(outputs)}
    return arrays


def add_runtime(folder: Path, python: str) -> None:
    """Add TVM's runtime, this package and the Python packages that both import to the bundle.

    Parameters
    ----------
    python: version of Python on the GPU's machine, such as "3.12".
    """
    site = folder / "site"
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in _PACKAGES]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(site),
    ]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    for platform in ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"):
        command += ["--platform", platform]
    subprocess.run([*command, *pinned], check=True)
    shutil.rmtree(site / "onnx" / "backend" / "test")  # Large models and data of onnx's own tests.
    leave = shutil.ignore_patterns("__pycache__", "libtvm_compiler.so", "3rdparty", "include")
    shutil.copytree(Path(tvm.__file__).parent, site / "tvm", ignore=leave)
    shutil.copytree(Path(tvm_interop.__file__).parent, site / "tvm_interop", ignore=leave)
    library = os.environ.get(_library.OVERRIDE) or importlib.metadata.distribution(
        "tvm-interop"
    ).locate_file("tvm_interop/libtvm_interop.so")
    shutil.copy(str(library), site / "tvm_interop" / "libtvm_interop.so")
    (folder / "lib").mkdir()
    shutil.copy(cuda_runtime(), folder / "lib" / "libcudart.so.13")


def cuda_runtime() -> Path:
    """The path of CUDA's runtime library.

    It is searched for in `CUDA_HOME`, then in the toolkit that `nvcc` belongs to, then in
    `/usr/local/cuda`.

    Raises
    ------
    DeviceError: none of them has the library.
    """
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), nvcc and str(Path(nvcc).resolve().parents[1])]
    for home in [*filter(None, homes), "/usr/local/cuda"]:
        library = Path(home) / "lib64" / "libcudart.so.13"
        if library.exists():
            return library.resolve()
    raise DeviceError("no `libcudart.so.13` to put into the bundle: name its toolkit in CUDA_HOME")


if __name__ == "__main__":
    main()
