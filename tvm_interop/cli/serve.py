"""The verb `tvm-interop serve`, which serves artifacts over HTTP and gRPC."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from . import options
from .flags import Flags, with_flags
from .names import POLICIES
from .quick_import import import_tvm_ffi

_TOKEN = "TVM_INTEROP_TOKEN"
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _policies_like(incomplete: str) -> list[str]:
    return [name for name in POLICIES if name.startswith(incomplete)]


Artifacts = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[MODEL.TAR]...", help="Artifacts that `compile` wrote.", show_default=False
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        help="The name of each artifact, in order; by default the file's name without `.tar`.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="SERVE.TOML",
        help="A file with options and models; options on the command line override the file's. See "
        "the documentation.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="A file with the token that clients must send as `Authorization: Bearer TOKEN`; by "
        f"default the token in the environment variable {_TOKEN}, if it is set.",
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Do not listen for HTTP.")]
NoGrpc = Annotated[bool, typer.Option("--no-grpc", help="Do not listen for gRPC.")]
LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level", help=f"How much to log: one of {', '.join(_LEVELS)}; info logs each request."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Threads of this process that run models; by default one for each core.",
    ),
]


@dataclass(frozen=True)
class ServerFlags(Flags):
    """The options of a server, under the names of the parameters of `Server`."""

    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="The address to listen on; by default 127.0.0.1. Without a token, everybody who "
            "can reach this address can use the models.",
        ),
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            help="A host name that clients may use for this server, besides IP addresses and "
            "localhost; may be given several times. By default, a server on the loopback "
            "address accepts no other name, and any other server accepts every name.",
        ),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="https://PAGE",
            help="Origin of web pages that may use this server; may be given several times.",
        ),
    ] = None
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port", help="Port for HTTP; by default 8000, and 0 takes any free port."
        ),
    ] = None
    grpc_port: Annotated[
        int | None,
        typer.Option(
            "--grpc-port", help="Port for gRPC; by default 8001, and 0 takes any free port."
        ),
    ] = None
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help=f"Policy that decides when requests run: one of {', '.join(POLICIES)}; by default "
            "auto, which simulates the other policies on the load that it sees.",
            autocompletion=_policies_like,
        ),
    ] = None
    instances: Annotated[
        int | None,
        typer.Option("--instances", min=1, help="How many batches run at once; by default 2."),
    ] = None
    max_batch: Annotated[
        int | None,
        typer.Option(
            "--max-batch",
            min=1,
            help="Largest number of rows in a batch of joined requests; by default 64.",
        ),
    ] = None
    max_delay_us: Annotated[
        float | None,
        typer.Option(
            "--max-delay-us",
            min=0,
            help="How long a request waits for other requests to join it, in microseconds; by "
            "default 0.",
        ),
    ] = None
    max_queue: Annotated[
        int | None,
        typer.Option(
            "--max-queue", min=1, help="How many requests of a model may wait; by default 64."
        ),
    ] = None
    model_folder: Annotated[
        Path | None,
        typer.Option(
            "--model-folder",
            help="Clients may load and unload the artifacts in this folder, which hold machine "
            "code; by default clients may load nothing.",
        ),
    ] = None
    trusted_keys: options.TrustedKeys = None
    drain_limit_s: Annotated[
        float | None,
        typer.Option(
            "--drain-limit-s",
            help="How many seconds after SIGTERM accepted requests may still run; by default 30.",
        ),
    ] = None

    def chosen(self) -> dict[str, Any]:
        """The options that were given; the configuration file or defaults supply the rest."""
        return {name: value for name, value in vars(self).items() if value is not None}


@with_flags
def serve_models(
    artifacts: Artifacts = None,
    names: Names = None,
    config: Config = None,
    token_file: TokenFile = None,
    no_http: NoHttp = False,
    no_grpc: NoGrpc = False,
    *,
    server: ServerFlags,
    log_level: LogLevel = "info",
    threads: Threads = None,
    verbose: options.Verbose = False,
) -> int:
    """Serve compiled models to clients of the Open Inference Protocol v2 (KServe, Triton).

    The server answers requests for health, metadata, inference, statistics, configuration, and
    /metrics for Prometheus. SIGTERM or Ctrl-C ends the server after it has served the requests that
    it accepted. The verb needs the extra `serve`.

    An artifact holds machine code, which runs with all your rights. Serve only artifacts whose
    origin you trust.
    """
    from ..execution.threads import set_num_threads
    from ..serving.server.server import Server, log_to_stderr

    if log_level not in _LEVELS:
        raise InputError(f"--log-level `{log_level}`: give one of {', '.join(_LEVELS)}")
    chosen = server.chosen()
    if no_http:
        chosen["http_port"] = None
    if no_grpc:
        chosen["grpc_port"] = None
    if threads is not None:
        set_num_threads(threads)
    chosen.update(_token(config, token_file))
    import_tvm_ffi()  # The simulators of the server's policies need tvm-ffi.
    served = Server(_named(artifacts or [], names or []), config, **chosen)
    log_to_stderr(_LEVELS[log_level])
    code = served.run()
    if code:
        # A run of a model has not ended, and may never end. A normal exit would wait for the thread
        # of this run. So the process exits without waiting.
        sys.stderr.flush()
        os._exit(code)
    return code


def _token(config: Path | None, token_file: Path | None) -> dict[str, Any]:
    """The token that clients must send, as a dictionary with the option of `Server` that holds it.

    The option `--token-file` comes first. Without it, the token is read from the configuration
    file. If the file has no token, the environment variable is read.
    """
    from ..serving.server.config import ServerConfig, read_config

    if token_file is not None:
        return {"token": None, "token_file": token_file}
    said = ServerConfig() if config is None else read_config(config)[0]
    if _TOKEN not in os.environ or said.token is not None or said.token_file is not None:
        return {}
    return {"token": os.environ[_TOKEN]}


def _named(artifacts: list[Path], names: list[str]) -> dict[str, Path]:
    """The paths of the artifacts, by the names that clients use for the models.

    Raises
    ------
    InputError
        There are more names than artifacts, or two artifacts have the same name.
    """
    if len(names) > len(artifacts):
        raise InputError(
            f"there are {len(names)} names for {len(artifacts)} artifacts; give at most one "
            "--name for each"
        )
    found: dict[str, Path] = {}
    for i, path in enumerate(artifacts):
        name = names[i] if i < len(names) else path.name.removesuffix(".tar")
        if name in found:
            raise InputError(f"two artifacts are called `{name}`; give them names with --name")
        found[name] = path
    return found
