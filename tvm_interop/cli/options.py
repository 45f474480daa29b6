"""Command-line options that several verbs share, and functions that parse their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from .names import DEVICES, NETWORKS, PROVIDERS, SCHEDULERS, light_networks

if TYPE_CHECKING:
    from ..execution.rpc_server import ServerAddress
    from ..latency import Link


def _models_like(incomplete: str) -> list[str]:
    """The networks, ONNX files and folders whose names begin with `incomplete`."""
    return _found(incomplete, (".onnx",))


def _models_and_artifacts_like(incomplete: str) -> list[str]:
    """The networks, ONNX files, .tar files and folders whose names begin with `incomplete`."""
    return _found(incomplete, (".onnx", ".tar"))


def _found(incomplete: str, suffixes: Sequence[str]) -> list[str]:
    names = [*NETWORKS, *light_networks()]
    begun = Path(incomplete)
    folder = begun if incomplete.endswith("/") else begun.parent
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    chosen = (path for path in paths if _may_be_one(path, suffixes))
    names += [f"{path}/" if path.is_dir() else str(path) for path in chosen]
    return [name for name in names if name.startswith(incomplete)]


def _may_be_one(path: Path, suffixes: Sequence[str]) -> bool:
    return path.suffix in suffixes or (path.is_dir() and not path.name.startswith("."))


def _schedulers_like(incomplete: str) -> list[str]:
    return [name for name in SCHEDULERS if name.startswith(incomplete)]


Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, a .pt2 file of torch.export, or a network's name (see `tvm-interop "
        "models`).",
        show_default=False,
        autocompletion=_models_like,
    ),
]
ModelOrArtifact = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL|ARTIFACT",
        help="An ONNX file, a network's name, or an artifact that `compile` wrote.",
        show_default=False,
        autocompletion=_models_and_artifacts_like,
    ),
]
Artifact = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL.TAR", help="An artifact that `compile` wrote.", show_default=False
    ),
]
MODEL_SUFFIXES = (".onnx", ".pt2")
"""The file name suffixes by which commands that accept an artifact or a model recognise a model."""
ArtifactOrModel = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL.TAR|MODEL",
        help="An artifact that `compile` wrote, or an ONNX file, which is compiled once.",
        show_default=False,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        help="TVM target of the kernels: a kind such as `llvm`, a kind with options such as "
        "`llvm -mcpu=core-avx2`, or JSON.",
        rich_help_panel="Model",
    ),
]
Archs = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="sm_NN,...",
        help="For `--target cuda`: GPU architectures; by default the architecture of this "
        "machine's GPU, or sm_80,sm_90 without a GPU.",
        rich_help_panel="Model",
    ),
]
Scheduler = Annotated[
    str,
    typer.Option(
        "--scheduler",
        help=f"One of {', '.join(SCHEDULERS)}.",
        rich_help_panel="Scheduling",
        autocompletion=_schedulers_like,
    ),
]
Streams = Annotated[
    int | None,
    typer.Option(
        "--streams",
        min=1,
        help="Number of streams that run side by side; by default one for each core of a CPU, and "
        "up to 8 on a GPU. On a GPU, `opara` opens as many as its algorithm asks for, unless this "
        "option bounds their number.",
        rich_help_panel="Scheduling",
    ),
]
StreamPriorities = Annotated[
    bool,
    typer.Option(
        "--stream-priorities",
        help="For `--target cuda`: the GPU prefers the stream with the longest chain of operators.",
        rich_help_panel="Scheduling",
    ),
]
AllowTf32 = Annotated[
    bool,
    typer.Option(
        "--allow-tf32",
        help="For `--target cuda`: kernel libraries may round the inputs of float32 convolutions "
        "and matrix products to TF32.",
        rich_help_panel="Model",
    ),
]
Winograd = Annotated[
    bool,
    typer.Option(
        "--winograd/--no-winograd",
        help="On a CPU, compute 3x3 convolutions by Winograd's algorithm where that is faster; "
        "its results differ in rounding.",
        rich_help_panel="Model",
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Build kernels and choose the schedule anew; results kept from earlier calls are not "
        "used.",
        rich_help_panel="Scheduling",
    ),
]
CrossCompiler = Annotated[
    str | None,
    typer.Option(
        "--cross-compiler",
        metavar="COMPILER",
        help="Compiler that links the kernels for a --target with another kind of CPU than this "
        "machine's; may be followed by its options. By default CXX, or the system's compiler.",
        rich_help_panel="Model",
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="f32|bf16|auto",
        help="Type of the numbers that convolutions and matrix products multiply; `auto` takes "
        "bf16 if its error is small. bf16 needs a CPU with AVX512-BF16.",
        rich_help_panel="Model",
    ),
]
KeepF32 = Annotated[
    str | None,
    typer.Option(
        "--keep-f32",
        metavar="NAME,...",
        help="With bf16: operators that stay in f32, by name or kind, such as `softmax` or `*fc*`.",
        rich_help_panel="Model",
    ),
]
MaxError = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        min=0.0,
        help="With `--precision auto`: the largest error that bf16 may have; by default 0.02.",
        rich_help_panel="Model",
    ),
]
ErrorInputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        help="With bf16: an .npz file of inputs on which the error is measured; by default random "
        "numbers.",
        rich_help_panel="Model",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Threads for the kernels of each stream; by default the streams share the cores "
        "evenly.",
        rich_help_panel="Scheduling",
    ),
]
Blocks = Annotated[
    Path | None,
    typer.Option(
        "--blocks",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="ios, ios-both: the blocks that are searched one by one, as JSON: a list of lists of "
        "operator names, which may be patterns such as `cell_3/*`.",
        rich_help_panel="Scheduling",
    ),
]
MaxGroupOps = Annotated[
    int | None,
    typer.Option(
        "--max-group-ops",
        min=1,
        help="ios, auto: largest number of operators in a group (r in the IOS paper).",
        rich_help_panel="Scheduling",
    ),
]
MaxGroups = Annotated[
    int | None,
    typer.Option(
        "--max-groups",
        min=1,
        help="ios, greedy, auto: largest number of groups in a stage (s in the IOS paper).",
        rich_help_panel="Scheduling",
    ),
]
Endings = Annotated[
    str | None,
    typer.Option(
        "--endings",
        metavar="complete|paper",
        help="ios, auto: which sets of operators that may run last (endings) are considered: all, "
        "or only those that the IOS authors' code enumerates.",
        rich_help_panel="Scheduling",
    ),
]
Latency = Annotated[
    str,
    typer.Option(
        "--latency",
        metavar="measured|learned|database[:GPU]|DEVICE",
        help="Where latencies come from. measured: from runs here. learned (needs the extra "
        "`learned`): most latencies are predicted, and the decisive ones are measured. "
        "For a GPU that is not here, database: from the latency database; DEVICE: from the "
        f"data sheet of one of {', '.join(DEVICES)}.",
        rich_help_panel="Scheduling",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus",
        min=1,
        help="hios-lp, hios-mr, heft, multi-gpu: number of GPUs, which must be alike.",
        rich_help_panel="Scheduling",
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        "--window",
        min=1,
        help="hios-lp, hios-mr, heft, multi-gpu: largest number of operators that start together "
        "on a GPU.",
        rich_help_panel="Scheduling",
    ),
]
Intra = Annotated[
    str | None,
    typer.Option(
        "--intra",
        metavar="windows|none",
        help="hios-lp, hios-mr, heft, multi-gpu: run neighbouring operators of a GPU side by side "
        "where that is faster (windows), or never (none).",
        rich_help_panel="Scheduling",
    ),
]
LinkGbS = Annotated[
    float | None,
    typer.Option(
        "--link-gb-s",
        metavar="GB/S",
        help="Bandwidth of the link between two GPUs in one direction; by default the bandwidth "
        "known for the device that --latency names.",
        rich_help_panel="Scheduling",
    ),
]
LinkUs = Annotated[
    float | None,
    typer.Option(
        "--link-us",
        metavar="US",
        min=0,
        help="With --link-gb-s: time that the smallest copy takes; by default 10 us.",
        rich_help_panel="Scheduling",
    ),
]
MaxMeasurements = Annotated[
    int | None,
    typer.Option(
        "--max-measurements",
        min=0,
        help="For learned latencies: largest number of stages to measure, not counting single "
        "operators.",
        rich_help_panel="Scheduling",
    ),
]
TimeBudget = Annotated[
    float | None,
    typer.Option(
        "--time-budget",
        metavar="SECONDS",
        min=0,
        help="How long compiling may take in all; the output lists the steps that were left out. "
        "With 0 "
        "nothing is measured or checked, and the model runs sequentially.",
    ),
]
SearchTime = Annotated[
    float | None,
    typer.Option(
        "--time-budget",
        metavar="SECONDS",
        min=0,
        help="For scheduler auto and for learned latencies: how long stages may be measured.",
        rich_help_panel="Scheduling",
    ),
]
LatencyDb = Annotated[
    Path | None,
    typer.Option(
        "--latency-db",
        help="File that keeps measured latencies; by default a file in your cache folder.",
        rich_help_panel="Scheduling",
    ),
]
Providers = Annotated[
    str | None,
    typer.Option(
        "--providers",
        metavar="NAME,...",
        help=f"Providers whose kernels are candidates: {', '.join(PROVIDERS)}; by default every "
        "installed provider that fits the target. For `--target cuda` on a machine without a GPU, "
        "kernels are not measured: those of the named providers are used, by default TVM's.",
        rich_help_panel="Model",
    ),
]
TuningRecords = Annotated[
    Path | None,
    typer.Option(
        "--tuning-records",
        metavar="FOLDER",
        help="Folder of trials that `tvm-interop tune --kernels` made for this model and target; a "
        "kernel takes the loops found there if they are faster.",
        rich_help_panel="Model",
    ),
]
RpcTracker = Annotated[
    str | None,
    typer.Option(
        "--rpc-tracker",
        metavar="HOST:PORT",
        help="Address of a TVM RPC tracker; the work is done on its servers (needs the extra "
        "`farm`). `tune` uses all free servers, and `run` uses one.",
        rich_help_panel="Servers",
    ),
]
RpcKey = Annotated[
    str | None,
    typer.Option(
        "--rpc-key",
        metavar="KEY",
        help="The key that the RPC servers were started with; equal machines share a key.",
        rich_help_panel="Servers",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
TrustedKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--trusted-key",
        metavar="KEY.PUB",
        help="Run artifacts only if this public key signed them; may be given several times. By "
        "default the keys that TVM_INTEROP_TRUSTED_KEYS names, if it is set.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show the traceback when something fails.")
]


def parse_latency(text: str) -> str | None:
    """The value of `--latency` as `compile` takes it: None stands for measured latencies.

    Raises
    ------
    InputError
        `text` is none of the known values.
    """
    if text == "measured":
        return None
    if text not in ("learned", *DEVICES) and text.partition(":")[0] != "database":
        raise InputError(
            f"--latency is `{text}`; give `measured`, `learned`, `database`, `database:GPU`, "
            f"or a device: {', '.join(DEVICES)}"
        )
    return text


def parse_link(gb_s: float | None, fixed_us: float | None) -> Link | None:
    """The link between GPUs that the options describe; None if the options are not given.

    Parameters
    ----------
    gb_s: the bandwidth of the link in one direction, in GB/s.
    fixed_us: the time that the smallest copy takes, in microseconds; None for the default.

    Raises
    ------
    InputError
        `fixed_us` is given without `gb_s`, or `gb_s` is not above 0.
    """
    if gb_s is None:
        if fixed_us is not None:
            raise InputError("--link-us goes with --link-gb-s: give both")
        return None
    if gb_s <= 0:
        raise InputError(f"--link-gb-s is {gb_s}; give a number above 0")
    from ..latency import Link
    from ..latency.described import COPY_US

    return Link(gb_s * 1e3, COPY_US if fixed_us is None else fixed_us)


def server_address(tracker: str | None, key: str | None) -> ServerAddress | None:
    """The tracker and the key to request servers with; None if neither is given.

    Raises
    ------
    InputError
        Only the tracker or only the key is given, or the tracker is not HOST:PORT.
    """
    from ..execution.rpc_server import ServerAddress

    if tracker is None and key is None:
        return None
    if tracker is None or key is None:
        raise InputError("--rpc-tracker and --rpc-key go together: give both")
    return ServerAddress.parse(tracker, key)


def parse_names(text: str | None) -> tuple[str, ...] | None:
    """Split names at commas; None if there is no text."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def read_blocks(path: Path) -> list[list[str]]:
    """Read blocks of operators, each a list of names, from the file that `--blocks` names.

    Schedulers treat each block separately: no stage may have operators of two blocks.

    Raises
    ------
    InputError: the file is not JSON, or not a list of lists of names; the message names the file.
    """
    import json

    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--blocks `{path}` cannot be read as JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(block, list) for block in found):
        raise InputError(f"--blocks `{path}` must hold a list of lists of operator names")
    return found
