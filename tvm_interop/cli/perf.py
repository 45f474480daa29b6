"""The verb `tvm-interop perf`, which measures an artifact, alone or against other engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..atomic_file import check_place, replacing
from ..errors import InputError
from . import options
from .console import counting_bar, json_text, note, table
from .flags import Flags, with_flags
from .input_files import InputFlags

if TYPE_CHECKING:
    from ..perf.contest import Found, Ratio, Timing
    from ..perf.contestant import Contestant, Load

AGAIN = " (again)"
"""The artifact runs in two processes to measure the noise. The results of the second process have
the artifact's name with this suffix."""
_PEERS = {"onnxruntime": (".onnx",), "openvino": (".onnx",), "torch": (".pt2",)}
"""The engines besides this package, each with the suffixes of the model files that it can run."""
_PANEL = "Other engines"


@dataclass(frozen=True)
class PeerFlags(Flags):
    """The options for engines other than this package: their names, and their model files."""

    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="NAME,...",
            help=f"Other engines to measure: one or more of {', '.join(_PEERS)}. An engine that is "
            "not installed is named and left out.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    originals: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            metavar="FILE",
            help="With --against: the model that the artifact was compiled from, as an ONNX file; "
            "for torch, as a .pt2 file of torch.export. May be given once for each file.",
            rich_help_panel=_PANEL,
        ),
    ] = None


@dataclass(frozen=True)
class LoadFlags(Flags):
    """How often each engine gets a request, and for how long the engine is measured."""

    warmup: Annotated[
        float,
        typer.Option(
            "--warmup",
            metavar="SECONDS",
            min=0.0,
            help="Warm-up of each engine before it is timed.",
        ),
    ] = 1.0
    duration: Annotated[
        float,
        typer.Option(
            "--duration", metavar="SECONDS", min=0.001, help="Measured time of each engine."
        ),
    ] = 5.0
    turn: Annotated[
        float,
        typer.Option(
            "--turn",
            metavar="SECONDS",
            min=0.001,
            help="Length of one turn. An engine's turns add up to --duration.",
        ),
    ] = 0.5
    rest: Annotated[
        float | None,
        typer.Option(
            "--rest",
            metavar="SECONDS",
            min=0.0,
            help="Pause before each turn, in which the previous engine's threads go to sleep; by "
            "default 0.5 with --against, else 0.",
        ),
    ] = None
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            min=1,
            help="Number of runs at once; each has its own instance of the model.",
        ),
    ] = 1
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="PER_SECOND",
            min=0.001,
            help="Number of runs requested per second, whether or not earlier runs have ended. A "
            "latency then counts from the time at which the run was due. By default, a new run "
            "starts when a run ends.",
        ),
    ] = None
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            metavar="poisson|uniform",
            help="With --rate: random gaps between runs (poisson), or equal ones (uniform).",
        ),
    ] = "poisson"

    def load(self) -> Load:
        """The load: how many requests run at once, or how many come per second and how they arrive.

        Raises
        ------
        InputError
            `--arrivals` is neither `poisson` nor `uniform`.
        """
        from ..perf.contestant import Load

        return Load(self.concurrency, self.rate, _arrivals(self.arrivals))

    def timing(self, usual_rest_s: float) -> Timing:
        """The durations of the warm-up, of each engine's turns, and of the pauses before the turns.

        Parameters
        ----------
        usual_rest_s: the pause before each turn if `--rest` is not given, in seconds.
        """
        from ..perf.contest import Timing

        rest = usual_rest_s if self.rest is None else self.rest
        return Timing(self.warmup, self.duration, min(self.turn, self.duration), rest)


@with_flags
def measure(
    model: options.Artifact,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads that run the artifact; default: all cores."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE.svg", help="Draw all latency percentiles into this file."
        ),
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option(
            "--sha256",
            metavar="DIGEST",
            help="Run the artifact only if its SHA-256 is this digest.",
        ),
    ] = None,
    trusted_key: options.TrustedKeys = None,
    *,
    given: InputFlags,
    peers: PeerFlags,
    asked: LoadFlags,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure an artifact: latency percentiles, throughput, memory and CPU time.

    Each engine runs in a process of its own, with the number of threads with which it is fastest.
    The engines take turns. There is a pause before each turn, because threads of the engine that
    ran last may still use a core. With --against the artifact runs in two processes. The difference
    between these two is the noise. If engines differ by less than the noise, neither counts as
    faster.

    An artifact holds machine code, which runs with all your rights: see `tvm-interop run --help`.
    """
    from ..artifact.artifact import load
    from ..perf import contest
    from ..perf.contestant import Contestant
    from ..perf.engines import Artifact

    if picture is not None:
        _check_picture(picture)
    artifact = load(model, kernels=False, sha256=sha256, trusted_keys=trusted_key)
    plan = artifact.plan
    feed = given.arrays(
        {plan.values[v].name: plan.values[v].shape for v in plan.inputs},
        {plan.values[v].name: plan.values[v].dtype for v in plan.inputs},
    )
    others, left_out = _peers(peers.against, peers.originals or [])

    def ours(name: str) -> Contestant:
        return Contestant(Artifact(name, sha256, trusted_key, threads), str(model.resolve()))

    again = [ours(model.name + AGAIN)] if peers.against else []
    contestants = [ours(model.name), *again, *others]
    timing = asked.timing(contest.REST_S if peers.against else 0.0)
    with counting_bar("measuring") as progress:
        left_out |= contest.hold(contestants, feed, asked.load(), timing, progress=progress)
    took_part = [one for one in contestants if one.name not in left_out]
    found = [contest.found_of(one) for one in took_part]
    ratios = {one.name: contest.ratio_of(took_part[0], one) for one in took_part[1:]}
    if picture is not None:
        _draw(took_part, picture)
    for name, why in left_out.items():
        note(f"{name} does not take part: {why.replace(f'{name} ', 'it ', 1)}")
    if as_json:
        facts = {
            "artifact": str(model),
            "concurrency": asked.concurrency,
            "rate_per_s": asked.rate,
            **contest.as_json(found, ratios),
            "left_out": left_out,
        }
        typer.echo(json_text(facts))
        return
    typer.echo(_summary(found, ratios, asked.rate))


def _check_picture(path: Path) -> None:
    """Check, before anything is measured, that the picture can be written to `path`.

    Raises
    ------
    InputError
        The name does not end in `.svg`, or no file can be written there.
    """
    if path.suffix != ".svg":
        raise InputError(
            f"--picture `{path}`: the picture is an SVG file; give a name that ends in .svg"
        )
    check_place(path)


def _arrivals(text: str) -> Literal["poisson", "uniform"]:
    if text == "poisson":
        return "poisson"
    if text == "uniform":
        return "uniform"
    raise InputError(f"--arrivals is `{text}`; it must be `poisson` or `uniform`")


def _peers(text: str | None, originals: Sequence[Path]) -> tuple[list[Contestant], dict[str, str]]:
    """The engines that are measured beside the artifact, and the reason for each engine that is
    left out.

    Parameters
    ----------
    text: names of engines, separated by commas.
    originals: files of the model that the artifact was compiled from.

    Raises
    ------
    InputError
        An engine or a file does not exist, or only one of `--against` and `--model` was given.
    """
    from ..perf.contestant import Contestant
    from ..perf.engines import Engine, OnnxRuntime, OpenVino, TorchProgram

    names = options.parse_names(text) or ()
    for name in names:
        if name not in _PEERS:
            raise InputError(f"--against `{name}`: there is no such engine; {_known()}")
    for path in originals:
        if not path.is_file():
            raise InputError(f"--model: there is no file `{path}`")
    if bool(names) != bool(originals):
        raise InputError(
            "--against and --model go together, since other engines cannot run an artifact; give "
            "both, --model with the model that the artifact was compiled from"
        )
    made: dict[str, Callable[[], Engine]] = {
        "onnxruntime": OnnxRuntime,
        "openvino": OpenVino,
        "torch": TorchProgram,
    }
    peers: list[Contestant] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(names):
        engine = made[name]()
        fitting = [path for path in originals if path.suffix in _PEERS[name]]
        why = engine.missing()
        if why is None and not fitting:
            why = f"it runs {' and '.join(_PEERS[name])} files: give one with --model"
        if why is None:
            peers.append(Contestant(engine, str(fitting[0].resolve())))
        else:
            left_out[name] = why
    return peers, left_out


def _known() -> str:
    return f"there are {', '.join(_PEERS)}"


def _draw(contestants: Sequence[Contestant], path: Path) -> None:
    from ..perf.contest import latencies_of
    from ..viz.percentiles import percentiles_svg

    drawing = percentiles_svg({one.name: latencies_of(one) for one in contestants})
    with replacing(path) as temporary:
        Path(temporary).write_text(drawing, "utf-8")


def _summary(found: Sequence[Found], ratios: dict[str, Ratio], rate: float | None) -> str:
    from ..perf.contest import PERCENTILES

    headings = (
        "", "runs", "mean ms", *(f"p{p}" for p in PERCENTILES), "max", "per s", "CPU ms", "MiB",
    )  # fmt: skip
    cells: list[tuple[str, ...]] = [headings]
    for one in found:
        times_us = (one.mean_us, *one.percentiles_us.values(), one.max_us)
        cells.append(
            (
                one.name,
                str(one.runs),
                *(f"{us / 1e3:.3f}" for us in times_us),
                f"{one.throughput:.1f}",
                f"{one.cpu_s_per_run * 1e3:.2f}",
                f"{one.peak_mib:.0f}",
            )
        )
    lines = [table(cells), *(f"{one.name}: {one.setting}" for one in found if one.setting)]
    for name, ratio in ratios.items():
        interval = "" if ratio.interval is None else " ({:.3f} to {:.3f})".format(*ratio.interval)
        meaning = "the noise" if name == found[0].name + AGAIN else "below 1 it is faster"
        lines.append(f"{found[0].name} over {name}: {ratio.value:.3f}{interval}, {meaning}")
    if rate is not None and found[0].throughput < 0.95 * rate:
        lines.append(
            f"{rate:g} runs a second were requested, and {found[0].throughput:.1f} were done: runs "
            "wait for each other, so latencies grow with --duration"
        )
    return "\n".join(lines)
