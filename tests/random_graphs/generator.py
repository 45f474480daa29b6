"""Makes random graphs of ONNX. The same seed gives the same graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from .builder import DT, NP
from .convolutions import Convolutions
from .movement import Movement
from .other import Other
from .rare import Rare
from .reductions import Reductions
from .subgraphs import Subgraphs

RARE = 10**9
"""The first seed of graphs with rare operators. The daily runs of usual graphs use smaller seeds.
"""


class RandomGraph(Convolutions, Reductions, Movement, Other, Rare, Subgraphs):
    """A graph of about `n` operators. `build` makes the model, and `feeds` makes its inputs.

    One of five seeds gives a graph with control flow. Seeds from `RARE` on give graphs in which
    half of the operators are rare.
    """

    def __init__(self, seed: int, n: int) -> None:
        super().__init__(seed, n)
        self.has_subgraphs = seed % 5 == 2
        self.has_rare = seed >= RARE

    def build(self) -> onnx.ModelProto:
        r = self.r
        H = int(r.choice([5, 7, 8, 12, 16]))
        C = int(r.choice([1, 3, 4, 8, 16]))
        B = int(r.choice([1, 1, 2]))
        zero = r.random() < 0.05
        self.inp(self.main, (B, C, H, H + int(r.integers(0, 3))))
        for _ in range(int(r.integers(0, 4))):
            rank = int(r.integers(0, 5))
            self.inp(
                str(r.choice(["f32", "f32", self.main, "i64", "i32", "bool", "f64"])),
                tuple(
                    int(r.choice([1, 2, 3, 4, 8, 0 if zero and r.random() < 0.2 else 5]))
                    for _ in range(rank)
                ),
            )
        ops = (
            [self.unary] * 4
            + [self.binary] * 5
            + [self.guarded, self.clip, self.compare, self.boolop, self.intop]
            + [self.conv] * 5
            + [self.convt]
            + [self.pool] * 2
            + [self.matmul] * 3
            + [
                self.gemm,
                self.norm,
                self.norm,
                self.softmax,
                self.reduce,
                self.reduce,
                self.arg,
                self.cumsum,
                self.topk,
            ]
            + [self.concat] * 3
            + [self.split] * 2
            + [self.slice] * 2
            + [self.reshape] * 2
            + [self.transpose] * 2
            + [
                self.expand,
                self.tile,
                self.pad,
                self.gather,
                self.gather,
                self.d2s,
                self.resize,
                self.misc,
            ]
        )
        if self.has_subgraphs:
            ops += [self.branch, self.loop, self.scan] * 2
        if self.has_rare:
            ops += [self.rare] * len(ops)
        tries = 0
        while len(self.nodes) < self.n and tries < self.n * 20:
            tries += 1
            ops[r.integers(len(ops))]()
        used = {i for nd in self.nodes for i in nd.input}
        made = [v for v in self.vals if v[0] not in {i[0] for i in self.inputs}]
        outs = [v for v in made if v[0] not in used]
        outs += [v for v in made if v[0] in used and r.random() < 0.05]
        if r.random() < 0.1:
            outs.append(self.inputs[0])
        if r.random() < 0.1 and self.inits:
            n, a = list(self.const.items())[int(r.integers(len(self.const)))]
            dt = next(k for k, x in NP.items() if x == a.dtype.type)
            outs.append((n, dt, a.shape))
        r.shuffle(outs)
        outs = [tuple(o) for o in outs]
        g = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, DT[d], s) for n, d, s in self.inputs],
            [
                helper.make_tensor_value_info(str(n), DT[str(d)], [int(x) for x in s])
                for n, d, s in outs
            ],
            self.inits,
        )
        m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 20)])
        m.ir_version = 9
        return m

    def feeds(self, seed: int) -> dict[str, np.ndarray]:
        r = np.random.default_rng(seed)
        f = {}
        for n, d, s in self.inputs:
            if d[0] == "f":
                f[n] = np.asarray(r.standard_normal(s)).astype(NP[d])
            elif d == "bool":
                f[n] = np.asarray(r.random(s) < 0.5)
            else:
                f[n] = np.asarray(r.integers(-5, 6, s)).astype(NP[d])
        return f


def random_graph(seed: int) -> RandomGraph:
    """A random graph of 20 to 89 operators."""
    return RandomGraph(seed, int(np.random.default_rng(seed).integers(20, 90)))
