"""Exports well-known public networks to ONNX: `python -m benchmarks.zoo_export FOLDER`.

The weights are random, so nothing is downloaded. For each network three files are written:
`NAME.onnx`, `NAME.pt2` (the program of `torch.export`) and `NAME.npz` (the inputs, in the order of
the graph). For a batch size other than 1 the name ends in `_bN`. Networks whose files exist are
skipped.

The networks come from torchvision, timm and transformers, as their authors wrote them. Only three
recommenders, an LSTM and a U-Net are written here. The extra `zoo` of this package installs what is
needed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import types
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Maker = Callable[[int], tuple[nn.Module, Inputs]]
"""Makes a network and its inputs for a batch size."""


class FirstOutput(nn.Module):
    """A network of the package `transformers` that returns only its main output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.network(*inputs)
        return found.last_hidden_state if hasattr(found, "last_hidden_state") else found.logits


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of the given widths, each with a ReLU after it."""
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """DLRM (Naumov et al., 2019): dot products of all pairs of embeddings and a dense part."""

    def __init__(self, tables: int = 26, width: int = 32) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(1000, width) for _ in range(tables))
        self.bottom = mlp(13, 512, 256, width)
        pairs = (tables + 1) ** 2
        self.top = nn.Sequential(mlp(pairs + width, 512, 256), nn.Linear(256, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = [table(ids[:, i]) for i, table in enumerate(self.embeddings)]
        stacked = torch.stack([bottom, *rows], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, products], 1))


class Mmoe(nn.Module):
    """Multi-gate mixture of experts (Ma et al., KDD 2018)."""

    def __init__(self, experts: int = 8, tasks: int = 4) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(512, 256, 128) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(512, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(mlp(128, 64), nn.Linear(64, 1)) for _ in range(tasks)
        )

    def forward(self, x: Tensor) -> Tensor:
        found = torch.stack([expert(x) for expert in self.experts], 1)
        mixed = [(torch.softmax(gate(x), -1).unsqueeze(-1) * found).sum(1) for gate in self.gates]
        return torch.cat([tower(y) for tower, y in zip(self.towers, mixed, strict=True)], 1)


class WideAndDeep(nn.Module):
    """Wide & Deep (Cheng et al., 2016): a linear model beside an MLP over embeddings."""

    def __init__(self, fields: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(500, width) for _ in range(fields))
        self.wide = nn.Linear(64, 1)
        self.deep = nn.Sequential(mlp(fields * width + 64, 1024, 512, 256), nn.Linear(256, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        rows = [table(ids[:, i]) for i, table in enumerate(self.embeddings)]
        return torch.sigmoid(self.wide(dense) + self.deep(torch.cat([*rows, dense], 1)))


class BiLstm(nn.Module):
    """Two layers of LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, 2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015) with three levels and group normalisation."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
                nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
            )  # fmt: skip

        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.middle = block(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths))
        self.after = nn.ModuleList(block(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, block in zip(self.up, self.after, strict=True):
            x = block(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


def image(side: int = 224) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, 3, side, side),)


def tokens(length: int, vocabulary: int = 1000) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randint(0, vocabulary, (batch, length)),)


def torchvision_net(
    name: str, inputs: Callable[[int], Inputs] | None = None, **options: Any
) -> Maker:
    def make(batch: int) -> tuple[nn.Module, Inputs]:
        import torchvision

        return getattr(torchvision.models, name)(**options), (inputs or image())(batch)

    return make


def timm_net(name: str, inputs: Callable[[int], Inputs] | None = None) -> Maker:
    def make(batch: int) -> tuple[nn.Module, Inputs]:
        import timm

        return timm.create_model(name), (inputs or image())(batch)

    return make


def transformer(model: str, config: str, inputs: Callable[[int], Inputs], **options: Any) -> Maker:
    def make(batch: int) -> tuple[nn.Module, Inputs]:
        import transformers

        network = getattr(transformers, model)(getattr(transformers, config)(**options))
        return FirstOutput(network), inputs(batch)

    return make


def own(network: Callable[[], nn.Module], inputs: Callable[[int], Inputs]) -> Maker:
    return lambda batch: (network(), inputs(batch))


_SMALL_BERT = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
_EAGER = {"attn_implementation": "eager"}

NETWORKS: dict[str, Maker] = {
    "tv_mobilenet_v2": torchvision_net("mobilenet_v2"),
    "tv_mobilenet_v3_small": torchvision_net("mobilenet_v3_small"),
    "tv_efficientnet_b0": torchvision_net("efficientnet_b0"),
    "tv_convnext_tiny": torchvision_net("convnext_tiny"),
    "tv_swin_t": torchvision_net("swin_t"),
    "tv_vit_b_16": torchvision_net("vit_b_16"),
    "tv_googlenet": torchvision_net("googlenet", init_weights=False, aux_logits=False),
    "tv_densenet121": torchvision_net("densenet121"),
    "tv_resnet50": torchvision_net("resnet50"),
    "timm_hrnet_w18_small": timm_net("hrnet_w18_small"),
    "timm_inception_v4": timm_net("inception_v4", image(299)),
    "timm_ghostnet": timm_net("ghostnet_100"),
    "timm_mixer_s16": timm_net("mixer_s16_224"),
    "timm_poolformer_s12": timm_net("poolformer_s12"),
    "hf_bert_small": transformer("BertModel", "BertConfig", tokens(64), **_SMALL_BERT, **_EAGER),
    "hf_bert_base": transformer("BertModel", "BertConfig", tokens(128), **_EAGER),
    "hf_gpt2_small": transformer(
        "GPT2Model", "GPT2Config", tokens(32),
        n_layer=4, n_embd=256, n_head=4, use_cache=False, **_EAGER,
    ),
    "hf_t5enc": transformer(
        "T5EncoderModel", "T5Config", tokens(64),
        num_layers=4, d_model=256, d_ff=1024, num_heads=4, d_kv=64,
    ),
    "my_dlrm": own(Dlrm, lambda b: (torch.randn(b, 13), torch.randint(0, 1000, (b, 26)))),
    "my_mmoe": own(Mmoe, lambda b: (torch.randn(b, 512),)),
    "my_mmoe_b32": own(Mmoe, lambda b: (torch.randn(32 * b, 512),)),
    "my_bilstm": own(BiLstm, lambda b: (torch.randn(b, 16, 64),)),
    # The networks from here on were not looked at while kernels were written.
    "tv_shufflenet_v2": torchvision_net("shufflenet_v2_x1_0"),
    "tv_regnet_y_400mf": torchvision_net("regnet_y_400mf"),
    "tv_mnasnet1_0": torchvision_net("mnasnet1_0"),
    "tv_resnext50": torchvision_net("resnext50_32x4d"),
    "timm_mobilevit_s": timm_net("mobilevit_s", image(256)),
    "timm_res2net50": timm_net("res2net50_26w_4s"),
    "timm_dla34": timm_net("dla34"),
    "timm_pvt_v2_b0": timm_net("pvt_v2_b0"),
    "hf_distilbert": transformer(
        "DistilBertModel", "DistilBertConfig", tokens(64), n_layers=3, **_EAGER,
    ),
    "hf_albert": transformer(
        "AlbertModel", "AlbertConfig", tokens(64),
        hidden_size=512, num_attention_heads=8, intermediate_size=2048, num_hidden_layers=6,
        **_EAGER,
    ),
    "hf_llama_small": transformer(
        "LlamaModel", "LlamaConfig", tokens(32),
        hidden_size=384, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=6,
        vocab_size=1000, use_cache=False, **_EAGER,
    ),
    "my_wide_deep": own(
        WideAndDeep, lambda b: (torch.randn(b, 64), torch.randint(0, 500, (b, 20))),
    ),
    "my_unet": own(UNet, lambda b: (torch.randn(b, 3, 128, 128),)),
}  # fmt: skip


def export(name: str, batch: int, folder: Path) -> None:
    """Export one network, and write its three files."""
    path = folder / (name if batch == 1 else f"{name}_b{batch}")
    torch.manual_seed(0)
    network, inputs = NETWORKS[name](batch)
    network.eval()
    with torch.no_grad():
        program = torch.export.export(network, inputs)
        torch.export.save(program, path.with_suffix(".pt2"))
        torch.onnx.export(
            network, inputs, path.with_suffix(".onnx"),
            dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
    # Write this file last: if it is there, all three files are.
    np.savez(path.with_suffix(".npz"), *[x.numpy() for x in inputs])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--batch", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.networks) - set(NETWORKS))
    if unknown:
        parser.error(f"there is no network `{unknown[0]}`; there are {', '.join(NETWORKS)}")
    warnings.filterwarnings("ignore")
    # This module of torchvision registers operators that no network here uses. Leave it out,
    # because its import fails if torchvision was built for another version of PyTorch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("left out"))
    logging.disable(logging.WARNING)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in arguments.networks or NETWORKS:
        stem = name if arguments.batch == 1 else f"{name}_b{arguments.batch}"
        if (arguments.folder / f"{stem}.npz").exists():
            continue
        began = time.perf_counter()
        try:
            export(name, arguments.batch, arguments.folder)
            print(stem, f"{time.perf_counter() - began:.1f} s", flush=True)
        except Exception as error:  # Exporters may raise anything: go on with the next network.
            failed += 1
            told = " ".join(str(error).split())[:200]
            print(stem, "was not exported:", type(error).__name__, told, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
