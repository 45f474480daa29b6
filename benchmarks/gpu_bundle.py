"""Makes one file with the programs that test and time networks on another machine with a GPU.

The file, the bundle, also holds everything that the programs need: kernels, plans, weights, the
outputs of onnxruntime, TVM's runtime without its compiler, this package, and the Python packages
that both import. It has the ONNX models too, for PyTorch if PyTorch is installed on the GPU's
machine. That machine needs no internet connection and no TVM: unpack the bundle and run `sh run.sh`
(`gpu_visit.py` says how). The bundle holds neither cuDNN and cuBLASLt, which come with PyTorch, nor
TensorRT. Each of these libraries is larger than the bundle may be.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import tvm

import tvm_interop
from tests.gpu import out_of_bounds
from tvm_interop._native.library import LIBRARY_PATH
from tvm_interop._native.runtime_files import runtime_file
from tvm_interop.errors import DeviceError, TVMInteropError

from .gpu_bundle_models import CPU_NETWORKS, add_cases, add_cpu_network, add_network
from .gpu_interfaces import LIBRARY, PROGRAM, RUNTIME
from .gpu_steps import WITH_FAULT

NETWORKS = (
    "squeezenet",
    "inception_v3",
    "randwire",
    "nasnet_a",
    "mixture_of_experts",
    "dlrm",
    "bert_base",
)
"""The networks in running order. The first networks are the most informative for their time."""
PYTHON = "3.12"
"""The version of Python on the machines with GPUs that we know of."""
ARCHS = ("sm_90",)
MOST_BYTES = 60 * 10**6
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
_FILES = (
    "benchmarks/cpu_cores.py",
    "benchmarks/gpu.py",
    "benchmarks/gpu_first_wrong.py",
    "benchmarks/gpu_flight.py",
    "benchmarks/gpu_interfaces.py",
    "benchmarks/gpu_probes.cu",
    "benchmarks/gpu_report.py",
    "benchmarks/gpu_steps.py",
    "benchmarks/gpu_visit.py",
    "benchmarks/step_facts.py",
    "benchmarks/torch_gpu.py",
    "benchmarks/torch_twin.py",
    "tests/__init__.py",
    "tests/gpu/__init__.py",
    "tests/gpu/out_of_bounds.py",
    "tests/gpu/sanitized_run.py",
    "tests/library_cases.py",
)
_RUN = """#!/bin/sh
# Visits this machine's GPU. Options are those of benchmarks/gpu_visit.py.
here=$(cd "$(dirname "$0")" && pwd)
wanted="import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '{version}'.split('.'))))"
for python in ${{PYTHON:-python3 python{version}}} ""; do
  [ -n "$python" ] && "$python" -c "$wanted" 2> /dev/null && break
done
if [ -z "$python" ]; then
  echo "run.sh needs Python {version}: name it in the variable PYTHON" >&2
  exit 2
fi
export PYTHONPATH="$here/site:$here" PYTHONSAFEPATH=1 TVM_USE_RUNTIME_LIB=1
# Otherwise tvm_ffi imports PyTorch in each step, which takes seconds.
export TVM_FFI_DISABLE_TORCH_C_DLPACK=1
export TVM_INTEROP_LIBRARY="$here/site/tvm_interop/libtvm_interop.so"
# The libraries of NVIDIA's packages do not always find each other.
folders=$("$python" -c "import glob, site
print(':'.join(f for s in site.getsitepackages() for f in glob.glob(s + '/nvidia/*/lib')))")
folders="${{folders:+$folders:}}$here/lib"
export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}$folders"
exec "$python" -m benchmarks.gpu_visit --bundle "$here" "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=PYTHON, help="version of Python on the GPU's machine")
    parser.add_argument(
        "--present",
        nargs="*",
        default=(),
        choices=_PACKAGES,
        metavar="PACKAGE",
        help="packages that the GPU's machine has, to make the bundle smaller",
    )
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--cpu-networks", nargs="*", default=CPU_NETWORKS)
    parser.add_argument("--arch", nargs="+", default=ARCHS)
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder that keeps the compiled networks, and from which they are taken if they are "
        "there; remove it when kernels or plans have changed",
    )
    arguments = parser.parse_args()
    for name in arguments.cpu_networks:
        if name not in arguments.networks:
            parser.error(f"`{name}` of --cpu-networks is not among --networks: name it there too")
    with TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "models"
        add_models(folder, arguments.networks, arguments.cpu_networks, arguments.arch)
        programs = Path(scratch) / "gpu-bundle"
        add_runtime(programs, arguments.python, arguments.present)
        pack(arguments.out, [folder, programs])
    nbytes = arguments.out.stat().st_size
    print(f"wrote {arguments.out}, {nbytes / 1e6:.1f} MB")
    if nbytes > MOST_BYTES:
        raise TVMInteropError(
            f"the bundle has {nbytes} bytes, more than {MOST_BYTES}: name fewer networks"
        )


def add_models(
    folder: Path, networks: Sequence[str], cpu_networks: Sequence[str], archs: Sequence[str]
) -> None:
    """Compile all networks, unless they are in `folder` already."""
    for name in networks:
        _made(
            folder / "networks" / Path(name).stem,
            lambda at, name=name: add_network(at, name, archs),
        )
    for name in cpu_networks:
        _made(folder / "cpu" / Path(name).stem, lambda at, name=name: add_cpu_network(at, name))
    _made(folder / "cases", lambda at: add_cases(at, archs))
    if not (folder / "cases" / WITH_FAULT).exists():
        out_of_bounds.build(folder / "cases" / WITH_FAULT, archs)
    for part, names in (("networks", networks), ("cpu", cpu_networks)):
        (folder / part).mkdir(exist_ok=True)
        listed = "\n".join(Path(name).stem for name in names)
        (folder / part / "order.txt").write_text(listed + "\n")


def _made(folder: Path, make: Callable[[Path], None]) -> None:
    """Call `make` to fill a folder, unless the folder exists. If it exists, it is complete."""
    if folder.exists():
        return
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    make(part)
    part.rename(folder)


def pack(out: Path, folders: Sequence[Path]) -> None:
    """Write the contents of some folders to an archive, as the contents of one folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:xz") as tar:
        for folder in folders:
            for entry in sorted(folder.iterdir()):
                tar.add(entry, f"gpu-bundle/{entry.name}")


def add_runtime(folder: Path, python: str, present: Sequence[str] = ()) -> None:
    """Write the programs, TVM's runtime, this package and the packages that they import.

    Parameters
    ----------
    python: version of Python on the GPU's machine, such as "3.12".
    present: names of packages that the GPU's machine has.
    """
    site = folder / "site"
    needed = [name for name in _PACKAGES if name not in present]
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in needed]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--no-deps",
        "--target",
        str(site),
    ]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    for platform in ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"):
        command += ["--platform", platform]
    subprocess.run([*command, *pinned], check=True)
    # Leave out the packages' own tests: nobody runs them, and the tests of onnx are large.
    for tests in (*site.glob("onnx/backend/test"), *site.glob("numpy/**/tests")):
        shutil.rmtree(tests)
    leave = shutil.ignore_patterns("__pycache__", "libtvm_compiler.so", "3rdparty", "include")
    shutil.copytree(Path(tvm.__file__).parent, site / "tvm", ignore=leave)
    shutil.copytree(Path(tvm_interop.__file__).parent, site / "tvm_interop", ignore=leave)
    shutil.copy(LIBRARY_PATH, site / "tvm_interop" / "libtvm_interop.so")
    told = importlib.metadata.distribution("tvm-interop").read_text("METADATA")
    described = site / "tvm_interop.dist-info"  # `tvm_interop.__version__` reads it.
    described.mkdir()
    (described / "METADATA").write_text(str(told))
    refuse_other_pythons(site, python)
    root = Path(__file__).resolve().parents[1]
    for file in _FILES:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / file, folder / file)
    add_runtime_library(folder / RUNTIME, root)
    (folder / "run.sh").write_text(_RUN.format(version=python))
    (folder / "lib").mkdir()
    shutil.copy(cuda_runtime(), folder / "lib" / "libcudart.so.13")


def add_runtime_library(folder: Path, root: Path) -> None:
    """Write the runtime library, its header, and the program in C that runs a model with it."""
    header = runtime_file("header")
    (folder / "include").mkdir(parents=True)
    shutil.copytree(header.parent, folder / "include" / header.parent.name)
    shutil.copy(runtime_file("library"), folder / LIBRARY)
    shutil.copy(root / "examples" / PROGRAM, folder)


def refuse_other_pythons(site: Path, python: str) -> None:
    """Check that each extension module in `site` loads in this version of Python on x86-64 Linux.

    Raises
    ------
    TVMInteropError
        A module is for another Python or another machine; the message names it.
    """
    tag = f"cpython-{python.replace('.', '')}-x86_64-linux-gnu"
    for module in site.rglob("*.so"):
        kind = module.name.split(".")[1]
        if kind.startswith("cpython-") and kind != tag:
            raise TVMInteropError(f"`{module.name}` is not for Python {python} on x86-64 Linux")


def cuda_runtime() -> Path:
    """The path of CUDA's runtime library.

    The library is searched for in `CUDA_HOME`, then in the toolkit that `nvcc` belongs to, then in
    `/usr/local/cuda`.

    Raises
    ------
    DeviceError: none of these folders has the library.
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
