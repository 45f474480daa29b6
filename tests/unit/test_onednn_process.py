"""Tests oneDNN in processes of their own: where it is missing, and without AVX-512."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tests.unit.test_onednn import needs_onednn


def run_python(code: str, library: str) -> str:
    """Run `code` in a process that looks for oneDNN at `library`, and return what it prints."""
    environment = os.environ | {"TVM_INTEROP_ONEDNN_LIBRARY": library}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("library", ["/nowhere/libdnnl.so.3", "libc.so.6"])
def test_a_missing_library_is_told_once(library: str) -> None:
    code = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
import sys
logging.getLogger().handlers[0].setStream(sys.stdout)
from tvm_interop.machine.kernel_libraries import available_providers
print(available_providers(), available_providers(["onednn", "tvm"]))
"""
    output = run_python(code, library)
    assert output.count("library onednn cannot be loaded") == 1
    assert library in output
    assert "('tvm',) ('tvm',)" in output


def without_avx512(code: str) -> str:
    """The output of a process without AVX-512 for oneDNN. The output names the kernels that ran."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


@needs_onednn
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have no AVX-512")
def test_convolutions_and_pools_without_avx512_have_kernels_for_vectors() -> None:
    """oneDNN's reference kernels take any layout, but are a thousand times slower than its other
    kernels: with them, a convolution took a minute."""
    code = """
import numpy as np
from tests.kind_variants import in_layout, laid_out, plain as made_plain
from tests.unit.test_onednn import conv, plain, random, run
from tvm_interop.machine.kernel_libraries import blocked_layout
print(blocked_layout("onednn"))
wide = {"padding": (1, 1, 1, 1), "has_bias": True, "activation": "relu"}
window = {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
for op in (
    conv((1, 24, 9, 9), 40, (3, 3), **wide),
    conv((1, 3, 9, 9), 40, (3, 3), **wide),
    plain("max_pool2d", [(1, 24, 8, 8), (1, 24, 4, 4)], **window),
):
    arrays = random(*op.shapes[:-1])
    blocked = in_layout(op, "blocked by 8" if op.shapes[0][1] > 8 else "plain to blocked by 8")
    given = [laid_out(array, layout) for array, layout in zip(arrays, blocked.layouts)]
    got = made_plain(run(blocked, given), op.shapes[-1], "blocked8")
    np.testing.assert_allclose(got, run(op, arrays), rtol=1e-5, atol=1e-5)
"""
    said = without_avx512(code).splitlines()
    assert "blocked8" in said
    ran = {tuple(line.split(",")[3:5]) for line in said if ",exec," in line}
    assert ("convolution", "jit:avx2") in ran
    assert ("pooling", "jit:avx2") in ran
    assert not {name for _, name in ran if name.startswith("ref")}


@needs_onednn
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have no AVX-512")
def test_bits_do_not_depend_on_the_team_without_avx512() -> None:
    code = """
import numpy as np
from tests.unit.test_onednn import WIDE, random, run
for op in WIDE.values():
    arrays = random(*op.shapes[:-1])
    np.testing.assert_array_equal(run(op, arrays, threads=3), run(op, arrays), err_msg=str(op))
"""
    assert "convolution,jit:avx2" in without_avx512(code)


@needs_onednn
@pytest.mark.parametrize(("columns", "padded"), [(512, True), (1024, True), (500, False)])
def test_rows_that_would_collide_in_a_cache_are_put_apart(columns: int, padded: bool) -> None:
    """Without AVX-512, oneDNN's kernel of products is slow for rows that collide in a cache."""
    code = f"""
import numpy as np
from tests.unit.test_onednn import plain, random, run
x, w, b = random((3, 40), (40, {columns}), ({columns},))
op = plain("matmul", [x.shape, w.shape, b.shape, (3, {columns})], has_bias=True, activation="relu")
np.testing.assert_allclose(run(op, [x, w, b]), np.maximum(x @ w + b, 0), rtol=1e-4, atol=1e-4)
"""
    said = without_avx512(code)
    assert "matmul,gemm:jit:f32" in said
    assert (f":{columns + 16}x1" in said) is padded
