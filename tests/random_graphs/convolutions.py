"""Makes convolutions, poolings, norms and resizes of random graphs."""

from __future__ import annotations

import numpy as np

from .arithmetic import Arithmetic


class Convolutions(Arithmetic):
    """Makes convolutions, poolings, norms and resizes."""

    def conv(self) -> bool:
        v = self.pick(lambda v: v[1] == "f32" and len(v[2]) in (3, 4, 5) and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        sp = s[2:]
        d = len(sp)
        k = [int(min(x, self.r.choice([1, 1, 2, 3, 3, 5]))) for x in sp]
        dil = [int(self.r.choice([1, 1, 2])) for _ in sp]
        st = [int(self.r.choice([1, 1, 2, 3])) for _ in sp]
        c = s[1]
        groups = [g for g in range(1, c + 1) if c % g == 0]
        g = int(self.r.choice(groups)) if self.r.random() < 0.3 else 1
        oc = g * int(self.r.integers(1, 9))
        if self.r.random() < 0.3:
            oc = int(np.ceil(16 / g)) * g
        at = {"kernel_shape": k, "strides": st, "dilations": dil, "group": g}
        mode = self.r.integers(4)
        if mode == 0:
            ap = str(self.r.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
            at["auto_pad"] = ap
            if ap != "VALID":
                at["dilations"] = dil = [1] * d
        else:
            pads = [int(self.r.integers(0, kk + 1)) for kk in k] * 2
            if mode == 2:
                pads = [int(self.r.integers(0, kk + 1)) for kk in k] + [
                    int(self.r.integers(0, kk + 1)) for kk in k
                ]
            at["pads"] = pads
        out = []
        for i in range(d):
            ek = (k[i] - 1) * dil[i] + 1
            if mode == 0 and at["auto_pad"] != "VALID":
                o = -(-sp[i] // st[i])
            else:
                p = 0 if mode == 0 else at["pads"][i] + at["pads"][i + d]
                o = (sp[i] + p - ek) // st[i] + 1
                if sp[i] + p < ek:
                    return False
            out.append(o)
        ins = [n, self.W(dt, (oc, c // g, *k))]
        if self.r.random() < 0.5:
            ins.append(self.W(dt, (oc,), 0.1))
        elif self.r.random() < 0.1:
            ins.append("")
        self.node("Conv", ins, [(dt, (s[0], oc, *out))], **at)
        return True

    def convt(self) -> bool:
        v = self.pick(lambda v: v[1] == "f32" and len(v[2]) == 4 and min(v[2]) > 0 and v[2][2] < 12)
        if v is None:
            return False
        n, dt, s = v
        k = int(self.r.integers(1, 4))
        st = int(self.r.integers(1, 3))
        c = s[1]
        groups = [g for g in range(1, c + 1) if c % g == 0]
        g = int(self.r.choice(groups))
        oc = int(self.r.integers(1, 4))
        op = int(self.r.integers(0, st))
        p = int(self.r.integers(0, k)) if k > 1 else 0
        o = [(x - 1) * st + k - 2 * p + op for x in s[2:]]
        if min(o) < 1:
            return False
        self.node(
            "ConvTranspose",
            [n, self.W(dt, (c, oc, k, k))],
            [(dt, (s[0], oc * g, *o))],
            kernel_shape=[k, k],
            strides=[st, st],
            pads=[p] * 4,
            output_padding=[op, op],
            group=g,
        )
        return True

    def pool(self) -> bool:
        v = self.pick(lambda v: v[1] == "f32" and len(v[2]) in (3, 4, 5) and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        sp = s[2:]
        d = len(sp)
        op = self.r.choice(
            ["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"]
        )
        if op.startswith("G"):
            self.node(op, [n], [(dt, (*s[:2], *([1] * d)))])
            return True
        k = [int(min(x, self.r.choice([1, 2, 3]))) for x in sp]
        st = [int(self.r.integers(1, 3)) for _ in sp]
        pads = [int(self.r.integers(0, kk)) for kk in k]
        pads = pads + [int(self.r.integers(0, kk)) for kk in k]
        at = {"kernel_shape": k, "strides": st, "pads": pads}
        ceil = int(self.r.random() < 0.3) if op != "LpPool" else 0
        if ceil:
            at["ceil_mode"] = 1
        if op == "AveragePool":
            at["count_include_pad"] = int(self.r.integers(2))
        if op == "LpPool":
            at["p"] = 2
        out = []
        for i in range(d):
            x = sp[i] + pads[i] + pads[i + d] - k[i]
            if x < 0:
                return False
            o = (x + (st[i] - 1 if ceil else 0)) // st[i] + 1
            if ceil and (o - 1) * st[i] >= sp[i] + pads[i]:
                o -= 1
            out.append(o)
        self.node(op, [n], [(dt, (*s[:2], *out))], **at)
        return True

    def norm(self) -> bool:
        v = self.pick(lambda v: v[1] == "f32" and len(v[2]) >= 3 and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        c = s[1]
        op = self.r.choice(
            ["BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN"]
        )
        if op == "BatchNormalization":
            var = self.add_init((self.r.random(c) + 0.5).astype(np.float32))
            self.node(
                op,
                [n, self.W(dt, (c,), 1.0), self.W(dt, (c,), 1.0), self.W(dt, (c,), 1.0), var],
                [(dt, s)],
            )
        elif op == "InstanceNormalization":
            if np.prod(s[2:]) < 2:
                return False
            self.node(op, [n, self.W(dt, (c,), 1.0), self.W(dt, (c,), 1.0)], [(dt, s)], epsilon=0.1)
        elif op == "LayerNormalization":
            ax = int(self.r.integers(1, len(s)))
            sh = s[ax:]
            ins = [n, self.W(dt, sh, 1.0)] + (
                [self.W(dt, sh, 1.0)] if self.r.random() < 0.6 else []
            )
            self.node(
                op, ins, [(dt, s)], axis=ax if self.r.random() < 0.5 else ax - len(s), epsilon=0.1
            )
        elif op == "LRN":
            if len(s) != 4:
                return False
            self.node(op, [n], [(dt, s)], size=int(self.r.choice([1, 3, 5])))
        elif op == "LpNormalization":
            a = self.node("Abs", [n], [(dt, s)])[0]
            b = self.node("Add", [a, self.add_init(np.float32(0.5))], [(dt, s)])[0]
            self.node(
                op,
                [b],
                [(dt, s)],
                axis=int(self.r.integers(-len(s), len(s))),
                p=int(self.r.choice([1, 2])),
            )
        else:
            return False
        return True

    def d2s(self) -> bool:
        v = self.pick(lambda v: v[1] == "f32" and len(v[2]) == 4 and min(v[2]) > 0)
        if v is None:
            return False
        n, dt, s = v
        if s[1] % 4 == 0 and self.r.random() < 0.6:
            self.node(
                "DepthToSpace",
                [n],
                [(dt, (s[0], s[1] // 4, s[2] * 2, s[3] * 2))],
                blocksize=2,
                mode=str(self.r.choice(["DCR", "CRD"])),
            )
            return True
        if s[2] % 2 == 0 and s[3] % 2 == 0:
            self.node(
                "SpaceToDepth", [n], [(dt, (s[0], s[1] * 4, s[2] // 2, s[3] // 2))], blocksize=2
            )
            return True
        return False

    def resize(self) -> bool:
        v = self.pick(
            lambda v: v[1] == "f32" and len(v[2]) == 4 and min(v[2]) > 0 and np.prod(v[2]) < 10000
        )
        if v is None:
            return False
        n, dt, s = v
        mode = str(self.r.choice(["nearest", "linear", "cubic"]))
        ct = str(self.r.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
        if mode == "nearest" and ct == "align_corners":
            ct = "asymmetric"
        out = [
            s[0],
            s[1],
            int(self.r.integers(1, 2 * s[2] + 1)),
            int(self.r.integers(1, 2 * s[3] + 1)),
        ]
        self.node(
            "Resize",
            [n, "", "", self.I64(out)],
            [(dt, out)],
            mode=mode,
            coordinate_transformation_mode=ct,
            nearest_mode="floor",
        )
        return True
