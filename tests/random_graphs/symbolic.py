"""Makes random graphs with one or two dimensions of any size. The same seed gives the same graph.

For most operators, the rows or positions along a dimension of any size are independent. A few
operators mix rows or positions, or use the size of a dimension as data. A graph with such an
operator must be refused for a range of sizes, unless its results happen to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.nets import Net

Dim = int | str
Value = tuple[str, tuple[Dim, ...]]
"""The name of a tensor of floats, and its shape. A name in the shape, such as `n`, stands for a
dimension of any size."""


class SymbolicGraph(Net):
    """A graph of about `count` operators on inputs with the dimensions `n` and sometimes `m`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.r = np.random.default_rng(seed)
        self._names = 0
        self._sized: dict[str, tuple[str, int]] = {}
        self.mask: Value | None = None
        self.ranges: dict[str, int | tuple[int, int]] = {}
        self._inputs_of: dict[str, tuple[tuple[Dim, ...], int]] = {}
        self.at = self._begin()
        self._others = [self.at]

    def feed(self, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
        """Random inputs for these sizes. Masks have a 1 at the first position."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, (dims, kind) in self._inputs_of.items():
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
            if kind == TensorProto.FLOAT:
                found[name] = rng.standard_normal(shape).astype(np.float32)
            else:
                found[name] = rng.integers(0, 2, shape)
                found[name][..., 0] = 1
        return found

    def build(self) -> onnx.ModelProto:
        safe = [
            self.unary, self.unary, self.binary, self.binary, self.dense, self.dense,
            self.weight_op, self.normalise, self.softmax, self.reduce, self.reduce,
            self.transpose, self.transpose, self.merge_and_split, self.rearrange, self.pick,
            self.join, self.expand, self.products, self.convolve, self.attend, self.attend,
            self.masked_sum, self.chosen, self.recur, self.pooled, self.split,
        ]  # fmt: skip
        risky = [
            self.by_size, self.by_size, self.branch, self.cut, self.running, self.positions,
            self.squeeze, self.best,
        ]  # fmt: skip
        danger = float(self.r.choice([0.0, 0.05, 0.3]))
        for _ in range(int(self.r.integers(3, 13))):
            kinds = risky if self.r.random() < danger else safe
            before = self.at
            kinds[int(self.r.integers(len(kinds)))]()
            if self.at != before:
                self._others.append(self.at)
        y = self.op("Relu" if self.r.random() < 0.3 else "Identity", [self.at[0]], "y")
        return self.model(y, check=False)

    # Helpers of the operators.

    def _begin(self) -> Value:
        most = int(self.r.choice([5, 9, 17, 33]))
        n = (int(self.r.choice([1, 1, 2, 3])), most)
        self.ranges["n"] = n
        kind = int(self.r.integers(4))
        width = int(self.r.choice([4, 6, 8]))
        if kind == 0:  # A batch of rows, sequences or images.
            rest: tuple[Dim, ...] = ((), (5,), (4, 5))[int(self.r.integers(3))]
            return self._input("x", ("n", *rest, width))
        if kind == 1:  # Any axis.
            shape: list[Dim] = [2, 3, width]
            shape.insert(int(self.r.integers(3)), "n")
            return self._input("x", tuple(shape[: 3 + int(self.r.integers(2))]))
        batch: Dim = int(self.r.integers(1, 3))
        if kind == 3:
            batch, self.ranges["m"] = "m", (int(self.r.integers(1, 3)), int(self.r.integers(4, 7)))
        x = self._input("x", (batch, "n", width))
        self.mask = self._input("mask", (batch, "n"), TensorProto.INT64)
        return x

    def _input(self, name: str, dims: tuple[Dim, ...], kind: int = TensorProto.FLOAT) -> Value:
        self.input(name, dims, kind)
        self._inputs_of[name] = dims, kind
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                self._sized.setdefault(dim, (name, axis))
        return name, dims

    def do(self, kind: str, *inputs: str, **attrs: object) -> str:
        self._names += 1
        return self.op(kind, inputs, f"t{self._names}", **attrs)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def whole(self, value: int) -> str:
        return self.constant(np.array(value, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def size(self, dim: Dim) -> str:
        """The size of a dimension as a tensor of one number. It is read from the shape of the
        current value or of an input."""
        if isinstance(dim, int):
            return self.ints(dim)
        name, axis = self._sized[dim]
        if dim in self.at[1] and self.r.integers(2):
            name, axis = self.at[0], self.at[1].index(dim)
        return self.do("Gather", self.do("Shape", name), self.ints(axis))

    def shape(self, dims: tuple[Dim, ...]) -> str:
        return self.do("Concat", *(self.size(dim) for dim in dims), axis=0)

    def axis(self, open_share: float = 0.1) -> int:
        """Draw an axis of the current value.

        An axis whose size is open is drawn with the probability `open_share`.
        """
        dims = self.at[1]
        fixed = [i for i, dim in enumerate(dims) if isinstance(dim, int)]
        if not fixed or self.r.random() < open_share:
            return int(self.r.integers(len(dims)))
        return int(self.r.choice(fixed))

    def _become(self, name: str, dims: tuple[Dim, ...] | None = None) -> None:
        self.at = name, self.at[1] if dims is None else dims

    # Operators that mix no rows, except if they work along an axis of any size.

    def unary(self) -> None:
        kind = str(self.r.choice(["Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Softplus", "Erf"]))
        self._become(self.do(kind, self.at[0]))

    def binary(self) -> None:
        same = [name for name, dims in self._others if dims == self.at[1]]
        kind = str(self.r.choice(["Add", "Mul", "Sub", "Max", "Min"]))
        self._become(self.do(kind, self.at[0], same[int(self.r.integers(len(same)))])
                     if same else self.do(kind, self.at[0], self.at[0]))  # fmt: skip

    def dense(self) -> None:
        last = self.at[1][-1]
        if isinstance(last, int):
            self._become(self.do("MatMul", self.at[0], self.weight(last, last, scale=0.4)))

    def weight_op(self) -> None:
        last = self.at[1][-1]
        if isinstance(last, int):
            kind = str(self.r.choice(["Add", "Mul"]))
            self._become(self.do(kind, self.at[0], self.weight(last, scale=1.0)))

    def normalise(self) -> None:
        last = self.at[1][-1]
        if isinstance(last, int):
            scale, bias = self.positive(last), self.weight(last)
            self._become(self.do("LayerNormalization", self.at[0], scale, bias))

    def softmax(self) -> None:
        self._become(self.do("Softmax", self.at[0], axis=self.axis()))

    def reduce(self) -> None:
        kind = str(self.r.choice(["ReduceMean", "ReduceMax", "ReduceSumSquare"]))
        axis = self.axis()
        found = self.do(kind, self.at[0], axes=[axis], keepdims=1)
        self._become(self.do("Sub", self.at[0], found))

    def transpose(self) -> None:
        order = [int(axis) for axis in self.r.permutation(len(self.at[1]))]
        dims = tuple(self.at[1][axis] for axis in order)
        self._become(self.do("Transpose", self.at[0], perm=order), dims)

    def merge_and_split(self) -> None:
        """Merges two axes, takes `Tanh`, and divides the axis again; seldom in the wrong order."""
        dims = self.at[1]
        if len(dims) < 2:
            return
        i = int(self.r.integers(len(dims) - 1))
        merged = self.do("Reshape", self.at[0],
                         self.do("Concat", *map(self.size, dims[:i]), self.ints(-1),
                                 *map(self.size, dims[i + 2 :]), axis=0))  # fmt: skip
        made = self.do("Tanh", merged)
        back = (dims[i], dims[i + 1]) if self.r.random() < 0.9 else (dims[i + 1], dims[i])
        wanted = (*dims[:i], *back, *dims[i + 2 :])
        self._become(self.do("Reshape", made, self.shape(wanted)), wanted)

    def rearrange(self) -> None:
        """Reshapes with -1 for a dimension of any size, or with 0 for dimensions that stay."""
        dims = list(self.at[1])
        if sum(isinstance(dim, str) for dim in dims) == 1:
            at = next(i for i, dim in enumerate(dims) if isinstance(dim, str))
            sizes = [-1 if i == at else int(dim) for i, dim in enumerate(dims)]
            if self.r.random() < 0.2:
                rest = [size for i, size in enumerate(sizes) if i != at]
                self.r.shuffle(rest)
                sizes = [*rest[:at], -1, *rest[at:]]
            self._become(self.do("Reshape", self.at[0], self.ints(*sizes)),
                         tuple("n" if i == at and "n" in dims else "m" if i == at else size
                               for i, size in enumerate(sizes)))  # fmt: skip

    def pick(self) -> None:
        axis = self.axis(0.05)
        dim = self.at[1][axis]
        if isinstance(dim, int):
            chosen = self.constant(self.r.permutation(dim))
            self._become(self.do("Gather", self.at[0], chosen, axis=axis))
            return
        index = self.ints(int(self.r.choice([0, -1])))
        one = self.do("Gather", self.at[0], index, axis=axis)
        self._become(self.do("Sub", self.at[0], one))

    def join(self) -> None:
        axis = self.axis(0.03)
        dim = self.at[1][axis]
        both = self.do("Concat", self.at[0], self.do("Neg", self.at[0]), axis=axis)
        if isinstance(dim, int) and dim < 12:
            dims = (*self.at[1][:axis], 2 * dim, *self.at[1][axis + 1 :])
            self._become(both, dims)
        else:
            ends = self.size(dim), self.ints(2**31), self.ints(axis)
            self._become(self.do("Slice", both, *ends))

    def expand(self) -> None:
        dims = self.at[1]
        start = tuple(1 if isinstance(dim, str) or self.r.integers(2) else dim for dim in dims)
        wide = self.do("Expand", self.weight(*map(int, start), scale=1.0), self.shape(dims))
        self._become(self.do("Mul" if self.r.integers(2) else "Add", self.at[0], wide))

    def products(self) -> None:
        """Multiplies the value by its transpose, and the scores by the value, as attention does."""
        if len(self.at[1]) < 2 or (isinstance(self.at[1][-2], str) and self.r.random() < 0.8):
            return
        order = [*range(len(self.at[1]) - 2), len(self.at[1]) - 1, len(self.at[1]) - 2]
        scores = self.do("MatMul", self.at[0], self.do("Transpose", self.at[0], perm=order))
        scores = self.do("Tanh", self.do("Mul", scores, self.number(0.2)))
        self._become(self.do("MatMul", scores, self.at[0]))

    def convolve(self) -> None:
        dims = self.at[1]
        if len(dims) not in (3, 4) or not isinstance(dims[1], int):
            return
        rank, mixes = len(dims) - 2, self.r.random() < 0.7
        if any(isinstance(dim, str) for dim in dims[2:]):
            mixes = self.r.random() < 0.1
        size = 3 if mixes else 1
        weight = self.weight(dims[1], dims[1], *[size] * rank, scale=0.3)
        self._become(self.do("Conv", self.at[0], weight, kernel_shape=[size] * rank,
                             pads=[size // 2] * 2 * rank))  # fmt: skip

    def pooled(self) -> None:
        """Pools over everything but the first two axes, or over neighbours."""
        dims = self.at[1]
        if len(dims) not in (3, 4) or (isinstance(dims[-1], str) and self.r.random() < 0.9):
            return
        if self.r.integers(2):
            pooled = self.do("GlobalAveragePool", self.at[0])
            self._become(self.do("Sub", self.at[0], pooled))
        else:
            rank = len(dims) - 2
            self._become(self.do("MaxPool", self.at[0], kernel_shape=[1] * (rank - 1) + [3],
                                 pads=[0] * (rank - 1) + [1] + [0] * (rank - 1) + [1]))  # fmt: skip

    def split(self) -> None:
        axis = self.axis(0.0)
        dim = self.at[1][axis]
        if not isinstance(dim, int) or dim % 2:
            return
        sizes = self.ints(dim // 2, dim // 2)
        one, other = f"t{self._names + 1}", f"t{self._names + 2}"
        self._names += 2
        self.op("Split", [self.at[0], sizes], one, other, axis=axis)
        gated = self.do("Mul", one, self.do("Sigmoid", other))
        self._become(self.do("Concat", gated, other, axis=axis))

    def chosen(self) -> None:
        """Chooses by a comparison of data."""
        is_more = self.do("Greater", self.at[0], self.number(0.1))
        self._become(self.do("Where", is_more, self.at[0], self.number(-0.5)))

    def recur(self) -> None:
        """A recurrent layer over the first axis, whose second axis is the batch."""
        dims = self.at[1]
        if len(dims) != 3 or not isinstance(dims[2], int) or not isinstance(dims[0], int):
            return
        weights = [self.weight(1, 4 * dims[2], dims[2]) for _ in range(2)]
        made = self.do("LSTM", self.at[0], *weights, hidden_size=dims[2])
        self._become(self.do("Squeeze", made, self.ints(1)))

    # Operators on a sequence with a mask.

    def attend(self) -> None:
        if self.mask is None or self.at[1][:2] != self.mask[1] or len(self.at[1]) != 3:
            return
        turned = self.do("Transpose", self.at[0], perm=[0, 2, 1])
        scores = self.do("Mul", self.do("MatMul", self.at[0], turned), self.number(0.2))
        kept = self.do("Unsqueeze", self.mask[0], self.ints(1))
        how = int(self.r.integers(6))
        if how < 3:
            out = self.do("Sub", self.number(1), self.do("Cast", kept, to=TensorProto.FLOAT))
            lowest = float(np.finfo(np.float32).min) if how else -1e4 * (self.r.random() < 0.2)
            lowest = lowest or float(np.finfo(np.float32).min)
            scores = self.do("Add", scores, self.do("Mul", out, self.number(lowest)))
        elif how < 5:
            keep = self.do("Cast", kept, to=TensorProto.BOOL)
            scores = self.do("Where", keep, scores, self.number(-np.inf))
        if how >= 4:
            at = self.do("Range", self.whole(0), self.do("Squeeze", self.size("n")), self.whole(1))
            rows = self.do("Unsqueeze", at, self.ints(1))
            later = self.do("Less", rows, self.do("Unsqueeze", at, self.ints(0)))
            scores = self.do("Where", later, self.number(-np.inf), scores)
        self._become(self.do("MatMul", self.do("Softmax", scores, axis=-1), self.at[0]))

    def masked_sum(self) -> None:
        if self.mask is None or self.at[1][:2] != self.mask[1] or len(self.at[1]) != 3:
            return
        column = self.do("Unsqueeze", self.do("Cast", self.mask[0], to=1), self.ints(2))
        total = self.do("ReduceSum", self.do("Mul", self.at[0], column), self.ints(1))
        if self.r.integers(2):
            total = self.do("Div", total, self.do("ReduceSum", column, self.ints(1)))
        self._become(self.do("Sub", self.at[0], total))

    # Operators that use the size of a dimension as data, or mix rows.

    def _of_size(self) -> str:
        """A number that is computed from a size, as a tensor of one whole number."""
        dim = str(self.r.choice(list(self.ranges)))
        size, some = self.size(dim), self.ints(int(self.r.integers(1, 34)))
        more: list[Callable[[], str]] = [
            lambda: self.do("Cast", self.do("Equal", size, some), to=7),
            lambda: self.do("Cast", self.do("Greater", size, some), to=7),
            lambda: self.do("Mod", size, self.ints(int(self.r.integers(2, 9)))),
            lambda: self.do("Div", size, self.ints(int(self.r.integers(2, 9)))),
            lambda: self.do("Min", size, some),
            lambda: self.do("Div", self.do("Mul", size, self.ints(6)), self.do("Add", size, size)),
            lambda: self.do("Div", size, self.do("Max", size, self.ints(1))),
            lambda: self.do("Sub", size, self.do("Min", size, self.ints(64))),
            lambda: self.do("Sub", size, self.ints(1)),
            lambda: size,
        ]  # fmt: skip
        return more[int(self.r.integers(len(more)))]()

    def by_size(self) -> None:
        number = self.do("Cast", self._of_size(), to=TensorProto.FLOAT)
        how = int(self.r.integers(3))
        if how == 0:
            self._become(self.do("Mul", self.at[0], number))
        elif how == 1:
            wide = self.do("Add", self.do("Abs", number), self.number(1))
            self._become(self.do("Div", self.at[0], wide))
        else:
            is_it = self.do("Equal", number, self.number(float(self.r.integers(0, 6))))
            other = self.do("Neg", self.at[0])
            self._become(self.do("Where", is_it, self.at[0], other))

    def branch(self) -> None:
        condition = self.do("Equal", self._of_size(), self.ints(int(self.r.integers(0, 9))))
        graphs = {}
        for name, kind in (("then", "Relu"), ("else", "Neg")):
            self._names += 1
            out = f"t{self._names}"
            inner = helper.make_node(kind, [self.at[0]], [out], name=out)
            made = helper.make_graph([inner], name, [], [onnx.ValueInfoProto(name=out)])
            graphs[f"{name}_branch"] = made
        self._become(self.do("If", self.do("Squeeze", condition), **graphs))

    def cut(self) -> None:
        """Reverses an axis, or subtracts the maximum of the axis's first elements, whose number is
        computed from a size."""
        axis = self.axis(0.7)
        ends = self.ints(-1), self.ints(-(2**31)), self.ints(axis), self.ints(-1)
        if self.r.integers(2):
            self._become(self.do("Slice", self.at[0], *ends))
            return
        count = self.do("Min", self.do("Max", self._of_size(), self.ints(1)), self.ints(3))
        head = self.do("Slice", self.at[0], self.ints(0), count, self.ints(axis))
        found = self.do("ReduceMax", head, axes=[axis], keepdims=1)
        self._become(self.do("Sub", self.at[0], found))

    def running(self) -> None:
        self._become(self.do("CumSum", self.at[0], self.whole(self.axis(0.5))))

    def positions(self) -> None:
        """Adds something that depends on the index along an axis of any size."""
        places = [i for i, dim in enumerate(self.at[1]) if isinstance(dim, str)]
        axis = int(self.r.choice(places))
        size = self.do("Squeeze", self.size(self.at[1][axis]))
        at = self.do("Range", self.whole(0), size, self.whole(1))
        how = int(self.r.integers(4))
        if how == 0:
            at = self.do("Sub", size, at)
        elif how == 1:
            at = self.do("Mod", at, self.whole(3))
        found = self.do("Gather", self.constant(self.r.standard_normal(40).astype(np.float32)), at)
        wide = [1] * len(self.at[1])
        wide[axis] = -1
        self._become(self.do("Add", self.at[0], self.do("Reshape", found, self.ints(*wide))))

    def squeeze(self) -> None:
        """Leaves out all axes of size 1, takes a softmax, and puts the axes of size 1 back."""
        dims = self.at[1]
        flat = self.do("Squeeze", self.at[0])
        kind, axis = [("Softmax", -1), ("Softmax", 1), ("LogSoftmax", 0)][int(self.r.integers(3))]
        made = self.do(kind, flat, axis=axis)
        self._become(self.do("Reshape", made, self.shape(dims)))

    def best(self) -> None:
        """Adds the index of the greatest element along an axis."""
        axis = self.axis(0.3)
        index = self.do("ArgMax", self.at[0], axis=axis, keepdims=1)
        self._become(self.do("Add", self.at[0], self.do("Cast", index, to=TensorProto.FLOAT)))
