"""NASNet-A large (Zoph et al., 2018), as measured in the papers on IOS and LIOS."""

from __future__ import annotations

from .onnx_net import OnnxNet

_STEM_CHANNELS = 96
_FILTERS = 168
_NORMAL_CELLS = 5
"""The network has three parts. This is the number of normal cells after the first cell of a
part.
"""


def nasnet_a(net: OnnxNet, batch: int, image_size: int) -> None:
    """NASNet-A (6 @ 4032) for 3x331x331: two stem cells, three times six cells, two reductions.

    Some details follow the network that IOS measures. A normal cell concatenates its five sums, but
    not its input (840, 1680 and 3360 channels). Two strided 1x1 convolutions side by side halve the
    resolution of a skipped input. A reduction cell needs its second sum for its fourth sum and for
    its concat, and computes it once for each.
    """
    x = net.input("image", (batch, 3, image_size, image_size))
    stem = net.conv(x, "stem/conv", _STEM_CHANNELS, 3, stride=2, pad=0, act=False)
    before = _stem_0(net, stem, "stem_0", _FILTERS // 4)
    x = _stem_1(net, before, stem, "stem_1", _FILTERS // 2)
    cells = 0
    for part in range(3):
        filters = _FILTERS << part
        if part:
            # The first cell after the reduction takes as its second input the tensor `before`,
            # which the reduction reads too. It does not take the reduction's input `x`.
            x = _reduction(net, x, before, f"reduction_{part - 1}", filters)
        name = f"cell_{cells}"
        x, before = _first(net, x, before, name, filters), x
        for i in range(1, _NORMAL_CELLS + 1):
            x, before = _normal(net, x, before, f"cell_{cells + i}", filters), x
        cells += 1 + _NORMAL_CELLS
    x = net.relu(x, "head/relu")
    net.output(net.classifier(x, "head"), "logits")


def _stem_0(net: OnnxNet, x: str, cell: str, filters: int) -> str:
    left = net.relu_conv(x, f"{cell}/left", filters)
    return _reduce(net, left, x, cell, filters, stem=True)


def _stem_1(net: OnnxNet, before: str, x: str, cell: str, filters: int) -> str:
    left = net.relu_conv(before, f"{cell}/left", filters)
    right = _halved(net, x, f"{cell}/right", filters)
    return _reduce(net, left, right, cell, filters)


def _reduction(net: OnnxNet, x: str, before: str, cell: str, filters: int) -> str:
    left = net.relu_conv(before, f"{cell}/left", filters)
    right = net.relu_conv(x, f"{cell}/right", filters)
    return _reduce(net, right, left, cell, filters, sums_twice=True)


def _reduce(
    net: OnnxNet,
    pooled: str,
    other: str,
    cell: str,
    filters: int,
    *,
    stem: bool = False,
    sums_twice: bool = False,
) -> str:
    """The common part of stem and reduction cells: five sums at half the resolution.

    Parameters
    ----------
    pooled: the input that the poolings read.
    other: the input that only separable convolutions read. These convolutions come in pairs, one
        convolution behind the other. In the first stem cell, `other` does not have `filters`
        channels, so the first convolution of each pair must change the number of channels to
        `filters`.
    """

    def separable(x: str, name: str, kernel: int, stride: int, *, widen: bool = False) -> str:
        return _separable(net, x, f"{cell}/{name}", filters, kernel, stride, widen_first=widen)

    sum_0 = net.add(
        [
            separable(pooled, "comb_0_left", 5, 2),
            separable(other, "comb_0_right", 7, 2, widen=stem),
        ],
        f"{cell}/comb_0",
    )
    comb_1 = [
        net.max_pool(pooled, f"{cell}/comb_1_left", 3, 2, 1),
        separable(other, "comb_1_right", 7, 2, widen=stem),
    ]
    sum_1 = net.add(comb_1, f"{cell}/comb_1")
    sum_2 = net.add(
        [
            net.avg_pool(pooled, f"{cell}/comb_2_left", 3, 2, 1),
            separable(other, "comb_2_right", 5, 2, widen=stem),
        ],
        f"{cell}/comb_2",
    )
    pooled_0 = net.avg_pool(sum_0, f"{cell}/comb_3_right", 3, 1, 1)
    sum_3 = net.add([pooled_0, sum_1], f"{cell}/comb_3")
    sum_4 = net.add(
        [
            separable(sum_0, "comb_4_left", 3, 1),
            net.max_pool(pooled, f"{cell}/comb_4_right", 3, 2, 1),
        ],
        f"{cell}/comb_4",
    )
    kept = net.add(comb_1, f"{cell}/comb_1_again") if sums_twice else sum_1
    return net.concat([kept, sum_2, sum_3, sum_4], cell)


def _first(net: OnnxNet, x: str, before: str, cell: str, filters: int) -> str:
    left = _halved(net, before, f"{cell}/left", filters)
    right = net.relu_conv(x, f"{cell}/right", filters)
    return net.concat([left, *_five_sums(net, left, right, cell, filters)], cell)


def _normal(net: OnnxNet, x: str, before: str, cell: str, filters: int) -> str:
    left = net.relu_conv(before, f"{cell}/left", filters)
    right = net.relu_conv(x, f"{cell}/right", filters)
    return net.concat(_five_sums(net, left, right, cell, filters), cell)


def _five_sums(net: OnnxNet, left: str, right: str, cell: str, filters: int) -> list[str]:
    def separable(x: str, name: str, kernel: int) -> str:
        return _separable(net, x, f"{cell}/{name}", filters, kernel, 1)

    def averaged(x: str, name: str) -> str:
        return net.avg_pool(x, f"{cell}/{name}", 3, 1, 1)

    pairs = [
        [separable(right, "comb_0_left", 5), separable(left, "comb_0_right", 3)],
        [separable(left, "comb_1_left", 5), separable(left, "comb_1_right", 3)],
        [averaged(right, "comb_2_left"), left],
        [averaged(left, "comb_3_left"), averaged(left, "comb_3_right")],
        [separable(right, "comb_4_left", 3), right],
    ]
    return [net.add(pair, f"{cell}/comb_{i}") for i, pair in enumerate(pairs)]


def _separable(
    net: OnnxNet,
    x: str,
    name: str,
    filters: int,
    kernel: int,
    stride: int,
    *,
    widen_first: bool = False,
) -> str:
    """Two ReLU-SepConvs, the second with `filters` output channels.

    If `widen_first` is set, the first convolution has `filters` output channels too. Otherwise it
    has as many output channels as input channels.
    """
    between = filters if widen_first else net.shape(x)[1]
    x = net.relu_sep_conv(x, f"{name}/sep_1", between, kernel, stride)
    return net.relu_sep_conv(x, f"{name}/sep_2", filters, kernel)


def _halved(net: OnnxNet, x: str, name: str, filters: int) -> str:
    """Two strided 1x1 convolutions side by side, with `filters` channels together."""
    paths = [net.relu_conv(x, f"{name}/path_{i}", filters // 2, stride=2) for i in (1, 2)]
    return net.concat(paths, name)
