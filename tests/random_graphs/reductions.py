"""Makes products, reductions, sorting operators and cumulative sums of random graphs."""

from __future__ import annotations

import numpy as np

from .arithmetic import Arithmetic


class Reductions(Arithmetic):
    """Makes products, reductions, sorting operators and cumulative sums."""

    def matmul(self) -> bool:
        v = self.pick(
            lambda v: v[1] in ("f32", "f64") and len(v[2]) >= 1 and min(v[2], default=1) > 0
        )
        if v is None:
            return False
        n, dt, s = v
        cands = [
            u
            for u in self.vals
            if u[1] == dt
            and len(u[2]) >= 2
            and len(s) >= 2
            and u[2][-2] == s[-1]
            and self._bc(u[2][:-2], s[:-2]) is not None
            and u[2][-1] > 0
        ]
        if cands and self.r.random() < 0.5:
            u = cands[self.r.integers(len(cands))]
            out = (*self._bc(u[2][:-2], s[:-2]), s[-2], u[2][-1])
            if np.prod(out) > 100000:
                return False
            self.node("MatMul", [n, u[0]], [(dt, out)])
            return True
        m = int(self.r.integers(1, 20))
        if len(s) == 1:
            self.node("MatMul", [n, self.W(dt, (s[0], m))], [(dt, (m,))])
            return True
        if self.r.random() < 0.15:
            self.node("MatMul", [n, self.W(dt, (s[-1],))], [(dt, s[:-1])])
            return True
        w = (s[-1], m)
        if self.r.random() < 0.2:
            w = (*s[:-2], s[-1], m)
        self.node("MatMul", [n, self.W(dt, w)], [(dt, (*s[:-1], m))])
        return True

    def gemm(self) -> bool:
        v = self.pick(lambda v: v[1] == "f32" and len(v[2]) == 2 and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        ta = int(self.r.random() < 0.3)
        tb = int(self.r.random() < 0.5)
        M, K = (s[1], s[0]) if ta else s
        N = int(self.r.integers(1, 24))
        ins = [n, self.W(dt, (N, K) if tb else (K, N))]
        c = self.r.integers(6)
        if c < 5:
            ins.append(
                [
                    self.W(dt, (N,)),
                    self.W(dt, (1, N)),
                    self.W(dt, ()),
                    self.W(dt, (M, 1)),
                    self.W(dt, (M, N)),
                ][c]
            )
        at = {"transA": ta, "transB": tb}
        if self.r.random() < 0.3:
            at.update(alpha=0.5, beta=float(self.r.choice([0.0, 2.0])))
        self.node("Gemm", ins, [(dt, (M, N))], **at)
        return True

    def softmax(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "f64") and len(v[2]) >= 1)
        if v is None:
            return False
        n, dt, s = v
        ax = int(self.r.integers(-len(s), len(s)))
        self.node(self.r.choice(["Softmax", "LogSoftmax", "Softmax"]), [n], [(dt, s)], axis=ax)
        return True

    def reduce(self) -> bool:
        v = self.pick(
            lambda v: v[1] in ("f32", "f64", "i32", "i64") and len(v[2]) >= 1 and min(v[2]) > 0
        )
        if v is None:
            return False
        n, dt, s = v
        r = len(s)
        op = self.r.choice(
            [
                "ReduceSum",
                "ReduceMean",
                "ReduceMax",
                "ReduceMin",
                "ReduceL1",
                "ReduceL2",
                "ReduceSumSquare",
                "ReduceLogSumExp",
                "ReduceProd",
            ]
        )
        if dt[0] == "i":
            op = self.r.choice(["ReduceSum", "ReduceMax", "ReduceMin"])
        if op == "ReduceProd":
            n = self.node("Tanh", [n], [(dt, s)])[0]
        axes = sorted(self.r.choice(r, size=int(self.r.integers(1, r + 1)), replace=False).tolist())
        kd = int(self.r.integers(2))
        neg = self.r.random() < 0.3
        ax = [a - r if neg else a for a in axes]
        mode = self.r.integers(8)
        at = {"keepdims": kd}
        ins = [n]
        if mode == 0:
            axes = list(range(r))
        elif mode == 1:
            axes = []
            at["noop_with_empty_axes"] = 1
        else:
            ins.append(self.I64(ax))
        if axes == []:
            out = s
        else:
            out = [1 if i in axes else d for i, d in enumerate(s) if kd or i not in axes]
        self.node(op, ins, [(dt, out)], **at)
        return True

    def arg(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "i32", "f64") and len(v[2]) >= 1 and min(v[2]) > 0)
        if v is None:
            return False
        n, _dt, s = v
        ax = int(self.r.integers(0, len(s)))
        kd = int(self.r.integers(2))
        out = [1 if i == ax else d for i, d in enumerate(s) if kd or i != ax]
        at = {"axis": ax, "keepdims": kd}
        if self.r.random() < 0.3:
            at["select_last_index"] = 1
        self.node(self.r.choice(["ArgMax", "ArgMin"]), [n], [("i64", out)], **at)
        return True

    def cumsum(self) -> bool:
        v = self.pick(lambda v: v[1] in ("f32", "i32", "i64") and len(v[2]) >= 1)
        if v is None:
            return False
        n, dt, s = v
        ax = int(self.r.integers(-len(s), len(s)))
        self.node(
            "CumSum",
            [
                n,
                self.add_init(
                    np.asarray(ax, dtype=np.int64 if self.r.random() < 0.5 else np.int32)
                ),
            ],
            [(dt, s)],
            exclusive=int(self.r.integers(2)),
            reverse=int(self.r.integers(2)),
        )
        return True

    def topk(self) -> bool:
        v = self.pick(lambda v: v[1] == "f32" and len(v[2]) >= 1 and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        ax = int(self.r.integers(0, len(s)))
        k = int(self.r.integers(1, s[ax] + 1))
        out = list(s)
        out[ax] = k
        self.node(
            "TopK",
            [n, self.I64([k])],
            [(dt, out), ("i64", out)],
            axis=ax,
            largest=int(self.r.integers(2)),
            sorted=1,
        )
        return True
