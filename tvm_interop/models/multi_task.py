"""Networks for several tasks: heads on a shared trunk (Caruana, 1997), and gated experts (Ma et
al., 2018).

The two papers do not give the widths of the layers, which depend on the data set. The widths here
are the defaults of common implementations, or close to them.
"""

from __future__ import annotations

import numpy as np

from .onnx_net import OnnxNet

HEADS = 16
EXPERTS = 8
TASKS = 4


def task_heads(net: OnnxNet, batch: int, features: int) -> None:
    """A shared trunk of widths 512 and 256, and 16 heads of widths 128 and 64 with one output each.

    The input is float32 of shape [batch, features], with 512 features by default. The output has
    shape [batch, 16].
    """
    x = net.input("features", (batch, features))
    for i, width in enumerate((512, 256)):
        x = _dense(net, x, f"trunk/{i}", width)
    heads = []
    for head in range(HEADS):
        y = _dense(net, x, f"head_{head}/0", 128)
        y = _dense(net, y, f"head_{head}/1", 64)
        heads.append(net.linear(y, f"head_{head}/output", 1))
    net.output(net.concat(heads, "tasks"), "predictions")


def mixture_of_experts(net: OnnxNet, batch: int, features: int) -> None:
    """Multi-gate mixture of experts: 8 experts of widths 256 and 128, 4 tasks with a gate each.

    A task's gate computes one weight for each expert from the input, by a softmax (section 4.2).
    The weighted sum of the experts goes through a layer of width 64. The input is float32 of shape
    [batch, features], with 512 features by default. The output has shape [batch, 4].
    """
    x = net.input("features", (batch, features))
    width = 128
    experts = []
    for expert in range(EXPERTS):
        y = _dense(net, x, f"expert_{expert}/0", 256)
        experts.append(_dense(net, y, f"expert_{expert}/1", width))
    shape = net.constant("experts/shape", np.array([batch, EXPERTS, width], np.int64))
    side = net.concat(experts, "experts")
    stacked = net.op("Reshape", [side, shape], "experts/stacked", (batch, EXPERTS, width))
    row = net.constant("gate/shape", np.array([batch, 1, EXPERTS], np.int64))
    tasks = []
    for task in range(TASKS):
        gate = net.linear(x, f"task_{task}/gate", EXPERTS)
        gate = net.op("Softmax", [gate], f"task_{task}/softmax", (batch, EXPERTS), 0.03, axis=-1)
        gate = net.op("Reshape", [gate, row], f"task_{task}/row", (batch, 1, EXPERTS))
        mixed = net.op("MatMul", [gate, stacked], f"task_{task}/mix", (batch, 1, width), 0.2)
        flat = net.op("Flatten", [mixed], f"task_{task}/flat", (batch, width))
        y = _dense(net, flat, f"task_{task}/tower", 64)
        tasks.append(net.linear(y, f"task_{task}/output", 1))
    net.output(net.concat(tasks, "tasks"), "predictions")


def _dense(net: OnnxNet, x: str, name: str, width: int) -> str:
    return net.relu(net.linear(x, name, width), f"{name}/relu")
