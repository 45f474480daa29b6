"""Describes what an operator computes, so that a kernel library can compute it instead."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..errors import ArtifactError
from .storage import Layout, StoredType

Step = tuple[Literal["clip", "round", "linear", "add_tensor"], float, float]
"""What is done to each number on the way to a quantised result (see `LibraryOp.steps`)."""


class LibraryOp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operator, apart from any model and any kernel.

    Attributes
    ----------
    op: `conv2d` takes data (N,C,H,W) and a weight (O,C/groups,KH,KW); `matmul` takes (...,M,K) and
        (K,N) or (...,K,N); both then a bias and a tensor to add, where there are such. The pools
        and `lrn` (local response normalisation, across channels) take data; `reorder` changes its
        layout; `concat` joins images along the channels. `scale` takes data (N,C,H,W), a factor
        (N or 1,C,1,1), which it multiplies it by, and a bias, where there is one. `softmax` takes
        data, `layer_norm` data (...,C), a scale and a shift (C,): both go along the last axis.
        `quantised_conv2d` takes data (N,H,W,C), a weight (O,C/groups,KH,KW), a scale (O,) and a
        bias (O,), where there is one, and makes (N,H,W,O); `quantised_matmul` takes (...,M,K), a
        right side as `matmul` has it, a scale (N,) and a bias (N,). They add up products of
        integers, each less its tensor's zero point, in int32. That times the scale, plus the bias,
        then the steps and the activation, is the result: of float32, or rounded to int8 or uint8,
        halves to even, where what is out of range becomes the nearest. `quantised_max_pool2d` and
        `quantised_avg_pool2d` take (N,H,W,C); the steps are done to the mean of the integers.
    shapes: of the arguments in order, the output last; those of plain tensors, whatever the layout.
    layouts: how each lies in memory; `blocked16` keeps 16 channels of a pixel side by side.
    window, strides, dilation: by height and width; a dilation of 1 is none.
    padding: top, left, bottom, right.
    has_sum: whether a tensor of the output's shape is added, before the activation; of what is
        quantised, by one of the steps, and as the integers that it holds.
    activation: what is done to the sum at the end; `swish` is x * sigmoid(x), `hardsigmoid`
        clip(x / 6 + 1 / 2, 0, 1), `hardswish` x times that, and `gelu_tanh` the approximation of
        `gelu` by a hyperbolic tangent.
    clip_low, clip_high: of the activation `clip`.
    epsilon: for `layer_norm`, what is added to the variance.
    dtype: what the factors of products are rounded to; those of float16 and bfloat16 add up in
        float32. Of what has no products, the type it computes in. Of what is quantised, int8.
    stored: of each argument, the type its numbers are kept in memory as; empty where all are kept
        as `dtype`.
    allow_tf32: on a GPU, whether factors of float32 products may be rounded to TF32, which keeps
        10 of their 23 bits and is several times faster.
    data_zero, weight_zero: of what is quantised, the integers that stand for 0.
    steps: of what is quantised, what is done in order before the activation: `clip` to two bounds,
        `round` to the nearest integer, `linear` with a factor and what is added to the product, and
        `add_tensor`. Numbers that a kind does not take are 0.
    cut: where one argument is cut out of the tensor that is given for it: the argument, the axis,
        where on that axis it begins, and the tensor's size along it; empty where none is. `shapes`
        has what is cut out. For oneDNN alone: the data of convolutions by rows, and the right side
        of `matmul` by columns, all plain.
    counts_padding: for `avg_pool2d`, whether padding counts as zeros.
    lrn_size, lrn_alpha, lrn_beta, lrn_bias: for `lrn`, as ONNX's operator has them: divide by
        (bias + alpha / size * sum of squares over `size` channels) to the power of beta.
    """

    op: Literal[
        "conv2d",
        "matmul",
        "max_pool2d",
        "avg_pool2d",
        "lrn",
        "reorder",
        "concat",
        "scale",
        "softmax",
        "layer_norm",
        "quantised_conv2d",
        "quantised_matmul",
        "quantised_max_pool2d",
        "quantised_avg_pool2d",
    ]
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]
    window: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    has_bias: bool = False
    has_sum: bool = False
    activation: Literal[
        "none",
        "relu",
        "clip",
        "sigmoid",
        "tanh",
        "swish",
        "hardswish",
        "hardsigmoid",
        "gelu",
        "gelu_tanh",
    ] = "none"
    clip_low: float = 0.0
    clip_high: float = 0.0
    counts_padding: bool = False
    lrn_size: int = 0
    lrn_alpha: float = 0.0
    lrn_beta: float = 0.0
    lrn_bias: float = 0.0
    epsilon: float = 0.0
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    allow_tf32: bool = False
    stored: tuple[StoredType, ...] = ()
    data_zero: int = 0
    weight_zero: int = 0
    cut: tuple[int, ...] = ()
    steps: tuple[Step, ...] = ()

    def to_json(self) -> str:
        """As JSON text, for `from_json`; equal operators give equal text."""
        fields = self.fields()
        for name, default in _LATER.items():
            if fields[name] == default:
                del fields[name]
        return msgspec.json.encode(fields).decode()

    @staticmethod
    def from_json(text: str | bytes) -> LibraryOp:
        """Read what `to_json` wrote.

        Raises
        ------
        ArtifactError
            It is no such text.
        """
        try:
            return msgspec.json.decode(text, type=LibraryOp)
        except msgspec.DecodeError as error:
            raise ArtifactError(f"this describes no operator of a library: {error}") from error

    def fields(self) -> dict[str, Any]:
        """The attributes by name, as the native code takes them."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def given_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the tensors that are given: as `shapes`, but the whole of one that is cut."""
        if not self.cut:
            return self.shapes
        argument, axis, _, size = self.cut
        whole = list(self.shapes[argument])
        whole[axis] = size
        return (*self.shapes[:argument], tuple(whole), *self.shapes[argument + 1 :])

    @property
    def is_quantised(self) -> bool:
        """Whether it multiplies or moves integers of 8 bits."""
        return self.op.startswith("quantised_")

    @property
    def stored_types(self) -> tuple[str, ...]:
        """Of each argument, the type its numbers are kept in memory as."""
        return self.stored or (self.dtype,) * len(self.shapes)

    @property
    def flops(self) -> int:
        """Floating-point operations; 0 where memory alone decides."""
        output = self.shapes[-1]
        size = 1
        for dim in output:
            size *= dim
        if self.op in ("conv2d", "quantised_conv2d"):
            _, channels, height, width = self.shapes[1]
            return 2 * size * channels * height * width
        return 2 * size * self.shapes[0][-1] if self.op in ("matmul", "quantised_matmul") else 0


_LATER: dict[str, Any] = {
    "dtype": "float32",
    "allow_tf32": False,
    "epsilon": 0.0,
    "stored": (),
    "data_zero": 0,
    "weight_zero": 0,
    "cut": (),
    "steps": (),
}
"""Fields that were added later, with their defaults. A field with its default is left out of the
text, so that texts in existing latency databases stay equal."""
