"""Exports well-known public networks to ONNX: `python -m benchmarks.zoo_export FOLDER`.

The weights are random, so nothing is downloaded. For each network three files are written:
`NAME.onnx`, `NAME.pt2` (the program of `torch.export`) and `NAME.npz` (the inputs, in the order of
the graph). For a batch size other than 1 the name ends in `_bN`. Networks whose files exist are
skipped.

Most networks come from torchvision, timm and transformers, as their authors wrote them. Networks
whose names begin with `my_` are in `zoo_networks.py` and `zoo_images.py`. The extra `zoo` of this
package installs the needed packages.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .zoo_images import U2NetP, YoloV8
from .zoo_networks import (
    AutoInt,
    BiLstm,
    Crnn,
    Dlrm,
    Gat,
    HifiGan,
    Mmoe,
    UNet,
    WideAndDeep,
    keep_variance,
    random_graph,
)
from .zoo_steps import DecoderStep, EncoderDecoderStep, keys_and_values

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


def image(side: int = 224) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, 3, side, side),)


def tokens(length: int, vocabulary: int = 1000) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randint(0, vocabulary, (batch, length)),)


def torchvision_net(
    name: str, inputs: Callable[[int], Inputs] | None = None, **options: Any
) -> Maker:
    def make(batch: int) -> tuple[nn.Module, Inputs]:
        from torchvision import models

        return models.get_model(name, **options), (inputs or image())(batch)

    return make


def timm_net(name: str, inputs: Callable[[int], Inputs] | None = None, **options: Any) -> Maker:
    def make(batch: int) -> tuple[nn.Module, Inputs]:
        import timm

        return timm.create_model(name, **options), (inputs or image())(batch)

    return make


def transformer(
    model: str,
    config: str,
    inputs: Callable[[int], Inputs],
    adapter: Callable[[nn.Module], nn.Module] = FirstOutput,
    **options: Any,
) -> Maker:
    """Makes a network of the package `transformers`.

    Parameters
    ----------
    adapter: makes a network whose inputs and outputs are tensors.
    options: parameters of the network's configuration.
    """

    def make(batch: int) -> tuple[nn.Module, Inputs]:
        import transformers

        network = getattr(transformers, model)(getattr(transformers, config)(**options))
        return adapter(network), inputs(batch)

    return make


def after_tokens(past: int, vocabulary: int = 8000) -> Callable[[int], Inputs]:
    """Inputs of `DecoderStep` for the language models here, after `past` tokens."""
    return lambda batch: (
        torch.randint(0, vocabulary, (batch, 1)),
        torch.ones(batch, past + 1, dtype=torch.int64),
        torch.full((batch, 1), past),
        *keys_and_values(batch, layers=4, heads=2, tokens=past, width=32),
    )


def after_both(past: int, encoded: int, vocabulary: int = 8000) -> Callable[[int], Inputs]:
    """Inputs of `EncoderDecoderStep`, after `past` tokens and for an input of `encoded` tokens."""
    return lambda batch: (
        torch.randint(0, vocabulary, (batch, 1)),
        *keys_and_values(batch, layers=4, heads=6, tokens=past, width=64),
        *keys_and_values(batch, layers=4, heads=6, tokens=encoded, width=64),
    )


def own(network: Callable[[], nn.Module], inputs: Callable[[int], Inputs]) -> Maker:
    return lambda batch: (network(), inputs(batch))


def keeping_variance(maker: Maker) -> Maker:
    """Makes the network of `maker`, with weights from `keep_variance`."""

    def make(batch: int) -> tuple[nn.Module, Inputs]:
        network, inputs = maker(batch)
        return keep_variance(network), inputs

    return make


_SMALL_BERT = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
_EAGER = {"attn_implementation": "eager"}
_SMALL_LANGUAGE_MODEL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 8000,
}
_WHISPER_TINY = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "vocab_size": 8000,
    "decoder_start_token_id": 1,
    "pad_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 1,
}

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
    # The networks from here on were not used while our kernels were developed.
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
    # The networks from here on have branches that can run side by side, or operators that the
    # networks above do not have: gathers and scatters, scans, caches, convolutions over time and
    # over videos.
    "tv_r3d_18": torchvision_net("r3d_18", lambda b: (torch.randn(b, 3, 8, 80, 80),)),
    # NASNet-A with the widths of NASNetMobile (1056 features), and six cells for each size.
    "timm_nasnet_mobile": keeping_variance(
        timm_net("nasnetalarge", stem_size=32, num_features=1056)
    ),
    "hf_segformer_b0": transformer(
        "SegformerForSemanticSegmentation", "SegformerConfig", image(384), num_labels=150,
    ),
    "hf_mamba": transformer(
        "MambaForCausalLM", "MambaConfig", tokens(32),
        hidden_size=256, num_hidden_layers=4, vocab_size=4000, use_cache=False,
    ),
    "hf_qwen2_step": transformer(
        "Qwen2ForCausalLM", "Qwen2Config", after_tokens(64), DecoderStep, **_SMALL_LANGUAGE_MODEL,
    ),
    # `batched_mm` gathers the weights of the two experts that a token chooses among eight.
    "hf_mixtral_step": transformer(
        "MixtralForCausalLM", "MixtralConfig", after_tokens(64), DecoderStep,
        experts_implementation="batched_mm", **_SMALL_LANGUAGE_MODEL,
    ),
    "hf_whisper_step": transformer(
        "WhisperForConditionalGeneration", "WhisperConfig", after_both(30, 1500),
        EncoderDecoderStep, **_WHISPER_TINY,
    ),
    "hf_t5_step": transformer(
        "T5ForConditionalGeneration", "T5Config", after_both(20, 32), EncoderDecoderStep,
        d_model=384, d_kv=64, d_ff=1024, num_layers=4, num_decoder_layers=4, num_heads=6,
        vocab_size=8000, feed_forward_proj="gated-gelu",
    ),
    "my_gat": own(Gat, lambda b: random_graph(1000 * b, 5000 * b)),
    "my_autoint_b64": own(AutoInt, lambda b: (torch.randint(0, 1000, (64 * b, 39)),)),
    "my_crnn": keeping_variance(own(Crnn, lambda b: (torch.randn(b, 1, 32, 160),))),
    "my_hifigan": keeping_variance(own(HifiGan, lambda b: (torch.randn(b, 80, 64),))),
    "my_u2netp": keeping_variance(own(U2NetP, image(256))),
    "my_yolov8n": keeping_variance(own(YoloV8, image(640))),
}  # fmt: skip


def export(maker: Maker, batch: int, path: Path) -> None:
    """Export one network, and write it as `.pt2` and as `.onnx`, and its inputs as `.npz`.

    `path` is the path of the three files without these endings.
    """
    torch.manual_seed(0)
    network, inputs = maker(batch)
    network.eval()
    with torch.no_grad():
        program = torch.export.export(network, inputs)
        torch.export.save(program, f"{path}.pt2")
        torch.onnx.export(
            network, inputs, f"{path}.onnx", dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
    # Write the inputs last: if their file is there, all three files are.
    np.savez(f"{path}.npz", *[x.numpy() for x in inputs])


def export_all(makers: Mapping[str, Maker], folder: Path, batch: int = 1) -> int:
    """Export the named networks that have no file yet; return 1 if one was not exported."""
    warnings.filterwarnings("ignore")
    # This module of torchvision registers operators that no network here uses. Leave it out,
    # because its import fails if torchvision was built for another version of PyTorch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("left out"))
    logging.disable(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, maker in makers.items():
        stem = name if batch == 1 else f"{name}_b{batch}"
        if (folder / f"{stem}.npz").exists():
            continue
        began = time.perf_counter()
        try:
            export(maker, batch, folder / stem)
            print(stem, f"{time.perf_counter() - began:.1f} s", flush=True)
        except Exception as error:  # An exporter may fail in any way: try the next network.
            failed = 1
            told = " ".join(str(error).split())[:200]
            print(stem, "was not exported:", type(error).__name__, told, flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--batch", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.networks) - set(NETWORKS))
    if unknown:
        parser.error(f"there is no network `{unknown[0]}`; there are {', '.join(NETWORKS)}")
    makers = {name: NETWORKS[name] for name in arguments.networks or NETWORKS}
    return export_all(makers, arguments.folder, arguments.batch)


if __name__ == "__main__":
    sys.exit(main())
