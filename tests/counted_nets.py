"""Makes ONNX networks for tests. The sizes of their results depend on the data."""

from __future__ import annotations

import numpy as np
import onnx

from tests.nets import Net


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def suppression(
    net: Net,
    boxes: str,
    scores: str,
    most: int | None = 5,
    overlap: float | None = 0.5,
    least: float | None = 0.5,
    **attrs: int,
) -> str:
    """Add a `NonMaxSuppression` with the result `rows`."""
    inputs = [boxes, scores]
    inputs.append("" if most is None else net.constant(ints(most)))
    for value in (overlap, least):
        inputs.append("" if value is None else net.constant(np.array([value], np.float32)))
    while not inputs[-1]:
        inputs.pop()
    return net.op("NonMaxSuppression", inputs, "rows", **attrs)


def detector(boxes: int = 20, classes: int = 3) -> onnx.ModelProto:
    """The last operators of a detector: `rows` lists chosen boxes; others gather their data."""
    net = Net()
    given, scores = net.input("boxes", [1, boxes, 4]), net.input("scores", [1, classes, boxes])
    suppression(net, given, scores)
    last, one = net.constant(ints(1)), net.constant(ints(0))
    names = ("image", "class", "box")
    for i, name in enumerate(names):
        column = net.op("Gather", ["rows", net.constant(ints(i))], f"{name}_column", axis=1)
        net.op("Squeeze", [column, last], name)
        net.op("Unsqueeze", [name, last], f"{name}_wide")
    turned = net.op("Transpose", [scores], "turned", perm=[0, 2, 1])
    places = net.op("Concat", ["image_wide", "box_wide", "class_wide"], "places", axis=1)
    score = net.op("GatherND", [turned, places], "score")
    flat = net.op("Squeeze", [given, one], "flat")
    chosen = net.op("Gather", [flat, "box"], "chosen")
    number = net.op("Cast", ["class"], "number", to=onnx.TensorProto.FLOAT)
    parts = [chosen] + [net.op("Unsqueeze", [x, last], f"{x}_1") for x in (score, number)]
    net.op("Concat", parts, "detections", axis=1)
    return net.model("rows", "detections", "score", check=False)


def feeds(seed: int, scale: float, boxes: int = 20, classes: int = 3) -> dict[str, np.ndarray]:
    """Random boxes, and scores from 0 to `scale`."""
    rng = np.random.default_rng(seed)
    return {
        "boxes": rng.random((1, boxes, 4)).astype(np.float32),
        "scores": (rng.random((1, classes, boxes)) * scale).astype(np.float32),
    }
