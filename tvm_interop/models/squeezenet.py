"""SqueezeNet with complex bypass (Iandola et al., 2016), as in the papers on IOS and LIOS."""

from __future__ import annotations

from .onnx_net import OnnxNet

_FIRES = {
    # The squeeze channels and the expand channels of each fire module.
    "fire2": (16, 64),
    "fire3": (16, 64),
    "fire4": (32, 128),
    "fire5": (32, 128),
    "fire6": (48, 192),
    "fire7": (48, 192),
    "fire8": (64, 256),
    "fire9": (64, 256),
}


def squeezenet(net: OnnxNet, batch: int, image_size: int) -> None:
    """SqueezeNet for images of 3x224x224 by default; a bypass around every fire module.

    The first convolution is 7x7 with 96 channels, and is padded. The bypass is a 1x1 convolution
    where a fire module changes the number of channels. The logits are the pooled output of the last
    convolution: there is no fully connected layer.
    """
    x = net.input("image", (batch, 3, image_size, image_size))
    x = net.conv(x, "conv1", 96, 7, stride=2)
    x = net.max_pool(x, "pool1", 3, stride=2)
    for fire, (squeeze, expand) in _FIRES.items():
        x = _fire(net, x, fire, squeeze, expand)
        if fire in ("fire4", "fire8"):
            x = net.max_pool(x, f"pool{fire[-1]}", 3, stride=2)
    x = net.conv(x, "conv10", 1000, gain=3.0)
    net.output(net.classifier(x, "head", classes=None), "logits")


def _fire(net: OnnxNet, x: str, fire: str, squeeze: int, expand: int) -> str:
    squeezed = net.conv(x, f"{fire}/squeeze1x1", squeeze)
    expanded = net.concat(
        [
            net.conv(squeezed, f"{fire}/expand1x1", expand),
            net.conv(squeezed, f"{fire}/expand3x3", expand, 3),
        ],
        f"{fire}/expand",
    )
    changes = net.shape(x)[1] != 2 * expand
    bypass = net.conv(x, f"{fire}/bypass", 2 * expand) if changes else x
    return net.add([expanded, bypass], fire)
