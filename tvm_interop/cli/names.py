"""Lists of names for help and shell completion, which must not wait for the import of TVM.

Tests check that each list matches the schedulers, policies, providers, devices and networks that
exist.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCHEDULERS = (
    "auto", "gpg", "gpg-scored", "greedy", "heft", "hios-lp", "hios-mr", "ios", "ios-both",
    "ios-merge", "ios-parallel", "lios", "lios+", "lios-rand", "lios-rand1", "lios-rand2",
    "multi-gpu", "nimble", "opara", "sequential",
)  # fmt: skip

POLICIES = ("auto", "sequential", "streams", "batching", "search", "top", "top+")

PROVIDERS = ("tvm", "onednn", "cudnn", "cublaslt")

DEVICES = (
    "a40", "a100", "h100", "jetson_nano", "jetson_tx2", "k80", "rtx2080super", "rtx2080ti",
    "rtx3080", "v100", "xavier_nx",
)  # fmt: skip

NETWORKS = (
    "inception_v3", "randwire", "nasnet_a", "squeezenet", "resnet50", "googlenet", "bert_base",
    "t5_encoder", "wide_deep", "dlrm", "task_heads", "mixture_of_experts",
)  # fmt: skip


def light_networks() -> list[str]:
    """The names of the onnx package's architectures, such as `light:squeezenet`.

    The names are read from the names of files in the onnx package's folder, without importing the
    package.
    """
    spec = importlib.util.find_spec("onnx")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "backend" / "test" / "data" / "light"
    return sorted(f"light:{path.stem.removeprefix('light_')}" for path in folder.glob("*.onnx"))
