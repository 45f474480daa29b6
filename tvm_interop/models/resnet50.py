"""ResNet-50 (He et al., 2016)."""

from __future__ import annotations

from .onnx_net import OnnxNet

_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""For each stage, the number of bottlenecks, and the number of channels inside a bottleneck. A
bottleneck's input and output have four times as many channels."""

_RESIDUAL_GAIN = 0.5
"""Scale of a bottleneck's last convolution. With a scale of 1, each bottleneck would double the
variance of the activations."""


def resnet50(net: OnnxNet, batch: int, image_size: int) -> None:
    """ResNet-50 for images of 3x224x224 by default.

    The network is version 1 of ResNet: the first 1x1 convolution of a stage has the stage's stride.
    """
    x = net.input("image", (batch, 3, image_size, image_size))
    x = net.conv(x, "conv1", 64, 7, stride=2)
    x = net.max_pool(x, "pool1", 3, stride=2, pad=1)
    for i, (bottlenecks, channels) in enumerate(_STAGES):
        for j in range(bottlenecks):
            stride = 2 if i > 0 and j == 0 else 1
            x = _bottleneck(net, x, f"conv{i + 2}_{j + 1}", channels, stride)
    net.output(net.classifier(x, "head"), "logits")


def _bottleneck(net: OnnxNet, x: str, name: str, channels: int, stride: int) -> str:
    skip = x
    if net.shape(x)[1] != 4 * channels:
        skip = net.conv(x, f"{name}/skip", 4 * channels, stride=stride, act=False)
    y = net.conv(x, f"{name}/conv_1", channels, stride=stride)
    y = net.conv(y, f"{name}/conv_2", channels, 3)
    y = net.conv(y, f"{name}/conv_3", 4 * channels, act=False, gain=_RESIDUAL_GAIN)
    return net.relu(net.add([y, skip], name), f"{name}/relu")
