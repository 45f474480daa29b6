"""Where the oracles differ, which is right by ONNX's text; and what is refused, and why."""

from __future__ import annotations

from typing import NamedTuple


class Decision(NamedTuple):
    """Which oracle counts for an operator.

    Attributes
    ----------
    oracle: `onnxruntime`, `reference`, or `either`, where the text leaves it open.
    reason: what the text says, or where the other is wrong.
    before: holds for older opsets alone.
    """

    oracle: str
    reason: str
    before: int = 99


_AS_LATER = "the reference computes old opsets as it does later ones"
_RECURRENT = "the reference has no lengths, clips, peepholes or activations but the usual ones"
_TYPE = "the reference adds small integers up in 64 bits, and gives that type"
DECIDED: dict[str, Decision] = {
    "BatchNormalization": Decision("onnxruntime", "opset 9 divides by sqrt(var + epsilon) too", 14),
    "Clip": Decision("onnxruntime", "NaN is no bound: `x < NaN` is false in ONNX's definition"),
    "ConvTranspose": Decision("onnxruntime", "SAME_* means a size of input times stride"),
    "DFT": Decision("reference", "onnxruntime is off where an inverse has another length"),
    "DeformConv": Decision("onnxruntime", "the reference samples float64 in float32"),
    "Det": Decision("onnxruntime", "the reference gives 0 for a matrix with NaN"),
    "Gelu": Decision("reference", "the tanh of onnxruntime has fewer digits"),
    "GRU": Decision("onnxruntime", _RECURRENT),
    "GridSample": Decision("onnxruntime", "cubic at borders; why the reference differs is open"),
    "GroupNormalization": Decision("onnxruntime", "the reference computes float64 in float32"),
    "GlobalMaxPool": Decision("onnxruntime", "the reference leaves axes out"),
    "Hardmax": Decision("onnxruntime", _AS_LATER, 13),
    "LRN": Decision("onnxruntime", "the reference rounds to float16 in between"),
    "LSTM": Decision("onnxruntime", _RECURRENT),
    "LayerNormalization": Decision("onnxruntime", "mean and deviation are float32 by their type"),
    "LogSoftmax": Decision("onnxruntime", _AS_LATER, 13),
    "LpNormalization": Decision("onnxruntime", "the reference takes no absolute values"),
    "LpPool": Decision("onnxruntime", "the reference takes a mean of fewer times more elements"),
    "MaxPool": Decision("onnxruntime", "sizes by SAME_LOWER are rounded up, as by SAME_UPPER"),
    "MaxUnpool": Decision("reference", "ONNX's own test counts places before a size is given"),
    "QuantizeLinear": Decision("onnxruntime", "the reference overflows before it saturates"),
    "RNN": Decision("onnxruntime", _RECURRENT),
    "ReduceLogSumExp": Decision("either", "of infinity and its opposite"),
    "ReduceProd": Decision("either", "what is too large wraps around, or not"),
    "ReduceMean": Decision("onnxruntime", _TYPE),
    "ReduceSum": Decision("onnxruntime", _TYPE),
    "ReduceSumSquare": Decision("onnxruntime", _TYPE),
    "Resize": Decision("either", "a scaled size that is no whole number, and a place that is half"),
    "RoiAlign": Decision("onnxruntime", "before opset 16 nothing is shifted", 16),
    "STFT": Decision("reference", "onnxruntime loses digits unless the length is a power of two"),
    "Sign": Decision("either", "of NaN nothing is said"),
    "Slice": Decision("reference", "an end past the last element is the last, backwards too"),
    "Softmax": Decision("onnxruntime", _AS_LATER, 13),
    "Swish": Decision("reference", "onnxruntime approximates"),
}
"""By operator."""


def oracle_for(op: str, opset: int) -> str:
    """The oracle that counts for an operator; `either` where any does, empty where both do."""
    decision = DECIDED.get(op)
    return decision.oracle if decision and opset < decision.before else ""


class Refusal(NamedTuple):
    """What is refused although onnxruntime runs it.

    Attributes
    ----------
    op: the operator; any if empty.
    words: of our message.
    reason: why it stays so.
    """

    op: str
    words: str
    reason: str


REFUSED: list[Refusal] = [
    Refusal("QuantizeLinear", "blocked", "weights come quantised: nobody quantises in blocks"),
    Refusal("Resize", "means of", "onnxruntime's own rounding decides where they are whole"),
    Refusal("RoiAlign", "mode `max`", "no kernel takes ONNX's maximum of weighted corners"),
]
