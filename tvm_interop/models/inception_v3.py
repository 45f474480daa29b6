"""Inception-V3 (Szegedy et al., 2016), as measured in the papers on IOS and LIOS."""

from __future__ import annotations

from .onnx_net import OnnxNet


def inception_v3(net: OnnxNet, batch: int, image_size: int) -> None:
    """Inception-V3 for 3x299x299 by default; no auxiliary classifier; batch norms are folded.

    Blocks have their usual names, `mixed_5b` to `mixed_7c`. Each of the last two blocks has one
    concat of six inputs. Other versions have nested concats instead.
    """
    x = net.input("image", (batch, 3, image_size, image_size))
    x = net.conv(x, "conv_1a", 32, 3, stride=2, pad=0)
    x = net.conv(x, "conv_2a", 32, 3, pad=0)
    x = net.conv(x, "conv_2b", 64, 3)
    x = net.max_pool(x, "pool_3a", 3, stride=2)
    x = net.conv(x, "conv_3b", 80, pad=0)
    x = net.conv(x, "conv_4a", 192, 3, pad=0)
    x = net.max_pool(x, "pool_5a", 3, stride=2)
    for block, pool_channels in (("mixed_5b", 32), ("mixed_5c", 64), ("mixed_5d", 64)):
        x = _block_a(net, x, block, pool_channels)
    x = _block_b(net, x, "mixed_6a")
    for block, channels in (
        ("mixed_6b", 128),
        ("mixed_6c", 160),
        ("mixed_6d", 160),
        ("mixed_6e", 192),
    ):
        x = _block_c(net, x, block, channels)
    x = _block_d(net, x, "mixed_7a")
    for block in ("mixed_7b", "mixed_7c"):
        x = _block_e(net, x, block)
    net.output(net.classifier(x, "head"), "logits")


def _block_a(net: OnnxNet, x: str, block: str, pool_channels: int) -> str:
    one = net.conv(x, f"{block}/branch1x1", 64)
    five = net.conv(x, f"{block}/branch5x5_1", 48)
    five = net.conv(five, f"{block}/branch5x5_2", 64, 5)
    double = net.conv(x, f"{block}/branch3x3dbl_1", 64)
    double = net.conv(double, f"{block}/branch3x3dbl_2", 96, 3)
    double = net.conv(double, f"{block}/branch3x3dbl_3", 96, 3)
    pool = _pool_branch(net, x, block, pool_channels)
    return net.concat([one, five, double, pool], block)


def _block_b(net: OnnxNet, x: str, block: str) -> str:
    three = net.conv(x, f"{block}/branch3x3", 384, 3, stride=2, pad=0)
    double = net.conv(x, f"{block}/branch3x3dbl_1", 64)
    double = net.conv(double, f"{block}/branch3x3dbl_2", 96, 3)
    double = net.conv(double, f"{block}/branch3x3dbl_3", 96, 3, stride=2, pad=0)
    pool = net.max_pool(x, f"{block}/branch_pool", 3, stride=2)
    return net.concat([three, double, pool], block)


def _block_c(net: OnnxNet, x: str, block: str, channels: int) -> str:
    one = net.conv(x, f"{block}/branch1x1", 192)
    seven = net.conv(x, f"{block}/branch7x7_1", channels)
    seven = net.conv(seven, f"{block}/branch7x7_2", channels, (1, 7))
    seven = net.conv(seven, f"{block}/branch7x7_3", 192, (7, 1))
    double = net.conv(x, f"{block}/branch7x7dbl_1", channels)
    double = net.conv(double, f"{block}/branch7x7dbl_2", channels, (7, 1))
    double = net.conv(double, f"{block}/branch7x7dbl_3", channels, (1, 7))
    double = net.conv(double, f"{block}/branch7x7dbl_4", channels, (7, 1))
    double = net.conv(double, f"{block}/branch7x7dbl_5", 192, (1, 7))
    pool = _pool_branch(net, x, block, 192)
    return net.concat([one, seven, double, pool], block)


def _block_d(net: OnnxNet, x: str, block: str) -> str:
    three = net.conv(x, f"{block}/branch3x3_1", 192)
    three = net.conv(three, f"{block}/branch3x3_2", 320, 3, stride=2, pad=0)
    seven = net.conv(x, f"{block}/branch7x7x3_1", 192)
    seven = net.conv(seven, f"{block}/branch7x7x3_2", 192, (1, 7))
    seven = net.conv(seven, f"{block}/branch7x7x3_3", 192, (7, 1))
    seven = net.conv(seven, f"{block}/branch7x7x3_4", 192, 3, stride=2, pad=0)
    pool = net.max_pool(x, f"{block}/branch_pool", 3, stride=2)
    return net.concat([three, seven, pool], block)


def _block_e(net: OnnxNet, x: str, block: str) -> str:
    one = net.conv(x, f"{block}/branch1x1", 320)
    three = net.conv(x, f"{block}/branch3x3_1", 384)
    threes = [
        net.conv(three, f"{block}/branch3x3_2a", 384, (1, 3)),
        net.conv(three, f"{block}/branch3x3_2b", 384, (3, 1)),
    ]
    double = net.conv(x, f"{block}/branch3x3dbl_1", 448)
    double = net.conv(double, f"{block}/branch3x3dbl_2", 384, 3)
    doubles = [
        net.conv(double, f"{block}/branch3x3dbl_3a", 384, (1, 3)),
        net.conv(double, f"{block}/branch3x3dbl_3b", 384, (3, 1)),
    ]
    pool = _pool_branch(net, x, block, 192)
    return net.concat([one, *threes, *doubles, pool], block)


def _pool_branch(net: OnnxNet, x: str, block: str, channels: int) -> str:
    pooled = net.avg_pool(x, f"{block}/branch_pool_1", 3, stride=1, pad=1)
    return net.conv(pooled, f"{block}/branch_pool_2", channels)
