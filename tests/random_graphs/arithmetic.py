"""Makes element-wise operators of random graphs."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .builder import DT, NP, Builder


class Arithmetic(Builder):
    """Makes element-wise operators."""

    def bound(self, v: Any) -> Any:
        # Keep floats within bounds.
        n, dt, s = v
        if dt[0] == "f" and self.r.random() < 0.5:
            o = self.node(self.r.choice(["Tanh", "Sigmoid"]), [n], [(dt, s)])
            return (o[0], dt, s)
        return v

    def isf(self, v: Any) -> bool:
        return v[1] in ("f32", "f64", "f16")

    def unary(self) -> bool:
        v = self.pick(self.isf)
        if v is None:
            return False
        n, dt, s = v
        op = self.r.choice(
            [
                "Relu",
                "Sigmoid",
                "Tanh",
                "Abs",
                "Neg",
                "LeakyRelu",
                "Elu",
                "HardSigmoid",
                "Softplus",
                "Floor",
                "Ceil",
                "Round",
                "Erf",
                "Sign",
                "Identity",
                "Selu",
                "HardSwish",
                "Softsign",
                "Sin",
                "Cos",
                "Atan",
                "Gelu",
                "Mish",
                "Celu",
                "ThresholdedRelu",
                "Dropout",
                "Cast2",
            ]
        )
        if dt != "f32" and op in (
            "Gelu",
            "Mish",
            "Celu",
            "HardSwish",
            "Selu",
            "Softsign",
            "Softplus",
            "HardSigmoid",
            "ThresholdedRelu",
            "Erf",
            "Atan",
            "Sin",
            "Cos",
            "LeakyRelu",
            "Elu",
            "Round",
        ):
            op = "Relu"
        at = {}
        if op == "LeakyRelu":
            at = {"alpha": float(self.r.random())}
        if op == "Cast2":
            to = self.r.choice(["f32", "f64", "f16", "i32", "i64"])
            if to[0] == "i":
                m = self.node("Tanh", [n], [(dt, s)])[0]
                n = self.node("Floor", [m], [(dt, s)])[0]
            self.node("Cast", [n], [(to, s)], to=DT[to])
            return True
        self.node(op, [n], [(dt, s)], **at)
        return True

    def guarded(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "f64"))
        if v is None:
            return False
        n, dt, s = v
        op = self.r.choice(["Exp", "Log", "Sqrt", "Reciprocal", "Div", "Pow"])
        if op == "Exp":
            t = self.node("Tanh", [n], [(dt, s)])[0]
            self.node("Exp", [t], [(dt, s)])
            return True
        a = self.node("Abs", [n], [(dt, s)])[0]
        one = self.add_init(np.asarray(1.0, dtype=NP[dt]))
        b = self.node("Add", [a, one], [(dt, s)])[0]
        if op in ("Log", "Sqrt", "Reciprocal"):
            self.node(op, [b], [(dt, s)])
        elif op == "Div":
            self.node("Div", [n, b], [(dt, s)])
        else:
            self.node(
                "Pow",
                [b, self.add_init(np.asarray(self.r.choice([0.5, -0.5, -1.0]), dtype=NP[dt]))],
                [(dt, s)],
            )
        return True

    def clip(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "f64", "i32", "i64"))
        if v is None:
            return False
        n, dt, s = v
        lo = self.add_init(np.asarray(-1, dtype=NP[dt]))
        hi = self.add_init(np.asarray(2, dtype=NP[dt]))
        c = self.r.integers(4)
        self.node("Clip", [[n, lo, hi], [n, "", hi], [n, lo], [n]][c], [(dt, s)])
        return True

    def binary(self) -> bool:
        v = self.pick(lambda v: v[1] != "bool")
        if v is None:
            return False
        n, dt, s = v
        cands = []
        for u in self.vals:
            if u[1] != dt:
                continue
            with contextlib.suppress(ValueError):
                cands.append((u, np.broadcast_shapes(s, u[2])))
        if self.r.random() < 0.3 or not cands:
            ws = tuple(d if self.r.random() < 0.6 else 1 for d in s)
            if self.r.random() < 0.2:
                ws = ()
            u = (self.W(dt, ws, 1.0), dt, ws)
            out = np.broadcast_shapes(s, ws)
        else:
            u, out = cands[self.r.integers(len(cands))]
        if int(np.prod(out)) > 200000:
            return False
        op = self.r.choice(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"])
        if dt[0] != "f" and op == "Mean":
            op = "Add"
        if dt in ("i32", "i64", "i8", "u8") and op == "Sum":
            op = "Add"
        if dt[0] == "f" and op == "Mul":
            v = self.bound(v)
            n = v[0]
        ab = [n, u[0]]
        if self.r.random() < 0.5:
            ab.reverse()
        self.node(op, ab, [(dt, out)])
        return True

    def compare(self) -> bool:
        v = self.pick(lambda v: v[1] in ("i32", "i64"))
        if v is None:
            return False
        n, dt, s = v
        op = self.r.choice(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
        self.node(op, [n, self.W(dt, ())], [("bool", s)])
        return True

    def boolop(self) -> bool:
        v = self.pick(lambda v: v[1] == "bool")
        if v is None:
            return False
        n, _dt, s = v
        op = self.r.choice(["Not", "And", "Or", "Xor", "Cast", "Where"])
        if op == "Not":
            self.node("Not", [n], [("bool", s)])
        elif op == "Cast":
            to = self.r.choice(["f32", "i32", "i64", "f64"])
            self.node("Cast", [n], [(to, s)], to=DT[to])
        elif op == "Where":
            c = [u for u in self.vals if u[1] != "bool"]
            c = [u for u in c if self._bc(u[2], s) is not None]
            if not c:
                return False
            u = c[self.r.integers(len(c))]
            out = self._bc(u[2], s)
            if int(np.prod(out)) > 200000:
                return False
            self.node("Where", [n, u[0], self.W(u[1], ())], [(u[1], out)])
        else:
            self.node(op, [n, self.W("bool", s)], [("bool", s)])
        return True

    def _bc(self, a: Any, b: Any) -> Any:
        try:
            return np.broadcast_shapes(a, b)
        except ValueError:
            return None

    def intop(self) -> bool:
        v = self.pick(lambda v: v[1] in ("i32", "i64"))
        if v is None:
            return False
        n, dt, s = v
        op = self.r.choice(["Mod", "Abs", "Neg", "Div", "Cast", "Sign"])
        if op in ("Mod", "Div"):
            self.node(
                op,
                [n, self.add_init(np.asarray(self.r.choice([2, 3, -3, 7]), dtype=NP[dt]))],
                [(dt, s)],
            )
        elif op == "Cast":
            to = self.r.choice(["f32", "i32", "i64", "bool", "f64"])
            self.node("Cast", [n], [(to, s)], to=DT[to])
        else:
            self.node(op, [n], [(dt, s)])
        return True
