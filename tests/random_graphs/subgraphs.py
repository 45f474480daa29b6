"""Makes `If`, `Loop` and `Scan` of random graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as TP
from onnx import helper, numpy_helper

from .builder import DT, NP, Builder

_NUMBERS = ("f32", "f32", "f64", "i32", "i64")
_MOST_TURNS = 6


class Subgraphs(Builder):
    """Makes operators that have subgraphs."""

    def branch(self) -> bool:
        v = self.pick(lambda v: v[1] in _NUMBERS and 0 not in v[2])
        if v is None:
            return False
        n, dt, s = v
        total = self.node("ReduceSum", [n], [(dt, ())], keepdims=0)[0]
        condition = self.node("Greater", [total, self._constant(dt, 0.25)], [("bool", ())])[0]
        if self.r.random() < 0.4:  # A condition may also have axes of size 1.
            axes = self.I64([1] * int(self.r.integers(1, 3)))
            condition = self.node("Reshape", [condition, axes], [("bool", (1,))])[0]
        number = int(self.r.integers(1, 3))
        branches = {}
        for name in ("then_branch", "else_branch"):
            nodes, inits = [], []
            outputs = [self._chain(n, dt, s, nodes, inits) for _ in range(number)]
            typed = [helper.make_tensor_value_info(o, DT[dt], s) for o in outputs]
            branches[name] = helper.make_graph(nodes, name, [], typed, inits)
        self.node("If", [condition], [(dt, s)] * number, **branches)
        return True

    def loop(self) -> bool:
        v = self.pick(lambda v: v[1] in _NUMBERS and 0 not in v[2])
        if v is None:
            return False
        n, dt, s = v
        turns = int(self.r.integers(0, 4))
        index, going, goes_on, state = (self.name("l") for _ in range(4))
        nodes, inits = [], []
        run = turns
        if self.r.random() < 0.5:
            last = int(self.r.integers(0, 3))
            run = min(turns, last + 1)
            inits.append(numpy_helper.from_array(np.array(last), self.name("w")))
            nodes.append(helper.make_node("Less", [index, inits[-1].name], [goes_on]))
        else:
            nodes.append(helper.make_node("Identity", [going], [goes_on]))
        following = self._chain(state, dt, s, nodes, inits)
        collected = self._chain(following, dt, s, nodes, inits)
        body = helper.make_graph(
            nodes,
            "body",
            [
                helper.make_tensor_value_info(index, TP.INT64, ()),
                helper.make_tensor_value_info(going, TP.BOOL, ()),
                helper.make_tensor_value_info(state, DT[dt], s),
            ],
            [
                helper.make_tensor_value_info(goes_on, TP.BOOL, ()),
                helper.make_tensor_value_info(following, DT[dt], s),
                helper.make_tensor_value_info(collected, DT[dt], s),
            ],
            inits,
        )
        start = self.add_init(np.array(True)) if self.r.random() < 0.5 else ""
        count = self.add_init(np.array(turns))
        self.node("Loop", [count, start, n], [(dt, s), (dt, (run, *s))], body=body)
        return True

    def scan(self) -> bool:
        v = self.pick(lambda v: v[1] in _NUMBERS and len(v[2]) > 0 and 0 not in v[2])
        if v is None:
            return False
        n, dt, s = v
        axis = int(self.r.integers(-len(s), len(s)))
        turns = s[axis]
        if turns > _MOST_TURNS:
            return False
        place = axis % len(s)
        rest = (*s[:place], *s[place + 1 :])
        state, element = self.name("s"), self.name("s")
        nodes, inits = [], []
        following, collected = self.name("s"), self.name("s")
        nodes.append(helper.make_node("Sub", [element, state], [following]))
        nodes.append(helper.make_node("Identity", [state], [collected]))
        written = self._chain(following, dt, rest, nodes, inits)
        elements = [state, element]
        outputs = [following, collected, written]
        body = helper.make_graph(
            nodes,
            "body",
            [helper.make_tensor_value_info(name, DT[dt], rest) for name in elements],
            [helper.make_tensor_value_info(name, DT[dt], rest) for name in outputs],
            inits,
        )
        out_axes = [int(self.r.integers(-len(s), len(s))) for _ in range(2)]
        outs: list[Any] = [(dt, rest)]
        for each in out_axes:
            at = each % len(s)
            outs.append((dt, (*rest[:at], turns, *rest[at:])))
        self.node(
            "Scan",
            [self.W(dt, rest), n],
            outs,
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[axis],
            scan_input_directions=[int(self.r.integers(2))],
            scan_output_axes=out_axes,
            scan_output_directions=[int(self.r.integers(2)) for _ in range(2)],
        )
        return True

    def _chain(
        self,
        n: str,
        dt: str,
        s: Any,
        nodes: list[onnx.NodeProto],
        inits: list[onnx.TensorProto],
    ) -> str:
        """Add operators of a subgraph, and return the name of their result.

        The operators may read values of the graph around the subgraph, which have the same type and
        shape.
        """
        for _ in range(int(self.r.integers(1, 4))):
            out, other = self.name("b"), self.pick(lambda v: v[1] == dt and v[2] == tuple(s))
            kind = str(self.r.choice(["Abs", "Neg", "Min", "Sub", "Tanh"]))
            if kind in ("Min", "Sub"):
                if other is None or self.r.random() < 0.5:
                    array = np.asarray(self.r.integers(-2, 3, s), dtype=NP[dt])
                    inits.append(numpy_helper.from_array(array, self.name("w")))
                    nodes.append(helper.make_node(kind, [n, inits[-1].name], [out]))
                else:
                    nodes.append(helper.make_node(kind, [n, other[0]], [out]))
            else:
                nodes.append(helper.make_node("Neg" if dt[0] == "i" else kind, [n], [out]))
            n = out
        return n

    def _constant(self, dt: str, number: float) -> Any:
        return self.add_init(np.asarray(number, dtype=NP[dt]))
