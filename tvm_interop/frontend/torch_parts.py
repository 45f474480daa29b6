"""Decomposes operators that PyTorch's exporter cannot convert to ONNX directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import torch_algebra, torch_complex, torch_flex, torch_quantised

_ATEN = torch.ops.aten


def spelled_out(program: Any) -> Any:
    """Return the program, with operators that the exporter cannot convert replaced by simpler ones.

    The replaced operators are: attention of other than four dimensions; LSTMs with projections;
    linear algebra with a check for errors; shifts by a tensor; some operators on complex numbers;
    powers of numbers of two types; cross entropy with probabilities, smoothed labels or a single
    row; operators of PT2E whose scales are tensors; and `clamp`, `arange` and differences of both
    integers and floats. A program without such operators is returned unchanged.
    """
    program = torch_flex.without_flex_attention(program)
    nodes = list(_calls(program))
    found = {node.target for node in nodes if _in_parts(node)}
    if not found and not any(map(_is_mixed, nodes)):
        return program
    table = torch.export.default_decompositions()
    kinds = {*found, _ATEN._scaled_dot_product_attention_math.default}
    chosen = {kind: table[kind] for kind in kinds if kind in table}
    shifts = {kind: made for kind, made in _SHIFTS.items() if kind in found}
    both = {kind: made for kind, made in _OF_FLOAT_RESULTS.items() if kind in found}
    powers = _POWERS if any(kind in _POWERS for kind in found) else {}
    own = {
        **shifts,
        **both,
        **powers,
        **_of_complex_numbers(),
        **torch_complex.functions(),
        **torch_complex.makers(),
        **torch_algebra.without_checks(),
        **torch_quantised.decompositions(),
        **(_SPLITS if any(kind in _SPLITS for kind in found) else {}),
    }
    result = program.run_decompositions({**chosen, **own})
    for node in filter(_is_mixed, _calls(result)):
        node.args = tuple(map(_as_float, node.args))
        node.kwargs = {name: _as_float(value) for name, value in node.kwargs.items()}
    for module in _modules(result):
        module.recompile()
    return result


def _modules(program: Any) -> Iterator[Any]:
    """Yield the modules of the program and of its parts, such as the branches of `cond`."""
    return (module for module in program.graph_module.modules() if hasattr(module, "graph"))


def _calls(program: Any) -> Iterator[Any]:
    """Yield the nodes that call operators, including nodes in parts of the program."""
    for module in _modules(program):
        yield from (node for node in module.graph.nodes if node.op == "call_function")


_SHIFTS = {
    _ATEN.__lshift__.Tensor: _ATEN.bitwise_left_shift.Tensor,
    _ATEN.__rshift__.Tensor: _ATEN.bitwise_right_shift.Tensor,
}


def _difference(x: Any, other: Any, alpha: Any = 1) -> Any:
    if x.is_floating_point() or not isinstance(other, float):
        return NotImplemented
    return x.to(torch.result_type(x, other)) * -alpha + other


def _power(x: Any, exponent: Any) -> Any:
    if x.is_complex() and not isinstance(exponent, torch.Tensor):
        return torch_complex.power(x, exponent)
    kind = torch.result_type(x, exponent)
    if isinstance(exponent, torch.Tensor):
        if x.dtype == exponent.dtype:
            return NotImplemented
        return _ATEN.pow.Tensor_Tensor(x.to(kind), exponent.to(kind))
    return NotImplemented if x.dtype == kind else _ATEN.pow.Tensor_Scalar(x.to(kind), exponent)


_POWERS = {_ATEN.pow.Tensor_Scalar: _power, _ATEN.pow.Tensor_Tensor: _power}
"""Operators whose result PyTorch's exporter gives the type of the base."""


def _split(x: Any, size: Any, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not x.is_complex() and not isinstance(size, torch.SymInt):
        return NotImplemented
    count = int((total + size - 1) // size)
    ends = [torch.sym_min((i + 1) * size, total) for i in range(count)]
    return [_ATEN.slice.Tensor(x, dim, i * size, end) for i, end in enumerate(ends)]


def _chunks(x: Any, count: int, dim: int = 0) -> Any:
    size = (x.shape[dim] + count - 1) // count
    return _split(x, size, dim)


_SPLITS = {_ATEN.chunk.default: _chunks, _ATEN.split.Tensor: _split}
"""Operators that PyTorch's exporter converts for parts of a fixed size and real numbers only."""


_OF_FLOAT_RESULTS = {_ATEN.rsub.Scalar: _difference}
"""Operators that PyTorch's exporter does not convert if one operand has integers and the other is a
float.
"""


def _of_complex_numbers() -> dict[Any, Callable[..., Any]]:
    """Return decompositions that change operators only where they work on complex numbers.

    The decompositions compute with real and imaginary parts.
    """

    def copied(x: Any, source: Any, non_blocking: bool = False) -> Any:
        del non_blocking
        if not x.is_complex() or x.dtype != source.dtype:
            return NotImplemented
        return source if x.shape == source.shape else _ATEN.expand.default(source, x.shape)

    def of_parts(each: Callable[..., Any]) -> Callable[..., Any]:
        def compute(x: Any, *given: Any, **named: Any) -> Any:
            if not x.is_complex():
                return NotImplemented
            tensors = [x, *(value for value in given if isinstance(value, torch.Tensor))]
            others = given[len(tensors) - 1 :]
            parts = [t.real for t in tensors], [t.imag for t in tensors]
            return torch.complex(*(each(*part, *others, **named) for part in parts))

        return compute

    def padded(x: Any, pad: Any, value: Any = 0) -> Any:
        if not x.is_complex() or value:
            return NotImplemented
        parts = (_ATEN.constant_pad_nd.default(part, pad, 0.0) for part in (x.real, x.imag))
        return torch.complex(*parts)

    def angle(x: Any) -> Any:
        return _ATEN.atan2.default(x.imag, x.real) if x.is_complex() else NotImplemented

    return {
        _ATEN.angle.default: angle,
        _ATEN.bmm.default: torch_complex.product(_ATEN.bmm.default),
        _ATEN.constant_pad_nd.default: padded,
        _ATEN.copy.default: copied,
        **{each: of_parts(each) for each in _BY_PARTS},
        _ATEN.mm.default: torch_complex.product(_ATEN.mm.default),
    }


_BY_PARTS = (
    _ATEN.cumsum.default, _ATEN.diagonal.default, _ATEN.expand.default, _ATEN.index.Tensor,
    _ATEN.repeat.default, _ATEN.repeat_interleave.self_int, _ATEN.select.int,
    _ATEN.select_scatter.default, _ATEN.slice_scatter.default, _ATEN.squeeze.dims,
    _ATEN.tril.default, _ATEN.triu.default, _ATEN.unsqueeze.default,
)  # fmt: skip
"""Operators that treat the real and the imaginary parts in the same way."""


_OF_REAL_RESULTS = frozenset(
    {
        _ATEN.angle.default, _ATEN.eq.Tensor, _ATEN.fft_hfft.default, _ATEN.fft_irfft.default,
        _ATEN.fft_irfft2.default, _ATEN.fft_irfftn.default, _ATEN.linalg_norm.default,
        _ATEN.linalg_vector_norm.default, _ATEN.ne.Tensor, _ATEN.new_full.default,
        _ATEN.new_ones.default, _ATEN.new_zeros.default,
    }
)  # fmt: skip
"""Operators that may give real results for complex numbers."""


_COMPLEX = frozenset(
    {
        *_BY_PARTS,
        *(torch_complex.functions().keys() - {_ATEN.mul.Scalar, _ATEN.mul.Tensor}),
        _ATEN.constant_pad_nd.default, _ATEN.copy_.default, _ATEN.einsum.default,
        _ATEN.fft_fft.default, _ATEN.fft_fft2.default, _ATEN.fft_fftn.default,
        _ATEN.fft_ifft.default, _ATEN.fft_ifft2.default, _ATEN.fft_ifftn.default,
        _ATEN.full.default, _ATEN.full_like.default, _ATEN.matmul.default,
        _ATEN.ones.default, _ATEN.ones_like.default,
        _ATEN.pad.default, _ATEN.scalar_tensor.default, _ATEN.zeros.default,
        _ATEN.zeros_like.default,
    }
)  # fmt: skip
"""Operators that PyTorch's exporter does not convert for complex numbers."""


def _in_parts(node: Any) -> bool:
    if any(isinstance(each, complex) for each in node.args):
        return True
    if node.target is _ATEN.scaled_dot_product_attention.default:
        return len(node.args[0].meta["val"].shape) != 4
    if node.target is _ATEN.lstm.input:
        hidden, cell = (state.meta["val"] for state in node.args[1])
        return bool(hidden.shape[2] != cell.shape[2])
    if node.target in _OF_FLOAT_RESULTS:
        is_float = node.args[0].meta["val"].is_floating_point()
        return not is_float and isinstance(node.args[1], float)
    if node.target in _SPLITS:
        x = node.args[0].meta["val"]
        size = x.shape[dict(enumerate(node.args)).get(2, 0)]
        return bool(x.is_complex()) or not isinstance(size, int)
    if node.target in _POWERS:
        base, exponent = (getattr(each, "meta", {}).get("val", each) for each in node.args)
        if base.is_complex():
            return not isinstance(exponent, torch.Tensor)
        return bool(base.dtype != getattr(exponent, "dtype", base.dtype)) or (
            base.dtype == torch.bool and not isinstance(exponent, torch.Tensor)
        )
    if node.target is _ATEN.cross_entropy_loss.default:
        scores, target = (each.meta["val"] for each in node.args[:2])
        is_smoothed = dict(enumerate(node.args)).get(5, 0.0) != 0.0
        return is_smoothed or len(scores.shape) == 1 or bool(target.is_floating_point())
    if node.target in _OF_REAL_RESULTS:
        return any(each.meta["val"].is_complex() for each in (node.args[0], node))
    if node.target in _COMPLEX:
        return bool(node.meta["val"].is_complex())
    own = (torch_algebra.CHECKED, _SHIFTS, torch_quantised.decompositions())
    return any(node.target in kinds for kinds in own)


_OF_BOTH = frozenset(
    {
        _ATEN.arange.default, _ATEN.arange.start, _ATEN.arange.start_step,
        _ATEN.clamp.default, _ATEN.clip.default,
    }
)  # fmt: skip
"""Operators that PyTorch's exporter converts wrongly if some of their arguments are integers."""


def _is_mixed(node: Any) -> bool:
    if node.target not in _OF_BOTH:
        return False
    given = (*node.args, *node.kwargs.values())
    return {type(value) for value in given if type(value) in (int, float)} == {int, float}


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value
