"""Tests `GraphModule` and `Session` with outputs and inputs that stay on the GPU.

TVM's kernels compute nothing on the fake GPU, so the tests write the numbers of outputs by hand.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

import tvm_interop
from tests.fake_cuda import fake_gpu
from tests.nets import inception_like
from tvm_interop import Artifact, GraphModule, InputError, Session
from tvm_interop.execution.device_tensor import DeviceTensor
from tvm_interop.session.binding import Binding

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return tvm_interop.compile(
        inception_like(), target="cuda", scheduler="nimble", keep_slower=True, latency_db=":memory:"
    )


@pytest.fixture
def module(artifact: Artifact) -> GraphModule:
    module = GraphModule(artifact)
    module.set_input(0, image(module))
    return module


def image(module: GraphModule) -> np.ndarray:
    port = module.ports()[0][0]
    return np.random.default_rng(0).standard_normal(port.shape).astype(port.dtype)


def fill_output(module: GraphModule, number: float) -> np.ndarray:
    """Fill the module's own memory of output 0, as a kernel would; return an array over it."""
    value = module.ports()[1][0].value
    memory = fake_gpu.array_at(module._instance.tensors[value])  # type: ignore[attr-defined]
    memory[...] = number
    return memory


def on_gpu(module: GraphModule, device: int = 0) -> Any:
    port = module.ports()[1][0]
    return tvm.runtime.empty(port.shape, port.dtype, tvm.cuda(device))


def test_an_output_in_place(module: GraphModule) -> None:
    module.start()
    view = module.get_output_zero_copy(0)
    assert isinstance(view, DeviceTensor)
    memory = fill_output(module, 3)
    assert tvm_ffi.from_dlpack(view).data_ptr() == memory.ctypes.data
    assert (view.numpy() == 3).all()
    with pytest.raises(InputError, match="no output 1"):
        module.get_output_zero_copy(1)


def test_an_output_is_copied_on_the_gpu(module: GraphModule, tmp_path: Path) -> None:
    module.run()
    fill_output(module, 4)
    target = on_gpu(module)
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    assert module.get_output(0, out=target) is target
    fake_gpu.stop_log()
    (copy,) = fake_gpu.logged(log, "cudaMemcpyAsync")
    assert copy["to"] == fake_gpu.address_of(target)
    assert (fake_gpu.array_at(target) == 4).all()


def test_tensors_that_do_not_fit_an_output_are_refused(module: GraphModule) -> None:
    module.run()
    with pytest.raises(InputError, match=r"`out` for output `.*` must be float32 of shape"):
        module.get_output(0, out=tvm.runtime.empty((3,), "float32", tvm.cuda(0)))
    with pytest.raises(InputError, match="is on cuda:1, and the module runs on cuda:0"):
        module.get_output(0, out=on_gpu(module, 1))


def test_outputs_on_both_sides_wait_once(module: GraphModule, tmp_path: Path) -> None:
    x = image(module)
    port = module.ports()[1][0]
    host = np.empty(port.shape, port.dtype)
    module.run_into({0: x}, {0: host})
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    module.run_into({0: x}, {0: host})
    fake_gpu.stop_log()
    assert len(fake_gpu.logged(log, "cudaStreamSynchronize")) == 1
    np.testing.assert_array_equal(host, fill_output(module, host.reshape(-1)[0]))
    target = on_gpu(module)
    fake_gpu.start_log(log)
    module.run_into({}, {port.name: target})
    fake_gpu.stop_log()
    # The output is copied only to the caller's tensor, and not to memory of the host.
    assert len(fake_gpu.logged(log, "cudaMemcpyAsync")) == 1


def test_a_call_and_a_session_wait_once(artifact: Artifact, tmp_path: Path) -> None:
    module, session = GraphModule(artifact), Session(artifact)
    x = image(module)
    for run in (lambda: module(x), lambda: session.run(None, {session.inputs[0].name: x})):
        run()
        log = tmp_path / "calls.jsonl"
        fake_gpu.start_log(log)
        run()
        fake_gpu.stop_log()
        assert len(fake_gpu.logged(log, "cudaStreamSynchronize")) == 1
        assert len(fake_gpu.logged(log, "cudaMemcpyAsync")) == 2


# Bindings.


def bound(artifact: Artifact) -> tuple[Session, Binding, str, str]:
    session = Session(artifact)
    return session, session.io_binding(), session.inputs[0].name, session.outputs[0].name


def test_a_binding_of_tensors_on_the_gpu(artifact: Artifact, tmp_path: Path) -> None:
    session, binding, given, wanted = bound(artifact)
    x = tvm.runtime.tensor(image(binding._module), device=tvm.cuda(0))
    target = on_gpu(binding._module)
    binding.bind_input(given, x)
    assert binding.bind_output(wanted, target) is target
    assert repr(binding) == f"Binding(in place: nothing; copied in each run: {given}, {wanted})"
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    session.run_with_iobinding(binding)
    fake_gpu.stop_log()
    addresses = {(c["from"], c["to"]) for c in fake_gpu.logged(log, "cudaMemcpyAsync")}
    assert {pair[0] for pair in addresses} >= {fake_gpu.address_of(x)}
    assert {pair[1] for pair in addresses} >= {fake_gpu.address_of(target)}
    assert len(addresses) == 2
    assert binding.get_outputs() == [target]


def test_an_output_that_is_not_bound_stays_on_the_gpu(artifact: Artifact, tmp_path: Path) -> None:
    session, binding, given, _ = bound(artifact)
    binding.bind_cpu_input(given, image(binding._module))
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    session.run_with_iobinding(binding)
    fake_gpu.stop_log()
    assert len(fake_gpu.logged(log, "cudaMemcpyAsync")) == 1  # Only the input is copied.
    (view,) = binding.get_outputs()
    memory = fill_output(binding._module, 6)
    assert tvm_ffi.from_dlpack(view).data_ptr() == memory.ctypes.data
    (copy,) = binding.copy_outputs_to_cpu()
    assert (copy == 6).all()


def test_a_binding_refuses_tensors_that_do_not_fit(artifact: Artifact) -> None:
    _, binding, given, wanted = bound(artifact)
    small = tvm.runtime.empty((3,), "float32", tvm.cuda(0))
    with pytest.raises(InputError, match="must be float32 of shape"):
        binding.bind_input(given, small)
    with pytest.raises(InputError, match="must be float32 of shape"):
        binding.bind_output(wanted, small)
