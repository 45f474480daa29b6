"""Quantises exported networks with onnxruntime, as users do, for a comparison of runtimes.

    python -m benchmarks.quantised_export ZOO FOLDER [NAME ...]

`ZOO` is the folder that `benchmarks.zoo_export` wrote. Each network is quantised by onnxruntime's
static quantisation, with activations in u8 and weights in s8. Three files are written for it:
- `NAME.qdq_channel.onnx` in QDQ form, with weight scales per channel;
- `NAME.qdq_tensor.onnx` in QDQ form, with weight scales per tensor;
- `NAME.qop_tensor.onnx` with QLinear operators, with weight scales per tensor.

The input of the network is written beside each file, as `.npz`. After that,
`python -m benchmarks.zoo FOLDER --torch none` compares runtimes on these files.

The ranges of activations come from the network's own input and three random ones (seed 0). The
weights are random, so the accuracy of a quantised network says nothing here. The comparison is
about time, and about whether two runtimes compute the same quantised network.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from .zoo import Network

DEFAULT = ("tv_resnet50", "tv_mobilenet_v3_small", "hf_bert_small")
KINDS = {
    "qdq_channel": (QuantFormat.QDQ, True),
    "qdq_tensor": (QuantFormat.QDQ, False),
    "qop_tensor": (QuantFormat.QOperator, False),
}
_DRAWN = 3

Array = npt.NDArray[np.generic]


class _Inputs(CalibrationDataReader):  # type: ignore[misc]
    """Inputs for calibration: the network's own input, then random ones.

    Integer inputs, such as tokens, are a random permutation of the network's own.
    """

    def __init__(self, feed: dict[str, Array]) -> None:
        self._feeds = self._made(feed)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)

    @staticmethod
    def _made(feed: dict[str, Array]) -> Iterator[dict[str, Array]]:
        yield feed
        draw = np.random.default_rng(0)
        for _ in range(_DRAWN):
            yield {
                name: draw.normal(size=array.shape).astype(array.dtype)
                if np.issubdtype(array.dtype, np.floating)
                else draw.permutation(array.reshape(-1)).reshape(array.shape)
                for name, array in feed.items()
            }


def quantise(network: Network, kind: str, out: Path) -> None:
    """Quantise one network, and write its input beside it.

    Parameters
    ----------
    kind: a key of `KINDS`.
    out: path of the `.onnx` file.
    """
    form, per_channel = KINDS[kind]
    feed = network.feed(network.model())
    with tempfile.TemporaryDirectory() as scratch:
        prepared = Path(scratch) / "prepared.onnx"
        quant_pre_process(str(network.path), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(out),
            _Inputs(feed),
            quant_format=form,
            per_channel=per_channel,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    np.savez(out.with_suffix(".npz"), **feed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "zoo", type=Path, help="folder of exported networks, NAME.onnx and NAME.npz"
    )
    parser.add_argument("folder", type=Path, help="folder for the quantised networks")
    parser.add_argument("networks", nargs="*", default=DEFAULT, metavar="NAME")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.networks:
        network = Network(arguments.zoo / f"{name}.onnx")
        for kind in KINDS:
            out = arguments.folder / f"{name}.{kind}.onnx"
            if not out.exists():
                quantise(network, kind, out)
                print(out.name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
