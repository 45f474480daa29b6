"""GoogLeNet (Szegedy et al., 2015)."""

from __future__ import annotations

from .onnx_net import OnnxNet

_BLOCKS = {
    # Output channels of the six convolutions of each block: the 1x1 branch; the reduction and the
    # 3x3 convolution of the second branch; the reduction and the 5x5 convolution of the third
    # branch; the projection after the pooling.
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(net: OnnxNet, batch: int, image_size: int) -> None:
    """GoogLeNet for images of 3x224x224 by default; no auxiliary classifiers.

    Batch norms replace the local response normalisation of 2015, as is usual today. They are
    already folded. The 5x5 convolutions have 5x5 kernels, as published.
    """
    x = net.input("image", (batch, 3, image_size, image_size))
    x = net.conv(x, "conv1", 64, 7, stride=2)
    x = net.max_pool_ceil(x, "pool1", 3, stride=2)
    x = net.conv(x, "conv2", 64)
    x = net.conv(x, "conv3", 192, 3)
    x = net.max_pool_ceil(x, "pool3", 3, stride=2)
    for name, channels in _BLOCKS.items():
        x = _inception(net, x, f"inception_{name}", channels)
        if name in ("3b", "4e"):
            x = net.max_pool_ceil(x, f"pool{name}", 3, stride=2)
    net.output(net.classifier(x, "head"), "logits")


def _inception(net: OnnxNet, x: str, block: str, channels: tuple[int, ...]) -> str:
    one, before_three, three, before_five, five, pooled = channels
    branches = [net.conv(x, f"{block}/1x1", one)]
    y = net.conv(x, f"{block}/3x3_reduce", before_three)
    branches.append(net.conv(y, f"{block}/3x3", three, 3))
    y = net.conv(x, f"{block}/5x5_reduce", before_five)
    branches.append(net.conv(y, f"{block}/5x5", five, 5))
    y = net.max_pool(x, f"{block}/branch_pool", 3, stride=1, pad=1)
    branches.append(net.conv(y, f"{block}/pool_proj", pooled))
    return net.concat(branches, block)
