"""Tests `GroupQueryAttention` against onnxruntime: prompts, pasts, rotations and windows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx.compose
import pytest
from onnx import helper, numpy_helper

from tests.masked_nets import theirs
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

MICROSOFT = "com.microsoft"
Arrays = dict[str, np.ndarray]
PLACES = 32
ORDER = (
    *("q", "k", "v", "old_k", "old_v", "ends"),
    *("total", "cos", "sin", "places", "bias", "sinks"),
)
"""The names of the inputs, in the order in which the node has them."""


@dataclass(frozen=True)
class Case:
    """One node of `GroupQueryAttention`.

    Attributes
    ----------
    room: the number of positions for which the buffer of past keys and values has memory; None if
        the past fills the buffer.
    ends: the last position of each row; None if all rows are as long as the longest.
    rotates: the number of channels that get a rotary position embedding.
    """

    batch: int = 2
    length: int = 4
    past: int = 0
    room: int | None = None
    heads: int = 4
    groups: int = 2
    size: int = 16
    ends: tuple[int, ...] | None = None
    is_packed: bool = False
    rotates: int = 0
    has_places: bool = False
    has_bias: bool = False
    has_sinks: bool = False
    dtype: str = "float32"

    def built(self, **attributes: object) -> tuple[onnx.ModelProto, Arrays]:
        """The model, and its inputs by name."""
        rng = np.random.default_rng(self.length)

        def numbers(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(self.dtype)

        row, total = (self.batch, self.length), self.past + self.length
        feed, weights = {}, {"total": np.array(total, np.int32)}
        if self.is_packed:
            feed["q"] = numbers(*row, (self.heads + 2 * self.groups) * self.size)
        else:
            feed["q"] = numbers(*row, self.heads * self.size)
            feed |= {name: numbers(*row, self.groups * self.size) for name in "kv"}
        room = self.past if self.room is None else self.room
        if room:
            shape = (self.batch, self.groups, room, self.size)
            feed |= {name: numbers(*shape) for name in ("old_k", "old_v")}
        feed["ends"] = np.array(self.ends or [total - 1] * self.batch, np.int32)
        if self.rotates:
            angles = rng.uniform(-3, 3, (PLACES, self.rotates // 2))
            weights["cos"] = np.cos(angles).astype(self.dtype)
            weights["sin"] = np.sin(angles).astype(self.dtype)
            attributes["do_rotary"] = 1
        if self.has_places:
            feed["places"] = rng.integers(0, PLACES - self.length, row)
        if self.has_bias:
            feed["bias"] = numbers(1, 1, self.length, total)
        if self.has_sinks:
            weights["sinks"] = numbers(self.heads)
        known = {**feed, **weights}
        names = [name if name in known else "" for name in ORDER]
        node = helper.make_node(
            "GroupQueryAttention",
            names,
            ["y", "new_k", "new_v"],
            "the_node",
            domain=MICROSOFT,
            num_heads=self.heads,
            kv_num_heads=self.groups,
            **attributes,
        )
        graph = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in feed.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8), feed


Attended = tuple[Case, dict[str, object]]
"""A node, and its attributes."""


def check(*nodes: Attended) -> None:
    """Compare all results of these nodes with onnxruntime. One model holds all nodes."""
    whole, feed, errors = None, {}, []
    for i, (case, attributes) in enumerate(nodes):
        model, given = case.built(**attributes)
        model = onnx.compose.add_prefix(model, f"{i}/")
        feed |= {f"{i}/{name}": array for name, array in given.items()}
        errors += [1e-2 if case.dtype == "float16" else 1e-4] * 3
        if whole is None:
            whole = model
            continue
        for field in ("node", "input", "output", "initializer"):
            getattr(whole.graph, field).extend(getattr(model.graph, field))
    results = zip(computed(whole, feed), theirs(whole, feed), errors, strict=True)
    for ours, wanted, error in results:
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(ours, wanted, error, error)


STEP = Case(length=1, past=5)
PART = Case(batch=1, length=3, past=4)
RUNS = (Case(), STEP, PART)


def test_prompts_steps_and_parts() -> None:
    check(*((run, {}) for run in RUNS))
    check(*((run, {"scale": 0.3, "softcap": 2.0}) for run in RUNS))


def test_numbers_of_heads() -> None:
    numbers = [(4, 4), (3, 1), (6, 3)]
    check(*((Case(heads=n, groups=g), {}) for n, g in numbers))
    check(*((replace(STEP, heads=n, groups=g, is_packed=True), {}) for n, g in numbers))


def test_rows_that_are_shorter_than_the_longest() -> None:
    ends = [(5, 3), (2, 5), (0, 1)]
    check(*((replace(STEP, ends=each), {}) for each in ends))
    window = {"local_window_size": 3}
    check(*((replace(STEP, ends=each, room=9, rotates=16), window) for each in ends))


def test_a_past_with_room() -> None:
    check((Case(length=3, room=8), {}), (Case(length=1, past=4, room=9, has_bias=True), {}))


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotations(interleaved: int) -> None:
    check(
        *(
            (
                replace(run, size=32, rotates=rotates, has_places=has_places),
                {"rotary_interleaved": interleaved},
            )
            for run in RUNS
            for rotates in (16, 32)
            for has_places in (False, True)
        )
    )


def test_windows() -> None:
    check(*((run, {"local_window_size": size}) for run in RUNS for size in (1, 2, 3, 10)))


def test_scores_beside_the_keys() -> None:
    smooth = [(run, {"smooth_softmax": 1}) for run in RUNS]
    sinks = [(replace(run, has_sinks=True), {}) for run in RUNS]
    check(*smooth, *sinks, *((replace(run, has_bias=True), {}) for run in RUNS))


def test_half_precision() -> None:
    check((Case(dtype="float16"), {}), (Case(dtype="float16", length=1, past=4, rotates=16), {}))


def test_a_length_that_is_computed_is_refused() -> None:
    model, _ = Case().built()
    (total,) = (w for w in model.graph.initializer if w.name == "total")
    model.graph.input.append(helper.make_tensor_value_info("total", onnx.TensorProto.INT32, ()))
    model.graph.initializer.remove(total)
    with pytest.raises(UnsupportedModelError, match=r"the_node.*total_sequence_length"):
        load_model(model)


def test_an_output_of_scores_is_refused() -> None:
    model, _ = Case().built(qk_output=1)
    model.graph.node[0].output.append("scores")
    with pytest.raises(UnsupportedModelError, match=r"the_node.*output of its scores"):
        load_model(model)


def test_queries_that_attend_to_all_keys() -> None:
    check(*((run, {"causal": 0}) for run in RUNS))
    check(*((replace(STEP, ends=ends), {"causal": 0}) for ends in ((5, 3), (0, 1))))


def test_a_past_as_long_as_a_window_is_refused() -> None:
    model, _ = STEP.built(sliding_window_cache=1, local_window_size=5)
    with pytest.raises(UnsupportedModelError, match=r"the_node.*as long as a window"):
        load_model(model)


def test_normalised_queries_are_refused() -> None:
    model, _ = Case().built()
    model.graph.node[0].input.extend(["", "", "cos", "cos"])
    model.graph.initializer.append(numpy_helper.from_array(np.ones(16, np.float32), "cos"))
    with pytest.raises(UnsupportedModelError, match=r"the_node.*normalised queries"):
        load_model(model)
