"""Describes operators with constant weights that can be merged into one wider operator.

Each operator that is merged may be followed by a bias and an activation. IOS describes the merge of
convolutions (Ding et al., MLSys 2021, section 3). `merge_convs` performs the merge.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from .names import readers_of, values_of

_ADD = tvm.ir.Op.get("relax.add")
_RELU = tvm.ir.Op.get("relax.nn.relu")
_CLIP = tvm.ir.Op.get("relax.clip")

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Chain(ABC):
    """An operator with constant weights, and the bias and the ReLU or clip that may follow it.

    Attributes
    ----------
    name: the name of the operator's binding, which is also the name of its unit.
    vars: the variables that the operators of the chain define, in order. Each variable except the
        last is read only by the next operator.
    call: the call of the operator.
    data: the operator's input.
    weight: the operator's weights.
    bias: the bias, with one number for each output, or None.
    activation: the call of ReLU or clip, or None.
    """

    name: str
    vars: tuple[relax.Var, ...]
    call: relax.Call
    data: relax.Expr
    weight: Array
    bias: Array | None
    activation: relax.Call | None

    @property
    def result(self) -> relax.Var:
        """The chain's last variable. Operators outside of the chain read only this variable."""
        return self.vars[-1]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return tuple(int(dim) for dim in self.result.ty.shape)

    @property
    def outputs(self) -> int:
        """The number of channels of a convolution's output, or of columns of a matrix product."""
        return self.output_shape[self.axis]

    @property
    @abstractmethod
    def axis(self) -> int:
        """The axis along which the outputs of merged operators are stacked."""

    @abstractmethod
    def kind(self) -> Hashable:
        """A key. Only chains with equal keys can be merged."""

    @abstractmethod
    def why_not_merged(self, group: Sequence[Chain]) -> str | None:
        """The reason why `group`, which begins with this chain, cannot be merged; None if it can.

        All chains of the group have the type of this chain, and read the same tensor.
        """

    @abstractmethod
    def wider(self, group: Sequence[Chain], data: relax.Expr) -> relax.Call:
        """The wider operator on `data` that replaces the operators of `group`."""

    @abstractmethod
    def shaped_bias(self, bias: Array) -> Array:
        """The bias, of shape (outputs,), reshaped so that it can be added to the output."""

    def activation_key(self) -> Hashable:
        """A key. Activations are equal if their keys are equal."""
        if self.activation is None:
            return None
        return (self.activation.op.name, *map(str, self.activation.args[1:]))

    def whole(
        self,
        group: Sequence[Chain],
        data: relax.Expr,
        bind: Callable[[relax.Call], relax.Var],
    ) -> relax.Var:
        """The wider operator on `data` that replaces `group`, with its bias and activation.

        Parameters
        ----------
        bind: a function that binds each operator to a new variable.
        """
        result = bind(self.wider(group, data))
        if any(chain.bias is not None for chain in group):
            bias = self.shaped_bias(np.concatenate([_bias_of(chain) for chain in group]))
            result = bind(relax.op.add(result, relax.const(bias, str(bias.dtype))))
        if self.activation is not None:
            args = [result, *self.activation.args[1:]]
            result = bind(relax.Call(self.activation.op, args, self.activation.attrs))
        return result


class ChainFinder:
    """Finds the bias and the activation that follow an operator in a function.

    Attributes
    ----------
    values: the expression that each variable is bound to.
    """

    def __init__(self, main: relax.Function) -> None:
        self.values, self._readers = values_of(main), readers_of(main)

    def ending(
        self, var: relax.Var, axis: int
    ) -> tuple[tuple[relax.Var, ...], Array | None, relax.Call | None]:
        """Return the variables, the bias and the activation of the chain that begins with `var`.

        Parameters
        ----------
        axis: the axis along which a bias has one number for each output.
        """
        chain = [var]
        bias = activation = None
        following = self._only_reader(var)
        if following is not None:
            bias = self._bias(following, var, axis)
            if bias is not None:
                chain.append(following)
                following = self._only_reader(following)
        if following is not None:
            value = self.values[following]
            if isinstance(value, relax.Call) and value.op in (_RELU, _CLIP):
                activation = value
                chain.append(following)
        return tuple(chain), bias, activation

    def _only_reader(self, var: relax.Var) -> relax.Var | None:
        readers = self._readers.get(var, [])
        return readers[0] if len(readers) == 1 else None

    def _bias(self, var: relax.Var, operator: relax.Var, axis: int) -> Array | None:
        """The constant that `var` adds to `operator`, if it has one number for each index of
        `axis`.
        """
        value = self.values[var]
        if not isinstance(value, relax.Call) or value.op != _ADD:
            return None
        other = value.args[1] if value.args[0].same_as(operator) else value.args[0]
        if not isinstance(other, tvm.ir.GenericConst):
            return None
        array = other.value.numpy()
        rank = len(operator.ty.shape)
        wanted = [1] * rank
        wanted[axis] = int(operator.ty.shape[axis])
        shape = (1,) * (rank - array.ndim) + array.shape
        return array.reshape(-1) if shape == tuple(wanted) else None


def _bias_of(chain: Chain) -> Array:
    if chain.bias is None:
        return np.zeros(chain.outputs, chain.weight.dtype)
    return np.asarray(chain.bias)
