"""Random graphs on a sequence with a mask.

In some of the random graphs, padded positions wrongly change the results at other positions. Tests
must find these graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.masked_nets import GIVEN, LENGTH, LOWEST, WIDTH, Masked


class RandomMasked:
    """A random graph. All its choices come from the seed alone."""

    batch: int | str = 1

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def steps(self) -> list[Callable[[Masked, str, np.random.Generator], str]]:
        return [
            _attention, _attention, _dense, _positions, _masked_mean, _normalise, _product,
            _running,
        ]  # fmt: skip

    def model(self) -> onnx.ModelProto:
        rng, net = np.random.default_rng(self._seed), Masked(batch=self.batch)
        steps = self.steps()
        x = "x"
        for _ in range(int(rng.integers(1, 4))):
            x = steps[int(rng.integers(len(steps)))](net, x, rng)
        if rng.integers(3) == 0:
            x = net.do("Gather", x, net.number(int(rng.choice([0, 0, -1])), np.int64), axis=1)
        return net.model(net.op("Relu", [x], "y"), check=False)

    def feed(
        self, garbage: int | None, zeros: tuple[str, ...], *, all_ones: bool = False
    ) -> dict[str, np.ndarray]:
        """Inputs of `GIVEN` positions, padded with garbage of the seed `garbage`.

        If `garbage` is None, the inputs are not padded.

        The inputs named in `zeros` are padded with 0. The mask begins with 1, and has no 0 at
        all with `all_ones`.
        """
        rng = np.random.default_rng(self._seed)
        x = rng.standard_normal((1, GIVEN, WIDTH)).astype(np.float32)
        if "x" in zeros:
            x = np.abs(x)
        mask = rng.integers(0, 2, (1, GIVEN))
        mask[0, : GIVEN if all_ones else 1] = 1
        if garbage is None:
            return {"x": x, "mask": mask}
        junk = np.random.default_rng(garbage)
        more = 30 * junk.standard_normal((1, LENGTH - GIVEN, WIDTH)) * ("x" not in zeros)
        fill = junk.integers(0, 2, (1, LENGTH - GIVEN)) * ("mask" not in zeros)
        both = np.concatenate([x, more.astype(np.float32)], 1)
        return {"x": both, "mask": np.concatenate([mask, fill], 1)}


class RandomPair(RandomMasked):
    """A random graph on a batch of sequences, in which rows and positions may be mixed up."""

    batch = "batch"

    def steps(self) -> list[Callable[[Masked, str, np.random.Generator], str]]:
        return [*super().steps(), _merged, _seq_major, _across_rows, _by_sizes]


def _attention(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Attention that leaves out masked positions, later positions, both or none, written in
    several ways."""
    scores = net.do("Mul", net.scores(x), net.number(0.1))
    for chosen in rng.permutation(6)[: int(rng.integers(1, 3))]:
        if chosen == 0:
            scores = net.do("Add", scores, net.left_out())
        elif chosen == 1:
            scores = net.do("Add", scores, net.later())
        elif chosen == 2:
            keep = net.do("Unsqueeze", net.do("Cast", "mask", to=9), net.ints(1))
            lowest = float(rng.choice([LOWEST, -np.inf, -20.0]))
            scores = net.do("Where", keep, scores, net.number(lowest))
        elif chosen == 3:
            scores = net.do("Add", scores, net.left_out(axis=2))
        elif chosen == 4:
            scores = net.do("Max", net.do("Add", scores, net.left_out()), net.number(-1e9))
    return net.mixed(scores, x)


def _dense(net: Masked, x: str, rng: np.random.Generator) -> str:
    made = net.do("Add", net.do("MatMul", x, net.weight(WIDTH, WIDTH)), net.weight(WIDTH))
    return net.do(str(rng.choice(["Relu", "Tanh", "Sigmoid"])), made)


def _positions(net: Masked, x: str, rng: np.random.Generator) -> str:
    return net.do("Add", x, net.do("Gather", net.weight(20, WIDTH), net.positions()))


def _masked_mean(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Subtracts a mean over positions. Some of these means also count the positions of padding."""
    masked = net.columns(x) if rng.integers(4) else x
    total = net.do("ReduceSum", masked, net.ints(1))
    if rng.integers(3):
        count = net.do("ReduceSum", net.float_mask(), net.ints(1), keepdims=1)
        total = net.do(
            "Div", total, net.do("Unsqueeze", net.do("Clip", count, net.number(1)), net.ints(2))
        )
    return net.do("Sub", x, total)


def _normalise(net: Masked, x: str, rng: np.random.Generator) -> str:
    if rng.integers(3):
        return net.do("LayerNormalization", x, net.positive(WIDTH), net.weight(WIDTH))
    return net.do("Softmax", x, axis=int(rng.integers(1, 3)))


def _product(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Linear attention: a product over all positions. Either one factor is masked, or none."""
    side = net.columns(x) if rng.integers(3) else x
    kept = net.do("MatMul", net.do("Transpose", x, perm=[0, 2, 1]), side)
    return net.do("MatMul", x, net.do("Mul", kept, net.number(0.1)))


def _running(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Adds to each position its neighbour, or squares all numbers."""
    if rng.integers(2):
        return net.do("Mul", x, x)
    shifted = net.do("Concat", net.do("Slice", x, net.ints(1), net.ints(99), net.ints(1)),
                     net.do("Slice", x, net.ints(0), net.ints(1), net.ints(1)), axis=1)  # fmt: skip
    return net.do("Add", x, shifted)


def _sizes(net: Masked) -> list[str]:
    return [net.do("Gather", net.do("Shape", "x"), net.ints(axis)) for axis in (0, 1)]


def _merged(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Merges rows and positions into one axis and splits it again, sometimes in the wrong order."""
    batch, length = _sizes(net)
    flat = net.do("Reshape", x, net.ints(-1, WIDTH))
    made = net.do("Tanh", net.do("MatMul", flat, net.weight(WIDTH, WIDTH)))
    both = (batch, length) if rng.integers(4) else (length, batch)
    made = net.do("Reshape", made, net.do("Concat", *both, net.ints(WIDTH), axis=0))
    if both[0] == length:
        made = net.do("Transpose", made, perm=[1, 0, 2])
    return net.do("Add", x, made)


def _seq_major(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Makes positions the first axis, subtracts a sum over one of two axes, and turns the axes
    back."""
    turned = net.do("Transpose", x, perm=[1, 0, 2])
    masked = net.do("Transpose", net.columns(x), perm=[1, 0, 2])
    total = net.do("ReduceSum", masked, net.ints(int(rng.integers(4) == 0)))
    return net.do("Transpose", net.do("Sub", turned, total), perm=[1, 0, 2])


def _across_rows(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Reads another row, a sum over rows, a mask of another row, or only its own row."""
    chosen = int(rng.integers(6))
    if chosen == 0:
        return net.do("Add", x, net.do("Gather", x, net.ints(0), axis=0))
    if chosen == 1:
        return net.do("Add", x, net.do("ReduceMax", x, axes=[0], keepdims=1))
    if chosen == 2:
        one = net.do("ReduceMax", "mask", axes=[0], keepdims=1)
        return net.mixed(net.do("Add", net.scores(x), net.left_out(mask=one)), x)
    return net.do("Add", x, net.columns(x))


def _by_sizes(net: Masked, x: str, rng: np.random.Generator) -> str:
    """Divides by a number that is computed from the numbers of rows and positions. It is 1, or
    changes with these sizes."""
    batch, length = _sizes(net)
    both = net.do("Mul", batch, length)
    least = [batch, length, both, net.do("Min", batch, length)][int(rng.integers(4))]
    divisor = net.do("Div", both, least if rng.integers(2) else both)
    return net.do("Div", x, net.do("Cast", divisor, to=1))
