"""Exports networks with open dimensions: `python -m benchmarks.open_export FOLDER [NAME ...]`.

The weights are random, so nothing is downloaded. For each network the script writes `NAME.onnx`,
and `NAME.json` with the range of each open dimension and the inputs. `benchmarks.ranges` measures
these files. The extra `zoo` of this package installs the needed packages.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from .zoo_export import _EAGER, _SMALL_BERT, torchvision_net
from .zoo_images import U2NetP, YoloV8
from .zoo_networks import Crnn, Dlrm, keep_variance, mlp


class Masked(nn.Module):
    """A BERT that takes tokens and a mask."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.network = BertModel(BertConfig(**options, **_EAGER))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.network(input_ids=tokens, attention_mask=mask).last_hidden_state


class Din(nn.Module):
    """Deep interest network (Zhou et al., 2018): weighs past items by how they fit a new item."""

    def __init__(self, items: int = 1000, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(items, width)
        self.weigh = nn.Sequential(mlp(4 * width, 80, 40), nn.Linear(40, 1))
        self.judge = nn.Sequential(mlp(2 * width, 200, 80), nn.Linear(80, 1), nn.Sigmoid())

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        past, new = self.embedding(history), self.embedding(item)
        beside = new.unsqueeze(1).expand_as(past)
        weights = self.weigh(torch.cat([past, beside, past - beside, past * beside], -1))
        interest = (torch.softmax(weights, 1) * past).sum(1)
        return self.judge(torch.cat([interest, new], -1))


class AnySizeYolo(YoloV8):
    """YOLOv8n for images of any height and width that are multiples of 32."""

    def forward(self, x: Tensor) -> Tensor:
        centres, strides = [], []
        for stride in self.STRIDES:
            rows = (torch.arange(x.shape[2] // stride) + 0.5) * stride
            columns = (torch.arange(x.shape[3] // stride) + 0.5) * stride
            below, beside = torch.meshgrid(rows, columns, indexing="ij")
            centres.append(torch.stack([beside.flatten(), below.flatten()]))
            strides.append(torch.full_like(beside.flatten(), float(stride)))
        self.centres, self.strides = torch.cat(centres, 1), torch.cat(strides)
        return super().forward(x)


@dataclass(frozen=True)
class Input:
    """An input of a network.

    Attributes
    ----------
    shape: its shape. A string is the name of an open dimension.
    below: random integers are at least `lowest` and less than this number. None for an input of
        normally distributed floats.
    lowest: the smallest integer that is drawn.
    """

    shape: tuple[int | str, ...]
    below: int | None = None
    lowest: int = 0

    def draw(self, sizes: Mapping[str, int]) -> Tensor:
        shape = [sizes[size] if isinstance(size, str) else size for size in self.shape]
        return (
            torch.randn(shape)
            if self.below is None
            else torch.randint(self.lowest, self.below, shape)
        )


@dataclass(frozen=True)
class OpenNetwork:
    """A network with open dimensions.

    Attributes
    ----------
    make: makes the network.
    inputs: its inputs, by name.
    ranges: the smallest and the largest size of each open dimension.
    multiples: if the sizes of an open dimension must be multiples of a number, such as 32, that
        number.
    """

    make: Callable[[], nn.Module]
    inputs: Mapping[str, Input]
    ranges: Mapping[str, tuple[int, int]]
    multiples: Mapping[str, int] = field(default_factory=dict)

    def some_size(self, dimension: str) -> int:
        """A size in the lower half of the range, but not the smallest if that is 1."""
        low, high = self.ranges[dimension]
        step = self.multiples.get(dimension, 1)
        return max(low, 2, (low + high) // 3 // step * step)


_BERT_INPUTS = {"tokens": Input((1, "seq"), 1000), "mask": Input((1, "seq"), 2, 1)}

NETWORKS: dict[str, OpenNetwork] = {
    "bert_small": OpenNetwork(lambda: Masked(**_SMALL_BERT), _BERT_INPUTS, {"seq": (1, 512)}),
    "bert_base": OpenNetwork(Masked, _BERT_INPUTS, {"seq": (1, 512)}),
    "crnn": OpenNetwork(
        lambda: keep_variance(Crnn()), {"image": Input((1, 1, 32, "width"))}, {"width": (32, 1024)}
    ),
    "segmenter": OpenNetwork(
        lambda: keep_variance(U2NetP()),
        {"image": Input((1, 3, "height", "width"))},
        {"height": (64, 512), "width": (64, 512)},
    ),
    "vit": OpenNetwork(
        lambda: torchvision_net("vit_b_16")(1)[0],
        {"image": Input(("batch", 3, 224, 224))},
        {"batch": (1, 32)},
    ),
    "dlrm": OpenNetwork(
        Dlrm,
        {"dense": Input(("batch", 13)), "ids": Input(("batch", 26), 1000)},
        {"batch": (1, 256)},
    ),
    "din": OpenNetwork(
        Din,
        {"history": Input(("batch", 20), 1000), "item": Input(("batch",), 1000)},
        {"batch": (1, 256)},
    ),
    "detector": OpenNetwork(
        lambda: keep_variance(AnySizeYolo()),
        {"image": Input((1, 3, "height", "width"))},
        {"height": (320, 640), "width": (320, 640)},
        {"height": 32, "width": 32},
    ),
}


def export(name: str, folder: Path) -> None:
    """Export one network, and write it as `.onnx`, and its open dimensions as `.json`."""
    opened = NETWORKS[name]
    torch.manual_seed(0)
    network = opened.make().eval()
    example = {dimension: opened.some_size(dimension) for dimension in opened.ranges}
    with torch.no_grad():
        torch.onnx.export(
            network,
            tuple(x.draw(example) for x in opened.inputs.values()),
            folder / f"{name}.onnx",
            dynamo=False,
            opset_version=17,
            input_names=list(opened.inputs),
            dynamic_axes={
                n: {axis: s for axis, s in enumerate(x.shape) if isinstance(s, str)}
                for n, x in opened.inputs.items()
            },
        )
    told = {
        "inputs": {n: [x.shape, x.lowest, x.below] for n, x in opened.inputs.items()},
        "ranges": opened.ranges,
        "multiples": opened.multiples,
    }
    (folder / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="*", metavar="NAME", choices=[[], *NETWORKS])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    # ONNX has no operator for the fast path of attention.
    torch.backends.mha.set_fastpath_enabled(False)
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("left out"))
    logging.disable(logging.WARNING)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.networks or NETWORKS:
        if not (arguments.folder / f"{name}.json").exists():
            export(name, arguments.folder)
            print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
