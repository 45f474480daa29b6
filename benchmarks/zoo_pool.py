"""Draws networks from a large pool and exports them: `python -m benchmarks.zoo_pool SEED FOLDER`.

The pool has many networks of each kind. A seed chooses a few of each kind, so a compiler is tried
on networks that its authors did not choose. The first hexadecimal digits of a commit are a good
seed: nobody knows them before the commit is made. `python -m benchmarks.zoo FOLDER` then compares
the networks with other engines.

Files are written as by `benchmarks.zoo_export`, whose networks are not in this pool. The networks
have their authors' code and random weights. If a published network takes more than a second, the
network here is smaller. The packages of the extra `zoo`, torch-geometric, diffusers and ultralytics
are needed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import pool_networks as networks
from .zoo_export import (
    Inputs,
    Maker,
    after_tokens,
    export_all,
    image,
    keeping_variance,
    own,
    timm_net,
    tokens,
    torchvision_net,
    transformer,
)
from .zoo_networks import random_graph
from .zoo_steps import DecoderStep


class Chosen(nn.Module):
    """A network that returns only the tensors that `choose` takes from its result."""

    def __init__(self, network: nn.Module, choose: Callable[[Any], Any], **options: Any) -> None:
        super().__init__()
        self.network, self.choose, self.options = network, choose, options

    def forward(self, *inputs: Tensor) -> Any:
        return self.choose(self.network(*inputs, **self.options))


def boxes(network: nn.Module) -> nn.Module:
    """A detector of `transformers` that returns the scores and the boxes of its queries."""
    return Chosen(network, lambda found: (found.logits, found.pred_boxes))


def detector(model: str, side: int, **options: Any) -> Maker:
    network, config = f"{model}ForObjectDetection", f"{model}Config"
    return transformer(network, config, image(side), boxes, **options)


def yolo(name: str, side: int = 320) -> Maker:
    def make(batch: int) -> tuple[nn.Module, Inputs]:
        from ultralytics.nn.tasks import DetectionModel

        network = DetectionModel(f"{name}.yaml", verbose=False)
        network.model[-1].export, network.model[-1].format = True, "onnx"
        inputs = image(side)(batch)
        # The head keeps the anchors of its first run. If that run is an export, the anchors have
        # no numbers, and the next export cannot read them.
        with torch.no_grad():
            network.eval()(*inputs)
        return network, inputs

    return make


def diffuser(model: str, inputs: Callable[[int], Inputs], **options: Any) -> Maker:
    """Makes a network of the package `diffusers`; `options` are its parameters."""

    def make(batch: int) -> tuple[nn.Module, Inputs]:
        import diffusers

        network = getattr(diffusers, model)(**options)
        return Chosen(network, lambda found: found[0], return_dict=False), inputs(batch)

    return make


def decoder_of(maker: Maker) -> Maker:
    """Makes the decoder of an autoencoder of `diffusers`."""

    def make(batch: int) -> tuple[nn.Module, Inputs]:
        network, inputs = maker(batch)
        network.network.forward = network.network.decode
        return network, inputs

    return make


def graph_net(model: str, **options: Any) -> Maker:
    """Makes a network of PyTorch Geometric for a graph with 500 nodes and 2,500 edges."""

    def make(batch: int) -> tuple[nn.Module, Inputs]:
        from torch_geometric.nn import models

        network = getattr(models, model)(
            in_channels=64, hidden_channels=64, num_layers=3, out_channels=7, **options
        )
        return network, random_graph(500 * batch, 2500 * batch, 64)

    return make


def step(model: str, **options: Any) -> Maker:
    """Makes a step of a small language model that writes the token after 64 tokens."""
    sizes = {
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 704, "vocab_size": 8000,
        "pad_token_id": 0,
    }  # fmt: skip
    return transformer(
        f"{model}ForCausalLM", f"{model}Config", after_tokens(64), DecoderStep, **sizes | options
    )


def encoder(model: str, **options: Any) -> Maker:
    sizes = {
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 1024, "vocab_size": 1000, "pad_token_id": 0,
    }  # fmt: skip
    return transformer(f"{model}Model", f"{model}Config", tokens(64), **sizes | options)


def sound(model: str, inputs: Callable[[int], Inputs], **options: Any) -> Maker:
    sizes = {
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 1024,
    }  # fmt: skip
    return transformer(f"{model}Model", f"{model}Config", inputs, **sizes | options)


def numbers(*shape: int) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, *shape),)


def rows(count: int, columns: int) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(count * batch, columns),)


def ids(fields: int, count: int = 1) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randint(0, 1000, (count * batch, fields)),)


_SMALL_UNET = {
    "sample_size": 32, "layers_per_block": 1, "norm_num_groups": 16,
    "block_out_channels": (64, 128, 256),
}  # fmt: skip
_SMALL_VAE = {
    "block_out_channels": (32, 64, 128), "norm_num_groups": 16,
    "down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3,
}  # fmt: skip
_SMALL_DETR = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
    "encoder_layers": 3, "decoder_layers": 3, "num_queries": 50,
}  # fmt: skip


def _resnet(*stages: str) -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        layer_type="basic", out_features=list(stages),
    )  # fmt: skip


def _detr(model: str, **options: Any) -> Maker:
    return lambda batch: detector(
        model, 320, **_SMALL_DETR | {"backbone_config": _resnet("stage4")} | options
    )(batch)


POOL: Mapping[str, Mapping[str, Maker]] = {
    "detectors": {
        **{f"yolo_{name}": yolo(name) for name in (
            "yolov3-tiny", "yolov5n", "yolov6n", "yolov9t", "yolov10n", "yolo11n", "yolo12n",
        )},
        "hf_yolos": detector(
            "Yolos", 224, hidden_size=192, num_hidden_layers=6, num_attention_heads=3,
            intermediate_size=768, image_size=[224, 224], num_detection_tokens=50,
        ),
        "hf_detr": _detr("Detr"),
        "hf_conditional_detr": _detr("ConditionalDetr"),
        "hf_table_transformer": _detr("TableTransformer"),
    },
    "decoders": {
        f"{model.lower()}_step": step(model, **options)
        for model, options in {
            "Llama": {}, "Mistral": {}, "Gemma": {}, "Gemma2": {}, "Phi3": {}, "Phi": {},
            "Qwen3": {}, "Olmo2": {}, "StableLm": {}, "Starcoder2": {}, "Granite": {},
            "SmolLM3": {}, "Cohere": {},
        }.items()
    },
    "encoders": {
        "electra": encoder("Electra", embedding_size=128),
        "mpnet": encoder("MPNet"),
        "roberta": encoder("Roberta"),
        "deberta_v2": encoder(
            "DebertaV2", relative_attention=True, position_buckets=32, pos_att_type=["p2c", "c2p"],
        ),
        "convbert": encoder("ConvBert", embedding_size=128),
        "squeezebert": encoder("SqueezeBert", embedding_size=256),
        "modernbert": encoder("ModernBert", attn_implementation="eager"),
        "fnet": encoder("FNet"),
        "nystromformer": encoder("Nystromformer", segment_means_seq_len=64),
        "mobilebert": encoder(
            "MobileBert", hidden_size=256, intermediate_size=256, true_hidden_size=128,
            intra_bottleneck_size=128, embedding_size=128,
        ),
        "roformer": encoder("RoFormer"),
        "layoutlm": encoder("LayoutLM"),
    },
    "diffusion": {
        "unet2d": diffuser(
            "UNet2DModel", lambda b: (torch.randn(b, 3, 32, 32), torch.full((b,), 501)),
            **_SMALL_UNET, down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        ),
        "unet_condition": diffuser(
            "UNet2DConditionModel",
            lambda b: (torch.randn(b, 4, 32, 32), torch.full((b,), 501), torch.randn(b, 77, 256)),
            **_SMALL_UNET, cross_attention_dim=256, attention_head_dim=8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        "vae": diffuser("AutoencoderKL", numbers(3, 64, 64), **_SMALL_VAE),
        "vae_decoder": decoder_of(diffuser("AutoencoderKL", numbers(4, 16, 16), **_SMALL_VAE)),
        "tiny_vae_decoder": decoder_of(diffuser("AutoencoderTiny", numbers(4, 16, 16))),
        "dit": diffuser(
            "DiTTransformer2DModel",
            lambda b: (torch.randn(b, 4, 32, 32), torch.full((b,), 501), torch.full((b,), 7)),
            num_attention_heads=6, attention_head_dim=64, num_layers=4, sample_size=32,
            num_embeds_ada_norm=1000,
        ),
        "pixart": diffuser(
            "PixArtTransformer2DModel",
            lambda b: (torch.randn(b, 4, 32, 32), torch.randn(b, 40, 96), torch.full((b,), 501)),
            num_attention_heads=6, attention_head_dim=64, num_layers=4, sample_size=32,
            cross_attention_dim=384, caption_channels=96, use_additional_conditions=False,
        ),
    },
    "super-resolution": {
        "edsr": keeping_variance(own(networks.Edsr, numbers(3, 64, 64))),
        "fsrcnn": keeping_variance(own(networks.Fsrcnn, numbers(1, 96, 96))),
        "espcn": keeping_variance(own(networks.Espcn, numbers(1, 128, 128))),
        "rcan": own(networks.Rcan, numbers(3, 48, 48)),
        "imdn": own(networks.Imdn, numbers(3, 64, 64)),
        "esrgan": own(networks.Esrgan, numbers(3, 32, 32)),
        "swin2sr": transformer(
            "Swin2SRForImageSuperResolution", "Swin2SRConfig", image(48),
            lambda network: Chosen(network, lambda found: found.reconstruction),
            image_size=48, embed_dim=60, depths=[2, 2], num_heads=[6, 6],
        ),
    },
    "3-D": {
        **{f"tv_{name}": torchvision_net(name, numbers(3, 8, 80, 80)) for name in (
            "r2plus1d_18", "mc3_18",
        )},
        "tv_s3d": torchvision_net("s3d", numbers(3, 16, 224, 224)),
        "tv_swin3d_t": torchvision_net("swin3d_t", numbers(3, 8, 64, 64)),
        "hf_videomae": transformer(
            "VideoMAEModel", "VideoMAEConfig", numbers(8, 3, 112, 112), image_size=112,
            num_frames=8, hidden_size=192, num_hidden_layers=4, num_attention_heads=3,
            intermediate_size=768,
        ),
        "hf_timesformer": transformer(
            "TimesformerModel", "TimesformerConfig", numbers(4, 3, 96, 96), image_size=96,
            num_frames=4, hidden_size=192, num_hidden_layers=4, num_attention_heads=3,
            intermediate_size=768,
        ),
        "hf_vivit": transformer(
            "VivitModel", "VivitConfig", numbers(8, 3, 96, 96), image_size=96, num_frames=8,
            hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768,
        ),
    },
    "graph networks": {
        "gcn": graph_net("GCN", cached=False, add_self_loops=False),
        "sage": graph_net("GraphSAGE"),
        "sage_max": graph_net("GraphSAGE", aggr="max"),
        "gin": graph_net("GIN"),
        "gatv2": graph_net("GAT", v2=True, heads=4, add_self_loops=False),
        "pna": graph_net(
            "PNA", aggregators=["mean", "max", "std"], scalers=["identity", "amplification"],
            deg=torch.tensor([0, 10, 40, 100, 150, 100, 60, 30, 10]),
        ),
        "edge_cnn": graph_net("EdgeCNN"),
    },
    "speech": {
        **{model.lower(): sound(
            model, lambda b: (torch.randn(b, 8000),), conv_dim=[128] * 7,
            num_conv_pos_embeddings=32,
        ) for model in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeechSat")},
        "wav2vec2_conformer": sound(
            "Wav2Vec2Conformer", lambda b: (torch.randn(b, 8000),), conv_dim=[128] * 7,
            num_conv_pos_embeddings=32, position_embeddings_type="rotary",
        ),
        "spectrogram_transformer": sound("AST", numbers(256, 128), max_length=256),
        "whisper_encoder": transformer(
            "WhisperModel", "WhisperConfig", numbers(80, 600),
            lambda network: Chosen(network.encoder, lambda found: found.last_hidden_state),
            d_model=256, encoder_layers=4, encoder_attention_heads=4, encoder_ffn_dim=1024,
            max_source_positions=300,
        ),
    },
    "mobile vision": {
        f"timm_{name}": timm_net(name, image(side))
        for name, side in {
            "mobilenetv4_conv_small": 224, "mobilenetv1_100": 224, "tf_efficientnet_lite0": 224,
            "fastvit_t8": 256, "mobileone_s0": 224, "edgenext_x_small": 256,
            "efficientformerv2_s0": 224, "efficientvit_b0": 224, "lcnet_100": 224,
            "tinynet_e": 106, "repvit_m0_9": 224, "ghostnetv2_100": 224, "starnet_s1": 224,
            "levit_128s": 224, "repghostnet_050": 224, "mobilevitv2_050": 256, "hardcorenas_a": 224,
            "fbnetc_100": 224, "spnasnet_100": 224, "rexnet_100": 224, "skresnet18": 224,
            "selecsls42b": 224, "cs3darknet_focus_s": 256,
        }.items()
    },
    "recommenders": {
        "deep_fm": own(networks.DeepFm, ids(26)),
        "deep_fm_b128": own(networks.DeepFm, ids(26, 128)),
        "dcn_v2": own(
            networks.DcnV2, lambda b: (torch.randn(b, 13), torch.randint(0, 1000, (b, 26)))
        ),
        "xdeep_fm_b16": own(networks.XDeepFm, ids(26, 16)),
        "din_b32": own(
            networks.Din,
            lambda b: (
                torch.randint(0, 2000, (32 * b,)), torch.randint(0, 2000, (32 * b, 40)),
                torch.randint(1, 41, (32 * b,)),
            ),
        ),
        "sasrec": own(networks.SasRec, tokens(50, 3000)),
        "ple": own(networks.Ple, rows(1, 256)),
        "ple_b64": own(networks.Ple, rows(64, 256)),
    },
    "tables": {
        "ft_transformer": own(networks.FtTransformer, rows(1, 24)),
        "ft_transformer_b32": own(networks.FtTransformer, rows(32, 24)),
        "tabnet": own(networks.TabNet, rows(1, 54)),
        "tabnet_b256": own(networks.TabNet, rows(256, 54)),
        "table_resnet_b64": own(networks.TableResNet, rows(64, 54)),
        "saint_b16": own(networks.Saint, rows(16, 20)),
    },
}  # fmt: skip


def draw(seed: str, each: int) -> dict[str, list[str]]:
    """Draw `each` networks of each kind; the same seed draws the same networks.

    The draw of one kind does not depend on the other kinds, so it stays the same when networks are
    added to other kinds.
    """
    drawn = {}
    for kind, makers in POOL.items():
        digest = hashlib.sha256(f"{seed} {kind}".encode()).digest()
        drawn[kind] = random.Random(digest).sample(sorted(makers), min(each, len(makers)))
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seed", help="any text, such as the first digits of a commit")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=3, help="networks of each kind (default: 3)")
    parser.add_argument("--list", action="store_true", help="print the names and export nothing")
    arguments = parser.parse_args()
    drawn = draw(arguments.seed, arguments.each)
    for kind, names in drawn.items():
        print(f"{kind}: {', '.join(names)}", flush=True)
    if arguments.list:
        return 0
    makers = {name: POOL[kind][name] for kind, names in drawn.items() for name in names}
    return export_all(makers, arguments.folder)


if __name__ == "__main__":
    sys.exit(main())
