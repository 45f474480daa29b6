"""Lists the refused cases, and the cases in which the oracles differ, with the right oracle."""

from __future__ import annotations

from typing import NamedTuple


class Decision(NamedTuple):
    """The oracle that is right for an operator.

    Attributes
    ----------
    oracle: `onnxruntime`, `reference`, or `either` if ONNX's text leaves the result open.
    reason: the words of ONNX's text, or the fault of the other oracle.
    before: an opset. The decision holds only for earlier opsets.
    """

    oracle: str
    reason: str
    before: int = 99


_AS_LATER = "the reference computes old opsets like later ones"
_RECURRENT = "the reference has no lengths, clips, peepholes or unusual activations"
_TYPE = "the reference adds small integers up in 64 bits, and gives that type"
DECIDED: dict[str, Decision] = {
    "BatchNormalization": Decision("onnxruntime", "opset 9 too divides by sqrt(var + epsilon)", 14),
    "Clip": Decision("onnxruntime", "NaN is not a bound: `x < NaN` is false in ONNX's definition"),
    "ConvTranspose": Decision("onnxruntime", "SAME_* means that the size is input times stride"),
    "DFT": Decision("reference", "onnxruntime's inverse is wrong if it changes the length"),
    "DeformConv": Decision("onnxruntime", "the reference samples float64 in float32"),
    "Det": Decision("onnxruntime", "the reference gives 0 for a matrix that contains NaN"),
    "DynamicQuantizeLinear": Decision(
        "onnxruntime", "ONNX does not define the result if all numbers are 0"
    ),
    "Gelu": Decision("reference", "the tanh of onnxruntime has fewer digits"),
    "GRU": Decision("onnxruntime", _RECURRENT),
    "GridSample": Decision("onnxruntime", "the reference differs at borders, if mode is cubic"),
    "GroupNormalization": Decision("onnxruntime", "the reference computes float64 in float32"),
    "GlobalMaxPool": Decision("onnxruntime", "the reference leaves axes out"),
    "Hardmax": Decision("onnxruntime", _AS_LATER, 13),
    "LRN": Decision("onnxruntime", "the reference rounds to float16 in between"),
    "LSTM": Decision("onnxruntime", _RECURRENT),
    "LayerNormalization": Decision("onnxruntime", "by ONNX's text, mean and deviation are float32"),
    "LogSoftmax": Decision("onnxruntime", _AS_LATER, 13),
    "Loop": Decision("onnxruntime", "the reference joins iterations without a new axis"),
    "LpNormalization": Decision("onnxruntime", "the reference omits absolute values"),
    "LpPool": Decision("onnxruntime", "the reference adds up a mean times a number of elements"),
    "MaxPool": Decision("onnxruntime", "sizes by SAME_LOWER are rounded up, as by SAME_UPPER"),
    "MaxUnpool": Decision("reference", "in ONNX's test, indices ignore `output_shape`"),
    "MeanVarianceNormalization": Decision(
        "reference", "ONNX adds 1e-9 to the deviation, which onnxruntime leaves out"
    ),
    "QuantizeLinear": Decision("onnxruntime", "the reference overflows before it saturates"),
    "RNN": Decision("onnxruntime", _RECURRENT),
    "ReduceLogSumExp": Decision("either", "ONNX does not define it for opposite infinities"),
    "ReduceProd": Decision("either", "ONNX does not say whether large results wrap around"),
    "ReduceMean": Decision("onnxruntime", _TYPE),
    "ReduceSum": Decision("onnxruntime", _TYPE),
    "ReduceSumSquare": Decision("onnxruntime", _TYPE),
    "Resize": Decision("either", "ONNX leaves sizes and positions open that are not whole"),
    "RoiAlign": Decision("onnxruntime", "no shift by half a pixel before opset 16", 16),
    "STFT": Decision("reference", "onnxruntime loses digits unless the length is a power of two"),
    "Sign": Decision("either", "ONNX does not define the sign of NaN"),
    "Slice": Decision(
        "reference", "ONNX clamps an end past the last element, also for a negative step"
    ),
    "Softmax": Decision("onnxruntime", _AS_LATER, 13),
    "Swish": Decision("reference", "onnxruntime computes an approximation"),
}
"""The decisions, by operator."""


def oracle_for(op: str, opset: int) -> str:
    """The oracle that is right for an operator.

    The result is `either` if agreement with one oracle is enough, and "" if the oracles must agree.
    """
    decision = DECIDED.get(op)
    return decision.oracle if decision and opset < decision.before else ""


class Refusal(NamedTuple):
    """A case that we refuse although onnxruntime runs it.

    Attributes
    ----------
    op: the operator; "" stands for any operator.
    words: words that our error message contains.
    reason: why it is refused.
    """

    op: str
    words: str
    reason: str


REFUSED: list[Refusal] = [
    Refusal("Resize", "means of", "onnxruntime's own rounding decides which scales are whole"),
]
