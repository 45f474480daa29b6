"""Makes operators of random graphs that belong to no other family."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as TP
from onnx import helper, numpy_helper

from .arithmetic import Arithmetic


class Other(Arithmetic):
    """Makes operators that belong to no other family."""

    def misc(self) -> bool:
        op = self.r.choice(
            [
                "OneHot",
                "Trilu",
                "Einsum",
                "Hardmax",
                "Range",
                "ConstantOfShape",
                "Constant",
                "IsNaN",
                "Size",
            ]
        )
        if op == "OneHot":
            v = self.pick(
                lambda v: v[1] in ("i64", "i32") and np.prod(v[2]) < 2000 and len(v[2]) < 5
            )
            if v is None:
                return False
            self.node(
                op,
                [v[0], self.I64([6]), self.add_init(np.asarray([0, 1], dtype=np.float32))],
                [("f32", (*v[2], 6))],
                axis=-1,
            )
            return True
        if op == "Trilu":
            v = self.pick(lambda v: v[1] in ("f32", "i64") and len(v[2]) >= 2)
            if v is None:
                return False
            self.node(
                op,
                [v[0], self.add_init(np.asarray(int(self.r.integers(-2, 3)), dtype=np.int64))],
                [(v[1], v[2])],
                upper=int(self.r.integers(2)),
            )
            return True
        if op == "Einsum":
            v = self.pick(lambda v: v[1] == "f32" and len(v[2]) == 3 and min(v[2]) > 0)
            if v is None:
                return False
            s = v[2]
            self.node(
                op,
                [v[0], self.W("f32", (s[2], 4))],
                [("f32", (s[0], 4, s[1]))],
                equation="bij,jk->bki",
            )
            return True
        if op == "Hardmax":
            v = self.pick(lambda v: v[1] == "f32" and len(v[2]) >= 1 and min(v[2]) > 0)
            if v is None:
                return False
            self.node(op, [v[0]], [("f32", v[2])], axis=int(self.r.integers(-len(v[2]), len(v[2]))))
            return True
        if op == "Range":
            a = [self.add_init(np.asarray(x, dtype=np.int64)) for x in (0, 7, 2)]
            self.node(op, a, [("i64", (4,))])
            return True
        if op == "ConstantOfShape":
            self.node(
                op,
                [self.I64([2, 3])],
                [("f32", (2, 3))],
                value=helper.make_tensor("v", TP.FLOAT, [1], [0.5]),
            )
            return True
        if op == "Constant":
            self.node(
                op,
                [],
                [("f32", (3,))],
                value=numpy_helper.from_array(np.arange(3, dtype=np.float32)),
            )
            return True
        if op == "IsNaN":
            v = self.pick(lambda v: v[1] == "f32")
            self.node(op, [v[0]], [("bool", v[2])]) if v else None
            return v is not None
        v = self.pick()
        self.node("Size", [v[0]], [("i64", ())])
        return True
