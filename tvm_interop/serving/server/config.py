"""The options of a server, which come from a file, the command line or Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from ...errors import InputError, did_you_mean
from ...plain_data import is_finite, is_whole
from ..policy import Policy
from .access import Access, check_is_token, read_token
from .choice import Choice


@dataclass(frozen=True)
class ServerConfig:
    """Options of a server.

    Attributes
    ----------
    host: address to listen on. Without a token, everyone who can reach the address can use the
        models.
    http_port, grpc_port: port number; 0 for any free port; None to turn the protocol off.
    token: token that clients must send as `Authorization: Bearer TOKEN`, over HTTP and gRPC; None
        if clients need no token.
    token_file: file with the token, as an alternative to `token`.
    allowed_hosts: host names that clients may send in the header `Host`, in addition to IP
        addresses, `localhost` and `host`; "*" for all names. None allows any name if the server
        listens beyond the loopback interface.
    allowed_origins: origins of web pages that may use the server, such as `https://page.example`;
        "*" for all.
    policy, instances, max_batch, max_delay_us, blocks, agents: see `Choice`.
    max_queue: maximum number of waiting requests per model.
    model_folder: folder of artifacts `NAME.tar` that clients may load and unload. Artifacts contain
        machine code. With None, the default, clients can load nothing.
    trusted_keys: files of public keys. Each artifact that is loaded from a file must be signed with
        one of these keys. None for the keys that `TVM_INTEROP_TRUSTED_KEYS` names, if any.
    max_request_bytes: maximum size of the body of an HTTP request, or of a gRPC message.
    max_json_bytes: maximum size of the JSON in a request. For gRPC, it limits the total size of the
        numbers outside of raw tensors in a message. Each byte of such an integer or BOOL counts as
        four bytes. The limit exists because decoding JSON and such numbers takes several times
        their size in memory. Raw tensors take no extra memory. Fixed limits for each request are
        1024 inputs, 1024 outputs, 32 dimensions per tensor, 1024 characters per name, 4096 JSON
        objects, 4096 characters per number, and 128 KiB of parameters.
    max_held_bytes: maximum total size of the bodies of all requests that are being read or served,
        over HTTP and gRPC. A gRPC message counts once it has arrived completely.
    max_connections: maximum number of HTTP connections, and of concurrent gRPC calls.
    receive_timeout_s: maximum time in which a client must send a request.
    send_timeout_s: maximum time for which a client may stop reading an answer.
    keep_alive_s: time after which an idle connection is closed.
    drain_limit_s: maximum time for which a server that is stopping serves accepted requests.
    """

    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    token: str | None = field(default=None, repr=False)
    token_file: str | os.PathLike[str] | None = None
    allowed_hosts: Sequence[str] | None = None
    allowed_origins: Sequence[str] = ()
    policy: str | Callable[[], Policy] = "auto"
    instances: int = 2
    max_batch: int = 64
    max_delay_us: float = 0.0
    blocks: int = 4
    agents: str | os.PathLike[str] | None = None
    max_queue: int = 64
    model_folder: str | os.PathLike[str] | None = None
    trusted_keys: Sequence[str | os.PathLike[str]] | None = None
    max_request_bytes: int = 64 * 2**20
    max_json_bytes: int = 16 * 2**20
    max_held_bytes: int = 2**30
    max_connections: int = 1000
    receive_timeout_s: float = 30.0
    send_timeout_s: float = 30.0
    keep_alive_s: float = 60.0
    drain_limit_s: float = 30.0

    def __post_init__(self) -> None:
        for name in (
            "instances",
            "blocks",
            "max_batch",
            "max_queue",
            "max_request_bytes",
            "max_json_bytes",
            "max_held_bytes",
            "max_connections",
        ):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise InputError(f"`{name}` is {value!r}; it must be a whole number, 1 or more")
        for name in ("http_port", "grpc_port"):
            value = getattr(self, name)
            if value is not None and (not is_whole(value) or not 0 <= value <= 65535):
                raise InputError(f"`{name}` is {value!r}; it must be from 0 to 65535")
        for name in ("receive_timeout_s", "send_timeout_s", "keep_alive_s", "drain_limit_s"):
            value = getattr(self, name)
            if not is_finite(value) or value <= 0:
                raise InputError(f"`{name}` is {value!r}; it must be seconds, above 0")
        if not is_finite(self.max_delay_us) or self.max_delay_us < 0:
            raise InputError(f"`max_delay_us` is {self.max_delay_us!r}; it must be 0 or more")
        if not isinstance(self.host, str) or not self.host:
            raise InputError(f"`host` is {self.host!r}; give an address, such as 127.0.0.1")
        if self.http_port is None and self.grpc_port is None:
            raise InputError("HTTP and gRPC are both turned off; set `http_port` or `grpc_port`")
        if self.model_folder is not None and not Path(self.model_folder).is_dir():
            raise InputError(
                f"`model_folder` is `{self.model_folder}`, which is not a folder; give a folder"
            )
        for name in ("allowed_hosts", "allowed_origins"):
            value = getattr(self, name)
            if value is not None and not _are_texts(value):
                raise InputError(f"`{name}` is {value!r}; it must be a list of names")
        if self.trusted_keys is not None and not _are_paths(self.trusted_keys):
            raise InputError(f"`trusted_keys` is {self.trusted_keys!r}; it must be a list of files")
        if self.token is not None and self.token_file is not None:
            raise InputError("both `token` and `token_file` are given; give one of them")
        if self.token is not None:
            check_is_token(self.token, "`token`")
        self.choice.make()

    @property
    def access(self) -> Access:
        """The access rules. The file `token_file` is read each time this property is used."""
        token = self.token if self.token_file is None else read_token(self.token_file)
        return Access(self.host, self.allowed_hosts, self.allowed_origins, token)

    @property
    def choice(self) -> Choice:
        """The policy and its options, as a `Choice`."""
        return Choice(
            self.policy, self.instances, self.max_batch, self.max_delay_us, self.blocks, self.agents
        )


def _are_texts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value)


def _are_paths(value: object) -> bool:
    kinds = (str, os.PathLike)
    return isinstance(value, (list, tuple)) and all(isinstance(path, kinds) for path in value)


def with_options(config: ServerConfig, options: Mapping[str, Any], origin: str) -> ServerConfig:
    """Return a copy of a configuration with some options replaced.

    Parameters
    ----------
    origin: where the options come from, for error messages.

    Raises
    ------
    InputError
        An option does not exist, or its value is invalid.
    """
    known = [field.name for field in fields(ServerConfig)]
    for name in options:
        if name not in known:
            raise InputError(
                f"{origin} has no option `{name}`{did_you_mean(name, known)}; the options are "
                f"{', '.join(known)}"
            )
    return replace(config, **options)


def read_config(path: str | os.PathLike[str]) -> tuple[ServerConfig, dict[str, Path]]:
    """Read options and models from a TOML file.

    The file holds options by name, and a table `[models]` of model names and artifact paths. Paths
    are relative to the folder of the file. `http_port = false` turns HTTP off, and
    `grpc_port = false` turns gRPC off.

    Raises
    ------
    InputError
        The file cannot be read, is not valid TOML, or has an unknown or invalid option.
    """
    path = Path(path)
    try:
        text = path.read_bytes()
        table: dict[str, Any] = msgspec.toml.decode(text, type=dict[str, Any])
    except OSError as error:
        raise InputError(f"cannot read `{path}`: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"`{path}` is not a TOML file: {error}") from None
    models = table.pop("models", {})
    if not isinstance(models, dict) or not all(isinstance(p, str) for p in models.values()):
        raise InputError(f'`[models]` of `{path}` must be lines such as name = "model.tar"')
    for port in ("http_port", "grpc_port"):
        if table.get(port) is False:
            table[port] = None
    for option in ("model_folder", "agents", "token_file"):
        if isinstance(table.get(option), str):
            table[option] = path.parent / table[option]
    if _are_texts(table.get("trusted_keys")):
        table["trusted_keys"] = [path.parent / key for key in table["trusted_keys"]]
    config = with_options(ServerConfig(), table, f"`{path}`")
    return config, {name: path.parent / model for name, model in models.items()}
