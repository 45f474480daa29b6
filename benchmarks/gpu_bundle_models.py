"""Compiles the networks of the bundle for a GPU's machine (`gpu_bundle.py`), with expected outputs.

Weights are random. Large weights repeat, so that a network of several hundred megabytes takes only
a few megabytes in the bundle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import numpy_helper

import tvm_interop
from tests.nets import attention, branches, in_float16, inception_like, norms, split
from tests.networks import feeds
from tests.workspaces import SHAPE, attentions_by_numpy, two_attentions
from tvm_interop import Artifact
from tvm_interop._native.kernels import load_kernels
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.kernels.build import build_kernels
from tvm_interop.kernels.cpu_schedule import DefaultCPUSchedule
from tvm_interop.lowering.extract import extract
from tvm_interop.machine.kernel_libraries import TVM, provider_names
from tvm_interop.models.source import read_onnx
from tvm_interop.scratch import scratch_folder

from .gpu import LIBRARY_PLAN
from .gpu_first_wrong import SAMPLES_FILE, operator_samples
from .gpu_steps import SANITIZED

GPU_LIBRARIES = [name for name in provider_names("cuda") if name != TVM]
CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "inception_like": inception_like,
    "branches": branches,
    "norms": norms,
    "split": split,
    "attention": attention,
}
"""The small networks of `tests/gpu`."""
IN_FLOAT16 = ("inception_like", "branches", "norms")
TWO_ATTENTIONS = "two_attentions"
CPU_NETWORKS = ("squeezenet", "inception_v3", "mixture_of_experts")
CPU_TARGET = "llvm -mcpu=x86-64-v3"
MOST_CPU_CORES = 16
_PERIOD = 4093
"""Large weights repeat after this many numbers, so that they compress well. The number is prime, so
that two channels of a weight do not get the same numbers."""


def add_network(folder: Path, name: str, archs: Sequence[str]) -> None:
    """Compile a network for sequential execution, and write the files for `gpu.py` to `folder`.

    The files include the outputs of onnxruntime for two sets of inputs.
    """
    folder.mkdir(parents=True)
    began = time.monotonic()
    model = read_onnx(name)
    repeat_weights(model)
    onnx.save(model, folder / "model.onnx")
    expected = reference(model)
    np.savez(folder / "reference.npz", **expected)
    kernels_bytes = _add_artifacts(folder, model, archs, expected)
    took = time.monotonic() - began
    print(f"{name}: {took:.0f} s, kernels of {kernels_bytes / 1e6:.1f} MB", flush=True)


def add_cases(folder: Path, archs: Sequence[str]) -> None:
    """Compile the small networks of `tests/gpu`, also in float16."""
    names = []
    for name, make in CASES.items():
        model = make()
        add_case(folder / name, model, archs, reference(model))
        names.append(name)
    for name in IN_FLOAT16:
        model, kept = CASES[name](), {}
        for key, array in reference(model).items():
            kept[key] = array.astype(np.float16) if key.startswith("input") else array
        add_case(folder / f"{name}_float16", in_float16(model), archs, kept)
        names.append(f"{name}_float16")
    add_case(folder / TWO_ATTENTIONS, two_attentions(), archs, _attention_reference())
    names.append(TWO_ATTENTIONS)
    (folder / "order.txt").write_text("\n".join(names) + "\n")
    tvm_interop.compile(
        CASES[SANITIZED](),
        target="cuda",
        archs=archs,
        scheduler="nimble",
        keep_slower=True,
        providers=[TVM],
        out=folder / SANITIZED / "nimble.tar",
    )


def add_case(
    folder: Path, model: Any, archs: Sequence[str], expected: Mapping[str, np.ndarray]
) -> None:
    """Compile a small network, and write the files for `gpu.py` and compute-sanitizer."""
    folder.mkdir(parents=True)
    np.savez(folder / "reference.npz", **expected)
    _add_artifacts(folder, model, archs, expected)


def _add_artifacts(
    folder: Path, model: Any, archs: Sequence[str], expected: Mapping[str, np.ndarray]
) -> int:
    """Write the artifacts of a model for `gpu.py`; return the bytes of its machine code.

    Operators are fused only as far as libraries could fuse them too. So one set of TVM's kernels
    serves both the plan with libraries and the plan without.
    """
    # TVM is not a provider here. Otherwise kernels would be measured and chosen on the GPU of this
    # machine, if there is one.
    options = CompileOptions("cuda", archs=list(archs), providers=GPU_LIBRARIES)
    compilation = Compilation(model, options)
    artifact = compilation.artifact(compilation.sequential())
    (folder / LIBRARY_PLAN).write_text(artifact.plan.to_json())
    plain = replace(artifact, plan=artifact.fallback or artifact.plan, fallback=None)
    plain.save(folder / "model.tar")
    np.savez_compressed(folder / SAMPLES_FILE, **_samples(compilation, plain, expected))
    return len(artifact.machine_code())


def _samples(
    compilation: Compilation, artifact: Artifact, expected: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Compute each operator with a kernel for this CPU, and store some values of its results."""
    as_written = extract(compilation.module).kernels
    target = tvm.target.Target("llvm")
    schedule: Any = DefaultCPUSchedule(target)
    with scratch_folder() as scratch:
        library = build_kernels(schedule(as_written), target, scratch / "kernels.so")
        loaded = load_kernels(library)
        kernels = {
            var.name_hint: (loaded[var.name_hint], len(func.params))
            for var, func in as_written.functions_items()
        }
        plan = artifact.plan
        inputs = [expected[f"input0_{i}"] for i in range(len(plan.inputs))]
        return operator_samples(plan, artifact.weights, inputs, kernels)


def add_cpu_network(folder: Path, name: str) -> None:
    """Compile a network for many cores of a common CPU, with TVM's kernels only.

    The model and the expected outputs are those that `add_network` writes for the same name.
    """
    folder.mkdir(parents=True)
    model = read_onnx(name)
    repeat_weights(model)
    options = CompileOptions(
        CPU_TARGET, streams=1, threads=MOST_CPU_CORES, parts=1, providers=[TVM]
    )
    compilation = Compilation(model, options)
    compilation.artifact(compilation.sequential()).save(folder / "model.tar")


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
        # Rounded inputs compress well. The pixels of images are rounded too.
        given = {
            name: np.round(array * 16) / 16 if array.dtype == np.float32 else array
            for name, array in feeds(model, seed=which).items()
        }
        outputs = session.run(None, given)
        arrays |= {f"input{which}_{i}": array for i, array in enumerate(given.values())}
        arrays |= {f"output{which}_{i}": array for i, array in enumerate(outputs)}
    return arrays


def _attention_reference() -> dict[str, np.ndarray]:
    """Inputs and outputs of `two_attentions`, which onnxruntime cannot read."""
    arrays = {}
    for which in (0, 1):
        rng = np.random.default_rng(which)
        given = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(3)]
        arrays |= {f"input{which}_{i}": array for i, array in enumerate(given)}
        outputs = attentions_by_numpy(given)
        arrays |= {f"output{which}_{i}": array for i, array in enumerate(outputs)}
    return arrays
