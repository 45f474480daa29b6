"""Splits the wheel of tvm-interop in two: one that only runs models, and one with the rest.

    python .ci/split_wheel.py dist/tvm_interop-0.2.0-py3-none-manylinux_2_28_x86_64.whl

The wheel `tvm-interop-runtime` needs only NumPy and oneDNN. The wheel `tvm-interop` requires the
same version of `tvm-interop-runtime`. Both wheels are imported as `tvm_interop`, and no file is
in both. An installation from the sources is not split.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUNTIME = "tvm_interop_runtime"
FILES = (
    "__init__.py",
    "_native/__init__.py",
    "_native/c_interface.py",
    "_native/gate.py",
    "_native/library_path.py",
    "_native/runtime.py",
    "_native/runtime_files.py",
    "_native/timing.py",
    "_pass_hook.py",
    "_version.py",
    "artifact/__init__.py",
    "artifact/artifact.py",
    "artifact/trusted_keys.py",
    "atomic_file.py",
    "cmake",
    "errors.py",
    "execution/__init__.py",
    "execution/arrays.py",
    "execution/benchmark.py",
    "execution/bound_memory.py",
    "execution/counted_outputs.py",
    "execution/graph_module.py",
    "execution/inputs.py",
    "execution/instance.py",
    "execution/interleaved.py",
    "execution/native.py",
    "execution/open_instance.py",
    "execution/operator_profile.py",
    "execution/row_range.py",
    "execution/shaped_instances.py",
    "execution/size_counts.py",
    "execution/strings.py",
    "execution/threads.py",
    "include",
    "libtvm_interop_runtime.so.1",
    "machine/__init__.py",
    "machine/library_files.py",
    "onnxruntime.py",
    "ownership.py",
    "pkgconfig",
    "plain_data.py",
    "program/__init__.py",
    "program/host_memory.py",
    "program/row_axis.py",
    "py.typed",
    "session/__init__.py",
    "session/after_fork.py",
    "session/binding.py",
    "session/bound_names.py",
    "session/by_size.py",
    "session/empty_inputs.py",
    "session/given.py",
    "session/inference_session.py",
    "session/initializers.py",
    "session/like_onnxruntime.py",
    "session/open_binding.py",
    "session/option_names.py",
    "session/ort_memory.py",
    "session/ort_value.py",
    "session/pool.py",
    "session/profile_file.py",
    "session/ready_shapes.py",
    "session/replaced_weights.py",
    "session/sequences.py",
    "session/session.py",
    "session/sized_runs.py",
    "session/source.py",
    "session/tensor_info.py",
    "session/their_errors.py",
)
"""The parts of the folder `tvm_interop` that the runtime's wheel holds."""
DEPENDENCIES = ("numpy", "onednn-cpu-gomp")
"""The requirements of the runtime, chosen from the requirements of the whole package."""


def split(wheel: Path) -> None:
    """Replace the wheel by two wheels in the same folder."""
    with tempfile.TemporaryDirectory() as folder:
        _wheel("unpack", "--dest", folder, str(wheel))
        (whole,) = Path(folder).iterdir()
        (info,) = whole.glob("tvm_interop-*.dist-info")
        version = info.name.removeprefix("tvm_interop-").removesuffix(".dist-info")
        runtime = Path(folder) / f"{RUNTIME}-{version}"
        for name in FILES:
            target = runtime / "tvm_interop" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(whole / "tvm_interop" / name, target)
        own = runtime / f"{RUNTIME}-{version}.dist-info"
        own.mkdir()
        shutil.copy(info / "WHEEL", own)
        shutil.copytree(info / "licenses", own / "licenses")
        text = (info / "METADATA").read_text()
        (own / "METADATA").write_text(_runtime_metadata(text))
        (info / "METADATA").write_text(_requiring_runtime(text, version))
        wheel.unlink()
        for part in (whole, runtime):
            _wheel("pack", "--dest-dir", str(wheel.parent), str(part))


def _runtime_metadata(text: str) -> str:
    head = text.partition("\n\n")[0].splitlines()
    kept = []
    for line in head:
        field, _, value = line.partition(": ")
        is_wanted = value.startswith(DEPENDENCIES) and "extra ==" not in value
        if field == "Name":
            line = "Name: tvm-interop-runtime"
        if field == "Summary":
            line = "Summary: Loads and runs models that tvm-interop has compiled"
        if field not in ("Provides-Extra", "Description-Content-Type") and (
            field != "Requires-Dist" or is_wanted
        ):
            kept.append(line)
    return "\n".join(kept) + "\n"


def _requiring_runtime(text: str, version: str) -> str:
    head, separator, rest = text.partition("\nRequires-Dist: ")
    return f"{head}\nRequires-Dist: tvm-interop-runtime=={version}{separator}{rest}"


def _wheel(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "wheel", *arguments], check=True)


if __name__ == "__main__":
    split(Path(sys.argv[1]))
