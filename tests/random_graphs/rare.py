"""Makes rare operators of random graphs, and usual operators with rare types and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import Arithmetic
from .builder import DT, NP

_SMALL = ("i8", "u8", "i16", "u16", "u32", "u64")


class Rare(Arithmetic):
    """Makes operators that other families leave out."""

    def rare(self) -> bool:
        """Add one of the operators of this class."""
        makers = [
            *(self._sample, self._regions, self._quantise, self._recurrent, self._rows),
            *(self._scatter, self._computed_index, self._bits, self._small, self._activation),
            *(self._normal, self._where, self._crop, self._einsum, self._spectrum),
            *(self._unusual_cast, self._attention, self._halves, self._matrix),
        ]
        return bool(makers[self.r.integers(len(makers))]())

    def _of_rank(self, rank: int, size: int) -> Any:
        """A tensor of float32 of this rank, with fewer than `size` numbers."""
        return self.pick(
            lambda v: v[1] == "f32" and len(v[2]) == rank and min(v[2]) > 0 and np.prod(v[2]) < size
        )

    def _images(self) -> Any:
        return self._of_rank(4, 5000)

    def _floats(self, least: int = 1) -> Any:
        return self.pick(
            lambda v: (
                v[1] == "f32" and len(v[2]) >= least and min(v[2]) > 0 and np.prod(v[2]) < 20000
            )
        )

    def _sample(self) -> bool:
        v = self._images()
        if v is None:
            return False
        n, dt, s = v
        rows, columns = (int(i) for i in self.r.integers(1, 6, 2))
        grid = self.r.uniform(-1.5, 1.5, (s[0], rows, columns, 2)).astype(np.float32)
        self.node(
            "GridSample",
            [n, self.add_init(grid)],
            [(dt, (*s[:2], rows, columns))],
            mode=str(self.r.choice(["linear", "nearest", "cubic"])),
            padding_mode=str(self.r.choice(["zeros", "border", "reflection"])),
            align_corners=int(self.r.integers(2)),
        )
        return True

    def _regions(self) -> bool:
        v = self._images()
        if v is None:
            return False
        n, dt, s = v
        corners = self.r.uniform(-1, max(s[2:]), (3, 2, 2))
        boxes = np.concatenate([corners.min(1), corners.max(1) + 0.3], 1).astype(np.float32)
        which = self.r.integers(0, s[0], 3).astype(np.int64)
        self.node(
            "RoiAlign",
            [n, self.add_init(boxes), self.add_init(which)],
            [(dt, (3, s[1], 2, 3))],
            output_height=2,
            output_width=3,
            mode=str(self.r.choice(["avg", "max"])),
            sampling_ratio=int(self.r.integers(0, 3)),
            spatial_scale=float(self.r.choice([1.0, 0.7])),
            coordinate_transformation_mode=str(self.r.choice(["half_pixel", "output_half_pixel"])),
        )
        return True

    def _quantise(self) -> bool:
        v = self._floats()
        if v is None:
            return False
        n, dt, s = v
        kind = str(self.r.choice(["u8", "i8", "dynamic"]))
        if kind == "dynamic":
            y, step, zero = self.node(
                "DynamicQuantizeLinear", [n], [("u8", s), (dt, ()), ("u8", ())]
            )
            self.node("DequantizeLinear", [y, step, zero], [(dt, s)])
            return True
        axis = int(self.r.integers(0, len(s)))
        size = (s[axis],) if self.r.random() < 0.4 else ()
        step = self.add_init((self.r.random(size) * 0.05 + 0.01).astype(np.float32))
        zero = self.add_init(self.r.integers(0, 9, size).astype(NP[kind]))
        at = {"axis": axis} if size else {}
        y = self.node("QuantizeLinear", [n, step, zero], [(kind, s)], **at)[0]
        self.node("DequantizeLinear", [y, step, zero], [(dt, s)], **at)
        return True

    def _recurrent(self) -> bool:
        v = self._of_rank(3, 2000)
        if v is None:
            return False
        n, dt, (steps, batch, size) = v
        op = str(self.r.choice(["LSTM", "GRU", "RNN"]))
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
        direction = str(self.r.choice(["forward", "reverse", "bidirectional"]))
        ways, hidden = 1 + (direction == "bidirectional"), 5
        ins = [
            n,
            self.W(dt, (ways, gates * hidden, size)),
            self.W(dt, (ways, gates * hidden, hidden)),
        ]
        ins.append(self.W(dt, (ways, 2 * gates * hidden)) if self.r.random() < 0.5 else "")
        if self.r.random() < 0.3:
            ins.append(self.add_init(self.r.integers(1, steps + 1, batch).astype(np.int32)))
        at: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
        if op == "GRU":
            at["linear_before_reset"] = int(self.r.integers(2))
        outs = [(dt, (steps, ways, batch, hidden)), (dt, (ways, batch, hidden))]
        self.node(op, ins, outs[: int(self.r.integers(1, 3))], **at)
        return True

    def _rows(self) -> bool:
        v = self._floats(2)
        if v is None:
            return False
        n, dt, s = v
        op = self.r.choice(["ReverseSequence", "Compress", "EyeLike", "CenterCropPad"])
        if op == "ReverseSequence":
            lengths = self.I64(self.r.integers(0, s[0] + 1, s[1]))
            self.node(op, [n, lengths], [(dt, s)], time_axis=0, batch_axis=1)
        elif op == "Compress":
            axis = int(self.r.integers(0, len(s)))
            kept = self.r.random(s[axis]) < 0.6
            kept[0] = True
            out = (*s[:axis], int(kept.sum()), *s[axis + 1 :])
            self.node(op, [n, self.add_init(kept)], [(dt, out)], axis=axis)
        elif op == "EyeLike" and len(s) == 2:
            self.node(op, [n], [(dt, s)], k=int(self.r.integers(-2, 3)))
        else:
            size = int(self.r.integers(1, 9))
            axis = int(self.r.integers(0, len(s)))
            out = (*s[:axis], size, *s[axis + 1 :])
            self.node("CenterCropPad", [n, self.I64([size])], [(dt, out)], axes=[axis])
        return True

    def _scatter(self) -> bool:
        v = self.pick(
            lambda v: v[1] in ("f32", "i32", "i64") and len(v[2]) >= 1 and 0 < min(v[2]) < 50
        )
        if v is None:
            return False
        n, dt, s = v
        if np.prod(s) > 5000:
            return False
        reduction = str(self.r.choice(["add", "mul", "max", "min", "none"]))
        axis = int(self.r.integers(0, len(s)))
        if self.r.random() < 0.5:
            shape = list(s)
            shape[axis] = 1 if reduction == "none" else int(self.r.integers(1, 4))
            where = self.r.integers(-s[axis], s[axis], shape).astype(np.int64)
            ins = [n, self.add_init(where), self.W(dt, shape, 1.0)]
            self.node("ScatterElements", ins, [(dt, s)], axis=axis, reduction=reduction)
            return True
        count = 1 if reduction == "none" else 3
        where = self.r.integers(-s[0], s[0], (count, 1)).astype(np.int64)
        ins = [n, self.add_init(where), self.W(dt, (count, *s[1:]), 1.0)]
        self.node("ScatterND", ins, [(dt, s)], reduction=reduction)
        return True

    def _computed_index(self) -> bool:
        v, i = self._floats(), self.pick(lambda v: v[1] in ("i64", "i32") and np.prod(v[2]) < 60)
        if v is None or i is None or np.prod(v[2]) * max(np.prod(i[2]), 1) > 50000:
            return False
        n, dt, s = v
        axis = int(self.r.integers(0, len(s)))
        size = self.add_init(np.asarray(s[axis], NP[i[1]]))
        place = self.node("Mod", [i[0], size], [(i[1], i[2])])[0]
        if self.r.random() < 0.3:
            place = self.node("Sub", [place, size], [(i[1], i[2])])[0]
        self.node("Gather", [n, place], [(dt, (*s[:axis], *i[2], *s[axis + 1 :]))], axis=axis)
        return True

    def _bits(self) -> bool:
        v = self.pick(lambda v: v[1] in ("i32", "i64", "u8", "i8", "u32"))
        if v is None:
            return False
        n, dt, s = v
        op = str(self.r.choice(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"]))
        if op == "BitwiseNot":
            self.node(op, [n], [(dt, s)])
        elif op != "BitShift":
            self.node(op, [n, self.W(dt, ())], [(dt, s)])
        elif dt[0] == "u":
            by = self.add_init(np.asarray(self.r.integers(0, 9), NP[dt]))
            direction = str(self.r.choice(["LEFT", "RIGHT"]))
            self.node(op, [n, by], [(dt, s)], direction=direction)
        else:
            return False
        return True

    def _small(self) -> bool:
        """Compute with integers of few bits, which come from a cast."""
        v = self.pick(lambda v: v[1] in ("i32", "i64", *_SMALL) and np.prod(v[2]) < 5000)
        if v is None:
            return False
        n, dt, s = v
        if dt in ("i32", "i64"):
            to = str(self.r.choice(_SMALL))
            m = self.node("Mod", [n, self.add_init(np.asarray(50, NP[dt]))], [(dt, s)])[0]
            self.node("Cast", [m], [(to, s)], to=DT[to])
            return True
        op = str(
            self.r.choice(["Add", "Sub", "Mul", "Max", "Min", "Greater", "Equal", "Div", "Cast"])
        )
        if op == "Cast":
            to = str(self.r.choice(["f32", "i64", "f16"]))
            self.node(op, [n], [(to, s)], to=DT[to])
            return True
        other = self.add_init(np.asarray(self.r.integers(1, 7), NP[dt]))
        self.node(op, [n, other], [("bool" if op in ("Greater", "Equal") else dt, s)])
        return True

    def _activation(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "f16", "f64"))
        if v is None:
            return False
        n, dt, s = v
        op = str(
            self.r.choice(
                [
                    *("PRelu", "Shrink", "HardSwish", "Gelu", "Softplus", "Erf", "Sinh", "Asinh"),
                    *("Elu", "Celu", "Selu", "LeakyRelu", "IsInf", "Round", "ThresholdedRelu"),
                    *("Tan", "Atanh"),
                ]
            )
        )
        if op == "PRelu":
            self.node(op, [n, self.W(dt, s[-1:])], [(dt, s)])
        elif op == "IsInf":
            self.node(op, [n], [("bool", s)], detect_negative=int(self.r.integers(2)))
        elif op == "Shrink":
            self.node(op, [n], [(dt, s)], bias=0.25, lambd=0.5)
        elif op in ("Sinh", "Asinh", "Tan", "Atanh"):
            half = self.add_init(np.asarray(0.5, NP[dt]))
            bounded = self.node("Tanh", [n], [(dt, s)])[0]
            self.node(op, [self.node("Mul", [bounded, half], [(dt, s)])[0]], [(dt, s)])
        else:
            at = {"approximate": str(self.r.choice(["none", "tanh"]))} if op == "Gelu" else {}
            self.node(op, [n], [(dt, s)], **at)
        return True

    def _normal(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "f16") and len(v[2]) >= 3 and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        op = self.r.choice(["MeanVarianceNormalization", "LayerNormalization", "LpNormalization"])
        if op == "LayerNormalization":
            ins = [n, self.W(dt, s[-1:], 1.0), self.W(dt, s[-1:], 1.0)]
            outs = [(dt, s), ("f32", (*s[:-1], 1)), ("f32", (*s[:-1], 1))]
            self.node(op, ins, outs[: int(self.r.choice([1, 3]))], axis=-1, epsilon=0.1)
        elif op == "LpNormalization" and dt == "f32":
            a = self.node("Abs", [n], [(dt, s)])[0]
            b = self.node("Add", [a, self.add_init(np.float32(0.5))], [(dt, s)])[0]
            self.node(op, [b], [(dt, s)], axis=int(self.r.integers(-len(s), len(s))), p=1)
        elif s[0] * np.prod(s[2:]) > 8 and dt == "f32" and len(s) == 4:
            self.node("MeanVarianceNormalization", [n], [(dt, s)], axes=[0, 2, 3])
        else:
            self.node("Softmax", [n], [(dt, s)], axis=-1)
        return True

    def _where(self) -> bool:
        v = self._floats()
        if v is None:
            return False
        n, dt, s = v
        limit = self.add_init(np.asarray(0.1, NP[dt]))
        condition = self.node("Greater", [n, limit], [("bool", s)])[0]
        other = self.W(dt, (*[1] * (len(s) - 1), s[-1]), 1.0)
        pair = [n, other] if self.r.random() < 0.5 else [other, n]
        self.node("Where", [condition, *pair], [(dt, s)])
        return True

    def _crop(self) -> bool:
        v = self._images()
        if v is None:
            return False
        n, dt, s = v
        out = [s[0], s[1], *(int(i) for i in self.r.integers(1, 9, 2))]
        mode = str(self.r.choice(["nearest", "linear", "cubic"]))
        at: dict[str, Any] = {"mode": mode}
        if mode != "nearest":
            at["antialias"] = int(self.r.integers(2))
        else:
            at["nearest_mode"] = str(self.r.choice(["ceil", "round_prefer_ceil", "floor"]))
        self.node("Resize", [n, "", "", self.I64(out)], [(dt, out)], **at)
        return True

    def _einsum(self) -> bool:
        v = self._floats(2)
        if v is None or len(v[2]) > 3:
            return False
        n, dt, s = v
        if len(s) == 2:
            kind = str(self.r.choice(["ij->ji", "ij->i", "ij->", "ij,ij->j", "ij,kj->ik"]))
            a, b = s
            out = {
                "ij->ji": (b, a),
                "ij->i": (a,),
                "ij->": (),
                "ij,ij->j": (b,),
                "ij,kj->ik": (a, 3),
            }
            other = {"ij,ij->j": (a, b), "ij,kj->ik": (3, b)}.get(kind)
            ins = [n] if other is None else [n, self.W(dt, other)]
            self.node("Einsum", ins, [(dt, out[kind])], equation=kind)
            return True
        kind = str(self.r.choice(["bij,bkj->bik", "bij,bij->bi", "...ij,jk->...ik"]))
        a, b, c = s
        other, out_ = {
            "bij,bkj->bik": ((a, 2, c), (a, b, 2)),
            "bij,bij->bi": (s, (a, b)),
            "...ij,jk->...ik": ((c, 3), (a, b, 3)),
        }[kind]
        self.node("Einsum", [n, self.W(dt, other)], [(dt, out_)], equation=kind)
        return True

    def _spectrum(self) -> bool:
        v = self._floats(2)
        if v is None or np.prod(v[2]) > 2000:
            return False
        n, dt, s = v
        wide = self.node("Unsqueeze", [n, self.I64([-1])], [(dt, (*s, 1))])[0]
        axis = int(self.r.integers(1, len(s)))
        one = int(self.r.integers(2))
        out = [*s, 2]
        out[axis] = s[axis] // 2 + 1 if one else s[axis]
        place = self.add_init(np.asarray(axis, np.int64))
        self.node("DFT", [wide, "", place], [(dt, out)], onesided=one)
        return True

    def _unusual_cast(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "f16", "f64", "bool"))
        if v is None:
            return False
        n, dt, s = v
        if dt != "bool":
            n = self.node("Sigmoid", [n], [(dt, s)])[0]
            n = self.node("Mul", [n, self.add_init(np.asarray(40, NP[dt]))], [(dt, s)])[0]
        to = str(self.r.choice([*_SMALL, "bool", "f16", "f64", "i32"]))
        if self.r.random() < 0.3:
            self.node("CastLike", [n, self.W(to, ())], [(to, s)])
        else:
            self.node("Cast", [n], [(to, s)], to=DT[to])
        return True

    def _attention(self) -> bool:
        v = self._of_rank(3, 3000)
        if v is None:
            return False
        n, dt, s = v
        rows = self.node("MatMul", [n, self.W(dt, (s[2], 8))], [(dt, (*s[:2], 8))])[0]
        scores = self.node("Transpose", [rows], [(dt, (s[0], 8, s[1]))], perm=[0, 2, 1])[0]
        scores = self.node("MatMul", [rows, scores], [(dt, (s[0], s[1], s[1]))])[0]
        if self.r.random() < 0.5:
            mask = np.triu(np.full((s[1], s[1]), -np.inf, np.float32), 1)
            scores = self.node("Add", [scores, self.add_init(mask)], [(dt, (s[0], s[1], s[1]))])[0]
        weights = self.node("Softmax", [scores], [(dt, (s[0], s[1], s[1]))], axis=-1)[0]
        self.node("MatMul", [weights, rows], [(dt, (*s[:2], 8))])
        return True

    def _halves(self) -> bool:
        """Compute in float16."""
        v = self.pick(lambda v: v[1] == "f16" and len(v[2]) >= 2 and min(v[2]) > 0)
        if v is None:
            w = self._floats(2)
            if w is None:
                return False
            bounded = self.node("Tanh", [w[0]], [("f32", w[2])])[0]
            self.node("Cast", [bounded], [("f16", w[2])], to=DT["f16"])
            return True
        n, dt, s = v
        op = str(self.r.choice(["MatMul", "ReduceMean", "Softmax", "ReduceMax", "Tanh", "Sqrt"]))
        if op == "MatMul":
            self.node(op, [n, self.W(dt, (s[-1], 5))], [(dt, (*s[:-1], 5))])
        elif op.startswith("Reduce"):
            self.node(op, [n, self.I64([-1])], [(dt, (*s[:-1], 1))])
        elif op == "Sqrt":
            self.node(op, [self.node("Abs", [n], [(dt, s)])[0]], [(dt, s)])
        else:
            self.node(op, [n], [(dt, s)])
        return True

    def _matrix(self) -> bool:
        v = self._floats(2)
        if v is None or np.prod(v[2][:-2]) > 50:
            return False
        n, dt, s = v
        part = self.node("MatMul", [n, self.W(dt, (s[-1], 3))], [(dt, (*s[:-1], 3))])[0]
        if s[-2] < 3:
            return False
        cut = [self.I64([0]), self.I64([3]), self.I64([-2])]
        square = self.node("Slice", [part, *cut], [(dt, (*s[:-2], 3, 3))])[0]
        if self.r.random() < 0.5:
            self.node("Det", [square], [(dt, s[:-2])])
        else:
            upper = int(self.r.integers(2))
            self.node("Trilu", [square], [(dt, (*s[:-2], 3, 3))], upper=upper)
        return True
