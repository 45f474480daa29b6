"""Lists the networks, and makes a network by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from ..errors import InputError, UnsupportedModelError, did_you_mean
from .bert import bert_base
from .googlenet import googlenet
from .inception_v3 import inception_v3
from .multi_task import mixture_of_experts, task_heads
from .nasnet_a import nasnet_a
from .onnx_net import OnnxNet
from .randwire import randwire
from .recommenders import dlrm, wide_deep
from .resnet50 import resnet50
from .squeezenet import squeezenet
from .t5 import t5_encoder


@dataclass(frozen=True)
class _Network:
    """A network: the function that builds it, and its default, smallest and largest size."""

    write: Callable[[OnnxNet, int, int], None]
    size: int
    smallest: int = 1
    largest: int | None = None


_NETWORKS = {
    "inception_v3": _Network(inception_v3, 299, smallest=75),
    "randwire": _Network(randwire, 224),
    "nasnet_a": _Network(nasnet_a, 331, smallest=3),
    "squeezenet": _Network(squeezenet, 224, smallest=29),
    "resnet50": _Network(resnet50, 224),
    "googlenet": _Network(googlenet, 224),
    "bert_base": _Network(bert_base, 128, largest=512),
    "t5_encoder": _Network(t5_encoder, 128),
    "wide_deep": _Network(wide_deep, 1000),
    "dlrm": _Network(dlrm, 1000),
    "task_heads": _Network(task_heads, 512),
    "mixture_of_experts": _Network(mixture_of_experts, 512),
}


def names() -> list[str]:
    """The names of all networks."""
    return [*_NETWORKS]


def build(
    name: str, batch: int = 1, image_size: int | None = None, seed: int = 0
) -> onnx.ModelProto:
    """The network `name` as an ONNX model with random weights. Equal seeds give equal models.

    Weights are scaled so that activations keep a variance of about 1 and the output depends on the
    input. Batch norms are folded into the weights. Images are float32 [batch, 3, size, size].

    Parameters
    ----------
    name: one of `names()`.
    batch: number of images or sequences in a batch.
    image_size: size of the input. For images it is the number of pixels along each side, and for
        sequences the number of tokens. For other networks it is the number of rows in each table of
        embeddings, or the number of features. None takes the size with which the network was
        published, or a usual size. The structure of the network is the same at any size.
    seed: seed of the weights. The weights do not depend on `batch` and `image_size`.

    Raises
    ------
    UnsupportedModelError: there is no network of that name; the message lists all names.
    InputError: the batch or the size is out of range.

    Examples
    --------
    >>> build("squeezenet", image_size=64).graph.output[0].name
    'logits'
    """
    return _written(name, batch, image_size, seed)


def skeleton(name: str, batch: int = 1, image_size: int | None = None) -> onnx.ModelProto:
    """The network `name` with weights that have shapes but no values.

    A model without values of weights is made quickly. Its operators and weights can be counted and
    displayed, but it cannot run. Parameters and errors are as for `build`.
    """
    return _written(name, batch, image_size, None)


def _written(name: str, batch: int, image_size: int | None, seed: int | None) -> onnx.ModelProto:
    network = _find(name)
    size = network.size if image_size is None else image_size
    if batch < 1:
        raise InputError(f"`batch` must be at least 1, got {batch}")
    if size < network.smallest or size > (network.largest or size):
        largest = f" and at most {network.largest}" if network.largest else ""
        raise InputError(
            f"`{name}` takes an image_size of at least {network.smallest}{largest}, got {size}"
        )
    net = OnnxNet(name, seed)
    network.write(net, batch, size)
    return net.model()


def _find(name: str) -> _Network:
    if name not in _NETWORKS:
        raise UnsupportedModelError(
            f"there is no network `{name}`{did_you_mean(name, names())}: there are "
            f"{', '.join(names())}"
        )
    return _NETWORKS[name]
