"""Makes operators of random graphs that move elements: slices, joins, shapes and indices."""

from __future__ import annotations

import numpy as np

from .arithmetic import Arithmetic


class Movement(Arithmetic):
    """Makes operators that move elements: slices, joins, shapes and indices."""

    def concat(self) -> bool:
        v = self.pick(lambda v: len(v[2]) >= 1)
        if v is None:
            return False
        _n, dt, s = v
        ax = int(self.r.integers(0, len(s)))
        c = [
            u
            for u in self.vals
            if u[1] == dt
            and len(u[2]) == len(s)
            and all(i == ax or a == b for i, (a, b) in enumerate(zip(u[2], s, strict=False)))
        ]
        m = int(self.r.integers(1, 5))
        us = [c[self.r.integers(len(c))] for _ in range(m)] + [v]
        out = list(s)
        out[ax] = sum(u[2][ax] for u in us)
        if np.prod(out) > 100000:
            return False
        self.node(
            "Concat",
            [u[0] for u in us],
            [(dt, out)],
            axis=ax if self.r.random() < 0.5 else ax - len(s),
        )
        return True

    def split(self) -> bool:
        v = self.pick(lambda v: len(v[2]) >= 1 and max(v[2]) >= 2)
        if v is None:
            return False
        n, dt, s = v
        axs = [i for i, d in enumerate(s) if d >= 2]
        ax = int(self.r.choice(axs))
        D = s[ax]
        m = int(self.r.integers(2, min(D, 4) + 1))
        if self.r.random() < 0.6:
            cuts = sorted(
                self.r.choice(
                    np.arange(0 if self.r.random() < 0.1 else 1, D), size=m - 1, replace=False
                ).tolist()
            )
            sizes = np.diff([0, *cuts, D]).tolist()
            self.node(
                "Split",
                [n, self.I64(sizes)],
                [(dt, (*s[:ax], z, *s[ax + 1 :])) for z in sizes],
                axis=ax,
            )
        else:
            ch = -(-D // m)
            m = -(-D // ch)
            sizes = [ch] * (m - 1) + [D - ch * (m - 1)]
            self.node(
                "Split",
                [n],
                [(dt, (*s[:ax], z, *s[ax + 1 :])) for z in sizes],
                axis=ax - len(s),
                num_outputs=m,
            )
        return True

    def slice(self) -> bool:
        v = self.pick(lambda v: len(v[2]) >= 1)
        if v is None:
            return False
        n, dt, s = v
        r = len(s)
        axes = self.r.choice(r, size=int(self.r.integers(1, r + 1)), replace=False).tolist()
        st, en, sp = [], [], []
        out = list(s)
        for a in axes:
            step = int(self.r.choice([1, 1, 2, -1, -2, 3]))
            D = s[a]
            b = int(self.r.choice([0, -D, D - 1, int(self.r.integers(-D - 2, D + 3))]))
            e = int(
                self.r.choice(
                    [D, 2**31 - 1, 2**63 - 1, -(2**31), -1, int(self.r.integers(-D - 2, D + 3))]
                )
            )
            if step < 0 and self.r.random() < 0.6:
                b, e = (
                    int(self.r.choice([D - 1, 2**31 - 1, -1])),
                    int(self.r.choice([-(2**31), -D - 1, -(2**63) + 1])),
                )
            # Compute the bounds of the slice as ONNX does.
            bb = b + D if b < 0 else b
            ee = e + D if e < 0 else e
            if step > 0:
                bb = min(max(bb, 0), D)
                ee = min(max(ee, 0), D)
                L = max(0, -(-(ee - bb) // step))
            else:
                bb = min(max(bb, 0), D - 1)
                ee = min(max(ee, -1), D - 1)
                L = max(0, -(-(bb - ee) // -step))
            if D == 0:
                L = 0
            if L == 0 and self.r.random() < 0.9:
                b, e, step = 0, D, 1
                L = D
            st.append(b)
            en.append(e)
            sp.append(step)
            out[a] = L
        axs = [a - r if self.r.random() < 0.5 else a for a in axes]
        self.node(
            "Slice", [n, self.I64(st), self.I64(en), self.I64(axs), self.I64(sp)], [(dt, out)]
        )
        return True

    def reshape(self) -> bool:
        v = self.pick()
        n, dt, s = v
        N = int(np.prod(s))
        if N == 0:
            return False
        op = self.r.choice(
            ["Reshape", "Flatten", "Reshape", "ShapeReshape", "Squeeze", "Unsqueeze"]
        )
        if op == "Flatten":
            ax = int(self.r.integers(0, len(s) + 1))
            self.node("Flatten", [n], [(dt, (int(np.prod(s[:ax])), int(np.prod(s[ax:]))))], axis=ax)
            return True
        if op == "Squeeze":
            ax = [i for i, d in enumerate(s) if d == 1]
            if not ax:
                return False
            if self.r.random() < 0.3:
                self.node("Squeeze", [n], [(dt, [d for d in s if d != 1])])
                return True
            a = int(self.r.choice(ax))
            self.node("Squeeze", [n, self.I64([a])], [(dt, [d for i, d in enumerate(s) if i != a])])
            return True
        if op == "Unsqueeze":
            if len(s) > 5:
                return False
            a = int(self.r.integers(0, len(s) + 1))
            self.node("Unsqueeze", [n, self.I64([a])], [(dt, (*s[:a], 1, *s[a:]))])
            return True
        f = []
        m = N
        while m > 1 and len(f) < 4:
            ds = [d for d in range(2, min(m, 64) + 1) if m % d == 0]
            if not ds:
                break
            d = int(self.r.choice(ds))
            f.append(d)
            m //= d
        if m > 1 or not f:
            f.append(m)
        self.r.shuffle(f)
        shape = list(map(int, f))
        t = list(shape)
        if self.r.random() < 0.5:
            t[self.r.integers(len(t))] = -1
        for i in range(min(len(t), len(s))):
            if t[i] == s[i] and self.r.random() < 0.3:
                t[i] = 0
        if op == "ShapeReshape":
            # The shape is computed from the shape of another tensor.
            sh = self.node("Shape", [n], [("i64", (len(s),))])[0]
            p = self.node("ReduceProd", [sh], [("i64", (1,))], keepdims=1)[0]
            self.node("Reshape", [n, p], [(dt, (N,))])
            return True
        self.node("Reshape", [n, self.I64(t)], [(dt, shape)])
        return True

    def transpose(self) -> bool:
        v = self.pick(lambda v: len(v[2]) >= 2)
        if v is None:
            return False
        n, dt, s = v
        p = self.r.permutation(len(s)).tolist()
        if self.r.random() < 0.1:
            self.node("Transpose", [n], [(dt, s[::-1])])
            return True
        self.node("Transpose", [n], [(dt, [s[i] for i in p])], perm=p)
        return True

    def expand(self) -> bool:
        v = self.pick(lambda v: len(v[2]) <= 4)
        n, dt, s = v
        out = [d if d != 1 else int(self.r.integers(1, 5)) for d in s]
        if self.r.random() < 0.3 and len(s) < 4:
            out = [int(self.r.integers(1, 3)), *out]
        if np.prod(out) > 50000:
            return False
        self.node("Expand", [n, self.I64(out)], [(dt, out)])
        return True

    def tile(self) -> bool:
        v = self.pick(lambda v: len(v[2]) >= 1 and np.prod(v[2]) < 3000)
        if v is None:
            return False
        n, dt, s = v
        rp = [int(self.r.choice([1, 1, 2, 3])) for _ in s]
        self.node("Tile", [n, self.I64(rp)], [(dt, [a * b for a, b in zip(s, rp, strict=False)])])
        return True

    def pad(self) -> bool:
        v = self.pick(
            lambda v: (
                len(v[2]) >= 1
                and v[1] in ("f32", "f64", "i32", "i64")
                and min(v[2]) > 0
                and np.prod(v[2]) < 20000
            )
        )
        if v is None:
            return False
        n, dt, s = v
        mode = self.r.choice(["constant", "reflect", "edge", "constant"])
        lo = [
            int(self.r.integers(0, 3))
            if d > 3
            else int(self.r.integers(0, 2)) * (d > 1 or mode != "reflect")
            for d in s
        ]
        hi = [int(self.r.integers(0, 2)) * (d > 1 or mode != "reflect") for d in s]
        if mode == "constant" and self.r.random() < 0.2:
            lo = [
                -1 if d > 3 and self.r.random() < 0.3 else low
                for d, low in zip(s, lo, strict=False)
            ]
        ins = [n, self.I64(lo + hi)]
        if mode == "constant" and self.r.random() < 0.5:
            ins.append(self.W(dt, ()))
        out = [a + b + c for a, b, c in zip(s, lo, hi, strict=False)]
        self.node("Pad", ins, [(dt, out)], mode=mode)
        return True

    def gather(self) -> bool:
        v = self.pick(lambda v: len(v[2]) >= 1 and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        ax = int(self.r.integers(0, len(s)))
        D = s[ax]
        op = self.r.choice(
            ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Gather"]
        )
        if op == "Gather":
            sh = [(), (2,), (3, 2), (1,), (0,)][
                self.r.integers(5) if self.r.random() < 0.9 and False else self.r.integers(4)
            ]
            idx = self.r.integers(-D, D, sh).astype(self.r.choice([np.int64, np.int32]))
            self.node(
                "Gather",
                [n, self.add_init(np.asarray(idx))],
                [(dt, (*s[:ax], *sh, *s[ax + 1 :]))],
                axis=ax,
            )
        elif op == "GatherElements":
            sh = list(s)
            sh[ax] = int(self.r.integers(1, 5))
            idx = self.r.integers(-D, D, sh).astype(np.int64)
            self.node(op, [n, self.add_init(idx)], [(dt, sh)], axis=ax)
        elif op == "GatherND":
            k = int(self.r.integers(1, len(s) + 1))
            m = 3
            idx = np.stack([self.r.integers(-d, d, m) for d in s[:k]], -1).astype(np.int64)
            self.node(op, [n, self.add_init(idx)], [(dt, (m, *s[k:]))])
        elif op == "ScatterElements":
            sh = list(s)
            sh[ax] = 1
            idx = self.r.integers(-D, D, sh).astype(np.int64)
            self.node(op, [n, self.add_init(idx), self.W(dt, sh)], [(dt, s)], axis=ax)
        else:
            idx = np.asarray([[int(self.r.integers(-s[0], s[0]))]], dtype=np.int64)
            self.node(op, [n, self.add_init(idx), self.W(dt, (1, *s[1:]))], [(dt, s)])
        return True
