"""Networks that recommend: Wide & Deep (Cheng et al., 2016) and DLRM (Naumov et al., 2019)."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .onnx_net import OnnxNet

DENSE = 13
"""The number of numeric features of a user and an item, as in the data of Criteo."""

TABLES = 26
"""The number of categorical features, each with its own table of embeddings, as in Criteo's
data.
"""

_CROSSED = 8


def wide_deep(net: OnnxNet, batch: int, rows: int) -> None:
    """Wide & Deep: 26 embeddings of width 32, layers of 1024, 512 and 256, and a linear part.

    The widths of the layers and embeddings follow section 4. The paper does not list its
    categorical features, so they follow the data of Criteo. The wide (linear) part has 8 inputs,
    each of which is a cross product of features. Each value of such an input has one weight,
    and the wide part sums up the weights.

    The inputs are float32 [batch, 13], int64 [batch, 26] and int64 [batch, 8]. The integers are
    indices of table rows, and below `rows`.
    """
    dense = net.input("dense", (batch, DENSE))
    embedded = _embeddings(net, "categories", batch, rows, TABLES, 32)
    x = net.concat([dense, *embedded], "deep/input")
    for i, width in enumerate((1024, 512, 256)):
        x = net.relu(net.linear(x, f"deep/{i}", width), f"deep/{i}/relu")
    deep = net.linear(x, "deep/logit", 1)
    wide = net.add(_embeddings(net, "crossed", batch, rows, _CROSSED, 1), "wide")
    logit = net.add([wide, deep], "logit")
    net.output(net.op("Sigmoid", [logit], "sigmoid", (batch, 1), 0.25), "probability")


def dlrm(net: OnnxNet, batch: int, rows: int) -> None:
    """DLRM: 26 embeddings of width 64, a bottom MLP (512, 256, 64) and a top MLP (512, 256, 1).

    The top MLP reads the output of the bottom MLP, and also dot products: one for each pair among
    this output and the embeddings (section 2.2).

    The inputs are float32 [batch, 13] and int64 [batch, 26]. The integers are indices of table
    rows, and below `rows`.
    """
    width = 64
    x = net.input("dense", (batch, DENSE))
    for i, features in enumerate((512, 256, width)):
        x = net.relu(net.linear(x, f"bottom/{i}", features), f"bottom/{i}/relu")
    vectors = [x, *_embeddings(net, "categories", batch, rows, TABLES, width)]
    count = len(vectors)
    shape = net.constant("interaction/shape", np.array([batch, count, width], np.int64))
    side = net.concat(vectors, "interaction")
    left = net.op("Reshape", [side, shape], "interaction/vectors", (batch, count, width))
    axes = (batch, width, count)
    right = net.op("Transpose", [left], "interaction/transposed", axes, perm=(0, 2, 1))
    square = (batch, count, count)
    products = net.op("MatMul", [left, right], "interaction/matmul", square, 1.0)
    flat = net.op("Flatten", [products], "interaction/flat", (batch, count * count))
    below = np.ravel_multi_index(np.tril_indices(count, -1), (count, count)).astype(np.int64)
    which = net.constant("interaction/which", below)
    pairs = net.op("Gather", [flat, which], "interaction/pairs", (batch, below.size), axis=1)
    x = net.concat([x, pairs], "top/input")
    for i, features in enumerate((512, 256)):
        x = net.relu(net.linear(x, f"top/{i}", features), f"top/{i}/relu")
    logit = net.linear(x, "top/logit", 1)
    net.output(net.op("Sigmoid", [logit], "sigmoid", (batch, 1), 0.25), "probability")


def _embeddings(
    net: OnnxNet, name: str, batch: int, rows: int, tables: int, width: int
) -> list[str]:
    """Look up each column of input `name` in its own table. Each result has the shape [batch,
    width].
    """
    ids = net.input(name, (batch, tables), TensorProto.INT64)
    found = []
    for i in range(tables):
        column = net.constant(f"{name}/{i}/column", np.array(i, np.int64))
        row = net.op("Gather", [ids, column], f"{name}/{i}/id", (batch,), axis=1)
        # The standard deviation is chosen so that the dot product of two rows has a variance of 1.
        table = net.weight(f"{name}/{i}.weight", (rows, width), width**-0.25)
        power = width**-0.5
        found.append(net.op("Gather", [table, row], f"{name}/{i}", (batch, width), power))
    return found
