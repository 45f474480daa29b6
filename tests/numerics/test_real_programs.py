"""Runs real programs with `Session` in place of onnxruntime's session. Answers must be equal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_interop import Session

pytestmark = pytest.mark.slow

Ours = Callable[..., Session]


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ours:
    """`Session` without a search for schedules. Artifacts are kept in a folder of the test."""
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    return functools.partial(Session, scheduler="sequential", latency_db=":memory:")


def test_magika_tells_types_of_files(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    from magika import Magika

    contents = [
        b'#!/bin/sh\nset -e\nfor file in *.txt; do\n  wc -l "$file"\ndone\n' * 3,
        b"def main(argv):\n    import sys\n    print(len(argv), file=sys.stderr)\n" * 5,
        b'{"name": "magika", "versions": [1, 2, 3], "nested": {"a": null}}\n' * 4,
        b"<!DOCTYPE html><html><head><title>t</title></head><body><p>text</p></body></html>" * 4,
        b'#include <stdio.h>\nint main(void) { printf("hello\\n"); return 0; }\n' * 4,
    ]

    def answers() -> list[tuple[str, float]]:
        magika = Magika()
        found = [magika.identify_bytes(content) for content in contents]
        return [(str(each.output.label), float(each.score)) for each in found]

    wanted = answers()
    assert len({label for label, _ in wanted}) == len(contents)
    monkeypatch.setattr("magika.magika.rt.InferenceSession", ours)
    for (label, score), (other, other_score) in zip(answers(), wanted, strict=True):
        assert label == other
        assert score == pytest.approx(other_score, abs=1e-4)


def test_silero_vad_finds_speech(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime
    import silero_vad
    import torch

    # A signal like a voice: pulses through two resonances, with pauses between.
    rng = np.random.default_rng(0)
    seconds = np.arange(4 * 16000) / 16000
    pulses = (np.diff(np.floor(seconds * 120), prepend=0) > 0).astype("float64")
    voice = np.zeros_like(pulses)
    for hertz, width in ((700, 90), (1200, 110), (2600, 160)):
        taps = np.arange(800) / 16000
        response = np.exp(-np.pi * width * taps) * np.sin(2 * np.pi * hertz * taps)
        voice += np.convolve(pulses, response)[: len(pulses)]
    voice *= (np.sin(2 * np.pi * 0.5 * seconds) > 0) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * seconds))
    sound = 0.3 * voice / np.abs(voice).max() + 0.001 * rng.standard_normal(len(voice))
    wave = torch.from_numpy(sound.astype("float32"))

    def answers() -> tuple[list[dict[str, Any]], np.ndarray]:
        model = silero_vad.load_silero_vad(onnx=True)
        spoken = silero_vad.get_speech_timestamps(wave, model, threshold=0.3)
        model.reset_states()
        windows = wave.reshape(-1, 512) if len(wave) % 512 == 0 else wave[: -(len(wave) % 512)]
        chances = [float(model(w, 16000)) for w in windows.reshape(-1, 512)]
        return spoken, np.array(chances)

    wanted, wanted_chances = answers()
    assert wanted_chances.max() > 0.3 > wanted_chances.min()
    monkeypatch.setattr(onnxruntime, "InferenceSession", ours)
    spoken, chances = answers()
    np.testing.assert_allclose(chances, wanted_chances, atol=2e-3)
    assert spoken == wanted


@pytest.mark.timeout(1800)  # Compiling the three networks is slow.
def test_rapidocr_reads_a_picture(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    import cv2
    from rapidocr_onnxruntime import RapidOCR

    picture = np.full((120, 320, 3), 255, np.uint8)
    cv2.putText(picture, "HELLO 42", (20, 75), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 0), 3)

    def answers() -> list[tuple[str, float]]:
        found, _ = RapidOCR()(picture)
        return [(text, float(score)) for _, text, score in found]

    wanted = answers()
    assert "42" in wanted[0][0]
    monkeypatch.setattr("rapidocr_onnxruntime.utils.infer_engine.InferenceSession", ours)
    got = answers()
    assert [text for text, _ in got] == [text for text, _ in wanted]
    assert [score for _, score in got] == pytest.approx([s for _, s in wanted], abs=1e-3)
