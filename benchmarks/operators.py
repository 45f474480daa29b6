"""Compares single operators with onnxruntime on one core and two: `python -m benchmarks.operators`.

The operators are convolutions of the networks that the papers measure. On two cores we divide each
operator into two parts on two streams. onnxruntime divides it among its threads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_interop import GraphModule
from tvm_interop.compiler.api import Compilation, CompileOptions

from . import harness, machine_state
from .options import add_force, add_rounds
from .peers import OnnxRuntime, read_in_place

AGAIN = harness.AGAIN


@dataclass(frozen=True)
class Convolution:
    """A convolution with bias and ReLU on one square image.

    Attributes
    ----------
    channels, outputs: number of input channels and of output channels.
    size: height and width of the image, in pixels.
    kernel: height and width of the kernel.
    """

    channels: int
    outputs: int
    size: int
    kernel: tuple[int, int]
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """A short description, such as "3x3 64->96 at 35"; stride and groups follow if not 1."""
        height, width = self.kernel
        more = f" /{self.stride}" if self.stride > 1 else ""
        more += f" g{self.groups}" if self.groups > 1 else ""
        return f"{height}x{width} {self.channels}->{self.outputs} at {self.size}{more}"

    def model(self) -> onnx.ModelProto:
        """The convolution as an ONNX model with random weights.

        Input and output are in NCHW layout. A runtime that uses another layout has to convert the
        tensors, and its time includes the conversion.
        """
        rng = np.random.default_rng(0)
        height, width = self.kernel
        shape = (self.outputs, self.channels // self.groups, height, width)
        scale = (2 / np.prod(shape[1:])) ** 0.5
        weight = (rng.standard_normal(shape) * scale).astype(np.float32)
        bias = rng.standard_normal(self.outputs).astype(np.float32)
        pads = [height // 2, width // 2, height // 2, width // 2]
        nodes = [
            helper.make_node(
                "Conv", ["x", "w", "b"], ["c"], pads=pads, strides=[self.stride] * 2,
                kernel_shape=list(self.kernel), group=self.groups,
            ),
            helper.make_node("Relu", ["c"], ["y"]),
        ]  # fmt: skip
        out_height, out_width = (
            (self.size + 2 * (extent // 2) - extent) // self.stride + 1 for extent in self.kernel
        )
        graph = helper.make_graph(
            nodes,
            "conv",
            [_image("x", self.channels, self.size, self.size)],
            [_image("y", self.outputs, out_height, out_width)],
            [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
        )
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=9)


OPERATORS = (
    Convolution(288, 64, 35, (1, 1)),
    Convolution(64, 96, 35, (3, 3)),
    Convolution(48, 64, 35, (5, 5)),
    Convolution(768, 192, 17, (1, 1)),
    Convolution(128, 192, 17, (1, 7)),
    Convolution(192, 192, 17, (7, 1)),
    Convolution(2048, 320, 8, (1, 1)),
    Convolution(3, 64, 224, (7, 7), stride=2),
    Convolution(64, 64, 56, (3, 3)),
    Convolution(256, 256, 14, (3, 3)),
    Convolution(512, 512, 7, (3, 3)),
    Convolution(16, 64, 55, (1, 1)),
    Convolution(16, 64, 55, (3, 3)),
    Convolution(96, 208, 14, (3, 3)),
    Convolution(136, 136, 28, (3, 3), groups=136),
    Convolution(168, 168, 42, (5, 5), groups=168),
)


def _image(name: str, channels: int, height: int, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, height, width])


@dataclass(frozen=True)
class Row:
    """The results of one operator on `cores` cores.

    Attributes
    ----------
    ours_us, onnxruntime_us: median microseconds.
    ratio, ratio_interval: our time over onnxruntime's, and the 95% interval of this ratio.
    noise: ratio of two measurements of onnxruntime.
    """

    operator: str
    cores: int
    ours_us: float
    onnxruntime_us: float
    ratio: float
    ratio_interval: tuple[float, float]
    noise: float


def main() -> int:
    arguments = _arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    rows = []
    print("| operator | cores | ours us | onnxruntime us | ratio (95%) |\n|---|--:|--:|--:|--:|")
    for operator in OPERATORS:
        for cores in (1, 2):
            row = compare(operator, cores, arguments.rounds)
            rows.append(row)
            low, high = row.ratio_interval
            print(
                f"| {row.operator} | {cores} | {row.ours_us:.0f} | {row.onnxruntime_us:.0f} "
                f"| {row.ratio:.3f} ({low:.3f} to {high:.3f}) |",
                flush=True,
            )
    for cores in (1, 2):
        ratios = np.array([row.ratio for row in rows if row.cores == cores])
        print(
            f"\n{cores} core(s): geometric mean of ratios {np.exp(np.log(ratios).mean()):.3f}; we "
            f"are as fast or faster on {int((ratios <= 1).sum())} of {len(ratios)}"
        )
    if arguments.out is not None:
        found = {"machine": machine.as_dict(), "rows": [asdict(row) for row in rows]}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def compare(operator: Convolution, cores: int, rounds: int) -> Row:
    """Measure one operator. onnxruntime takes part twice, which gives the noise."""
    model = operator.model()
    feed = {"x": np.random.default_rng(1).standard_normal(_input_shape(model)).astype(np.float32)}
    ours, theirs = _ours(model, feed, cores), _onnxruntime(model, feed, cores)
    expected = theirs()
    np.testing.assert_allclose(ours(), expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    contestants = {"onnxruntime": theirs, "ours": ours}
    times = harness.measure(contestants, "onnxruntime", rounds)
    found = harness.summarise(times, "onnxruntime")
    return Row(
        operator.name,
        cores,
        found["ours"].median_us,
        found["onnxruntime"].median_us,
        found["ours"].ratio,
        found["ours"].ratio_interval,
        found["onnxruntime" + AGAIN].ratio,
    )


def _ours(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], cores: int
) -> Callable[[], np.ndarray]:
    compilation = Compilation(model, CompileOptions(streams=cores, threads=1))
    module = GraphModule(compilation.artifact(compilation.sequential()))

    run = read_in_place(module, feed)
    return lambda: run()[0]


def _onnxruntime(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], cores: int
) -> Callable[[], np.ndarray]:
    session = OnnxRuntime(parallel=False, threads=(cores,)).session(model, cores)
    return lambda: session.run(None, feed)[0]


def _input_shape(model: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rounds(parser, 60)
    parser.add_argument("--out", type=Path, default=None, help="write JSON to this file")
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
