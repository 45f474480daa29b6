"""Compares trained models, from the wheels of four packages, with onnxruntime."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.numerics.onnx_oracle import run_onnxruntime

pytestmark = pytest.mark.slow

SPEECH = {"input": (1, 576), "state": (2, 1, 128)}
MODELS: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {
    ("magika", "model.onnx"): {"bytes": (1, 2048)},
    ("nudenet", "320n.onnx"): {"images": (1, 3, 320, 320)},
    ("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx"): {"x": (1, 3, 320, 320)},
    ("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx"): {"x": (1, 3, 48, 320)},
    ("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx"): {"x": (1, 3, 48, 192)},
    ("silero-vad", "silero_vad.onnx"): SPEECH,
    ("silero-vad", "silero_vad_16k_op15.onnx"): SPEECH,
    ("silero-vad", "silero_vad_16k_sequence.onnx"): {"input": (1, 576)},
    ("silero-vad", "silero_vad_half.onnx"): SPEECH,
    ("silero-vad", "silero_vad_op18_ifless.onnx"): SPEECH,
    ("silero-vad", "silero_vad_openvino_16k.onnx"): {},
}


def path_of(package: str, name: str) -> Path:
    found = [file for file in files(package) or () if file.name == name]
    assert len(found) == 1, f"{package} has no {name}"
    return Path(str(found[0].locate()))


@pytest.mark.parametrize(("package", "name"), MODELS)
def test_like_onnxruntime(package: str, name: str) -> None:
    path = path_of(package, name)
    model = onnx.load(path)
    shapes = MODELS[package, name]
    artifact = tvm_interop.compile(
        path, scheduler="sequential", latency_db=":memory:", input_shapes=shapes
    )
    module = tvm_interop.GraphModule(artifact)
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape, dtype = (info[value.name] for info in module.get_input_info())
        if value.name == "sr":
            feeds[value.name] = np.array(16000, dtype)
        elif dtype.startswith("int"):
            feeds[value.name] = rng.integers(0, 257, shape).astype(dtype)
        else:
            feeds[value.name] = (0.1 * rng.standard_normal(shape)).astype(dtype)
    wanted = run_onnxruntime(model, feeds)
    module.run(**feeds)
    for i, want in enumerate(wanted.values()):
        scale = max(1.0, float(np.abs(want).max()))
        got = module.get_output(i).numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * scale)
