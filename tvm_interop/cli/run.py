"""The verb `tvm-interop run`, which runs an artifact or a model, and times or profiles it."""

from __future__ import annotations

import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from ..atomic_file import check_place, replacing
from ..errors import DeviceError, InputError
from ..execution.strings import DTYPE
from . import options, shape_options
from .console import json_text, measuring_bar, note, table
from .flags import Flags, with_flags
from .input_files import InputFlags

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..artifact.ranges import RequestCost
    from ..execution.graph_module import GraphModule
    from ..execution.operator_profile import OpProfile
    from ..execution.rpc_server import ServerAddress
    from ..session.source import Source


Sha256 = Annotated[
    str | None,
    typer.Option(
        "--sha256",
        metavar="DIGEST",
        help="Run the artifact only if its SHA-256 (see `sha256sum`) is this digest.",
    ),
]


@dataclass(frozen=True)
class WhereFlags(Flags):
    """The options that say where an artifact runs: the device, the threads, and the server."""

    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="Device to run on; by default the device that the model was compiled for.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            min=1,
            help="Threads of this process that run models; by default the number in "
            "TVM_INTEROP_NUM_THREADS, or one for each core that the process may use.",
        ),
    ] = None
    pin: Annotated[
        bool,
        typer.Option(
            "--pin",
            help="Keep each thread on a core of its own; for machines that run nothing else.",
        ),
    ] = False
    rpc_tracker: options.RpcTracker = None
    rpc_key: options.RpcKey = None

    def server(self) -> ServerAddress | None:
        """The tracker and the key with which a server is requested; None to run on this machine."""
        return options.server_address(self.rpc_tracker, self.rpc_key)

    def set_threads(self) -> None:
        """Set the number of threads of this process, and pin them, if the options say so.

        Raises
        ------
        InputError
            `--threads` or `--pin` was given, and the artifact runs on a server.
        """
        from ..execution.threads import num_threads, set_num_threads

        if self.threads is None and not self.pin:
            return
        if self.server() is not None:
            raise InputError(
                "--threads and --pin are for runs on this machine; for runs on a server, set "
                "TVM_INTEROP_NUM_THREADS when you start the server"
            )
        set_num_threads(self.threads or num_threads(), pin=self.pin)


@dataclass(frozen=True)
class ReportFlags(Flags):
    """The options that say what a run prints or writes: outputs, times, or a profile."""

    outputs: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--outputs",
            help="An .npz file to write the outputs to, with bfloat16 as float32.",
        ),
    ] = None
    print_time: Annotated[
        bool, typer.Option("--print-time", help="Time the model and print the figures.")
    ] = False
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Measurements to take.")] = 10
    number: Annotated[int, typer.Option("--number", min=1, help="Runs in each measurement.")] = 10
    end_to_end: Annotated[
        bool,
        typer.Option("--end-to-end", help="Include the copies of inputs and outputs in the time."),
    ] = False
    print_top: Annotated[
        int | None,
        typer.Option(
            "--print-top", metavar="N", min=1, help="Print the N largest values of output 0."
        ),
    ] = None
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help="Write the times at which each operator ran, as a Chrome trace (for Perfetto).",
        ),
    ] = None
    print_profile: Annotated[
        bool, typer.Option("--print-profile", help="Print when each operator ran.")
    ] = False

    def check_places(self) -> None:
        """Check that the files can be written, before a model is compiled or measured.

        Raises
        ------
        InputError
            The folder of a file is missing or may not be written to.
        """
        for path in (self.outputs, self.profile):
            if path is not None:
                check_place(path)

    def facts(self, module: GraphModule) -> dict[str, Any]:
        """Write the files that the options ask for, and return the results to print.

        Parameters
        ----------
        module: a module that has run once.
        """
        results = {
            port.name: module.as_strings(i, module.get_output(i).numpy())
            for i, port in enumerate(module.ports()[1])
        }
        facts: dict[str, Any] = {
            "outputs": {
                name: {"shape": list(array.shape), "dtype": _type_of(array)}
                for name, array in results.items()
            }
        }
        if self.outputs is not None:
            _write_outputs(self.outputs, results)
        if self.print_top is not None:
            facts["top"] = _top(*next(iter(results.items())), self.print_top)
        if self.print_time:
            timed = module.benchmark(
                repeat=self.repeat, number=self.number, end_to_end=self.end_to_end
            )
            kinds = ("mean", "median", "min", "max", "std")
            facts["time_ms"] = {kind: float(getattr(timed, kind)) * 1e3 for kind in kinds}
        if self.profile is not None or self.print_profile:
            facts.update(self._profiled(module))
        return facts

    def _profiled(self, module: GraphModule) -> dict[str, Any]:
        from ..viz import chrome_trace

        rows = module.profile()
        if self.profile is not None:
            with replacing(self.profile) as temporary:
                Path(temporary).write_text(chrome_trace(rows, module.plan), "utf-8")
        return {"profile": [row._asdict() for row in rows]} if self.print_profile else {}


@dataclass(frozen=True)
class ModelFlags(Flags):
    """The options for compiling a model before it runs."""

    input_shapes: shape_options.InputShapes = None
    dims: shape_options.Dims = None
    time_budget: options.TimeBudget = None

    def compiled(self, source: Source, path: Path) -> Artifact:
        """Compile the model at `path`, or find its artifact from an earlier run.

        The artifact of an earlier run is used if that run had the same model and the same options
        for compiling.
        """
        from ..session.compiled_once import compiled_once

        given = {} if self.time_budget is None else {"time_budget": self.time_budget}
        shapes = shape_options.shapes_of(path, self.input_shapes, self.dims)
        with measuring_bar() as progress:
            return compiled_once(source, {"progress": progress, **given}, shapes)

    def refuse(self, path: Path) -> None:
        """Refuse the options for compiling, because `path` is an artifact, which is already
        compiled.

        Raises
        ------
        InputError
            One of the options for compiling was given.
        """
        if self != ModelFlags():
            raise InputError(
                f"--dim, --input-shapes and --time-budget are for compiling models, and `{path}` "
                "is an artifact with fixed shapes: give the model"
            )


@with_flags
def run_model(
    model: options.ArtifactOrModel,
    sha256: Sha256 = None,
    trusted_key: options.TrustedKeys = None,
    *,
    compiling: ModelFlags,
    where: WhereFlags,
    given: InputFlags,
    report: ReportFlags,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Run an artifact once. Options also time or profile it.

    A model (an .onnx or .pt2 file) is compiled first. The artifact is kept, and the next run with
    the same options finds it. --dim or --input-shapes give the sizes that the model leaves open.
    --time-budget says how many seconds compiling may take.

    An artifact holds machine code, which runs with all your rights. Run only artifacts whose origin
    you trust. You can pin one artifact with --sha256, or require a signature with --trusted-key
    (see `tvm-interop sign`).

    With --rpc-tracker and --rpc-key the artifact runs on a server. The server receives kernels,
    weights and inputs, and its clock measures the times. A server runs only TVM's kernels. Start it
    with `python -m tvm.exec.rpc_server --tracker HOST:PORT --key KEY --load-library
    libtvm_interop.so`.
    """
    from ..execution.graph_module import GraphModule

    report.check_places()
    server = where.server()
    where.set_threads()
    artifact = _artifact(model, sha256, trusted_key, compiling)
    _check_device(where.device, "cuda" if artifact.is_for_gpus else "cpu")
    if server is None:
        _note_idle_cores(artifact)
        # `_note_idle_cores` has printed a note on idle cores, so suppress the warning that says the
        # same.
        artifact.from_elsewhere = False
    module = GraphModule(artifact, server)
    module.run(given.arrays(*module.get_input_info()))
    cost = artifact.cost_of(module.sizes) if module.sizes else None
    facts = {"request": None if cost is None else asdict(cost), **report.facts(module)}
    typer.echo(json_text(facts) if as_json else _summary(facts, cost))


def _artifact(
    path: Path,
    sha256: str | None,
    trusted_keys: list[Path] | None,
    compiling: ModelFlags,
) -> Artifact:
    """Load the artifact at `path`; if `path` is a model, compile it once and keep its artifact."""
    from ..artifact.artifact import load
    from ..session.source import Source, artifact_or_source

    if path.suffix not in options.MODEL_SUFFIXES or not path.is_file():
        compiling.refuse(path)
        return load(path, sha256=sha256, trusted_keys=trusted_keys)
    if sha256 is not None or trusted_keys:
        raise InputError(
            f"--sha256 and --trusted-key are for artifacts, and `{path}` is a model: compile it, "
            "and sign the artifact"
        )
    source = artifact_or_source(path)
    if not isinstance(source, Source):
        compiling.refuse(path)
        return source  # The file has the suffix of a model, but holds an artifact.
    artifact = compiling.compiled(source, path)
    if artifact.path is not None:
        note(f"`{path}` runs as `{artifact.path}`")
    return artifact


def _note_idle_cores(artifact: Artifact) -> None:
    """Print a note on standard error if the artifact leaves cores of this process idle."""
    from ..execution.open_instance import leaves_cores_idle
    from ..execution.threads import num_threads

    if leaves_cores_idle(artifact):
        note(
            f"the artifact runs on {artifact.cores} of the {num_threads()} cores that "
            "this process may use: if the model was compiled for fewer cores, compile it again here"
        )


def _check_device(wanted: str | None, compiled_for: str) -> None:
    if wanted is not None and wanted.partition(":")[0] != compiled_for:
        raise DeviceError(
            f"--device `{wanted}`: the model was compiled for {compiled_for}; compile it for "
            "another target, or leave --device out"
        )


def _write_outputs(path: Path, results: dict[str, np.ndarray]) -> None:
    """Write the outputs to a file of NumPy.

    NumPy's files have no bfloat16, so bfloat16 is written as float32. Strings are written with
    NumPy's type for strings of a fixed length, because not every program may read objects from a
    file.
    """
    types: dict[str, Any] = {"bfloat16": np.float32, DTYPE: str}
    results = {
        name: array.astype(types[array.dtype.name]) if array.dtype.name in types else array
        for name, array in results.items()
    }
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, array in results.items():  # `numpy.savez` refuses the name `file`.
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _type_of(array: np.ndarray) -> str:
    return "string" if array.dtype == DTYPE else str(array.dtype)


def _top(name: str, array: np.ndarray, number: int) -> list[dict[str, Any]]:
    """Return the largest values of an output, each with its index.

    Raises
    ------
    InputError
        The output is strings.
    """
    if array.dtype == DTYPE:
        raise InputError(
            f"output `{name}` is strings, of which none is the largest: leave --print-top out, and "
            "write the outputs with --outputs"
        )
    flat = array.ravel()
    order = np.argsort(flat)[::-1][:number]
    is_whole = array.dtype.kind in "iu"
    return [{"index": int(i), "value": (int if is_whole else float)(flat[i])} for i in order]


def _summary(facts: dict[str, Any], cost: RequestCost | None) -> str:
    from ..execution.operator_profile import OpProfile

    lines = [
        f"output {name}: {described['dtype']} of shape {tuple(described['shape'])}"
        for name, described in facts["outputs"].items()
    ]
    if cost is not None:
        lines.append(f"sizes: {cost}")
    for entry in facts.get("top", ()):
        value = entry["value"]
        lines.append(f"  [{entry['index']}] {value if isinstance(value, int) else f'{value:.6g}'}")
    if "time_ms" in facts:
        figures = "  ".join(f"{key} {value:.4f}" for key, value in facts["time_ms"].items())
        lines.append(f"time in ms: {figures}")
    if "profile" in facts:
        lines.append(_profile_table([OpProfile(**row) for row in facts["profile"]]))
    return "\n".join(lines)


def _profile_table(rows: list[OpProfile]) -> str:
    headings = ("operator", "stream", "start us", "took us", "no core us", "kernel")
    cells = [
        (
            row.name,
            str(row.stream),
            f"{row.start_us:.1f}",
            f"{row.end_us - row.start_us:.1f}",
            f"{row.lost_us:.1f}",
            row.kernel,
        )
        for row in rows
    ]
    return table([headings, *cells], left=(0, 5))
