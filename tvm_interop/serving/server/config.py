"""What a server is told: by a file, the command line or Python."""

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
    host: the address to listen on. Whoever can reach it can use the models, if there is no token.
    http_port, grpc_port: 0 for any that is free; None for none.
    token: what clients send as `Authorization: Bearer TOKEN`, over HTTP and gRPC; None for none.
    token_file: a file with the token, in place of `token`.
    allowed_hosts: names by which clients may call this server in `Host`, besides addresses,
        `localhost` and `host`; "*" for all. None for any name, where it listens beyond the
        loopback.
    allowed_origins: web pages that may use it, such as `https://page.example`; "*" for all.
    policy, instances, max_batch, max_delay_us, blocks, agents: see `Choice`.
    max_queue: how many requests of a model may wait.
    model_folder: clients may load and unload the artifacts `NAME.tar` in it, which hold machine
        code. None lets nobody, which is the default.
    trusted_keys: files of public keys, of which one must have signed each artifact that is loaded
        from a file; None for those that `TVM_INTEROP_TRUSTED_KEYS` names, if there are any.
    max_request_bytes: of the body of a request, of HTTP or gRPC.
    max_json_bytes: of what of it is JSON, or a message of gRPC without its raw tensors: reading
        these takes several times their bytes, where tensors in binary take none. A request has
        besides at most 1024 inputs and outputs, 32 dimensions of each, 1024 characters of a name,
        4096 objects, 4096 characters of a number and 128 kB of parameters.
    max_held_bytes: of the bodies of all requests that are read and served at once, over HTTP and
        gRPC; of a message of gRPC once it is there.
    max_connections: of HTTP, and requests of gRPC at once.
    receive_timeout_s, send_timeout_s: how long a client may take to send a request, and may stand
        still while it reads the answer.
    keep_alive_s: how long an idle connection stays open.
    drain_limit_s: how long a server that ends goes on with requests that it has taken.
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
            raise InputError("there is neither an HTTP nor a gRPC port; give one")
        if self.model_folder is not None and not Path(self.model_folder).is_dir():
            raise InputError(f"`model_folder` is `{self.model_folder}`, which is no folder")
        for name in ("allowed_hosts", "allowed_origins"):
            value = getattr(self, name)
            if value is not None and not _are_texts(value):
                raise InputError(f"`{name}` is {value!r}; it must be a list of names")
        if self.trusted_keys is not None and not _are_paths(self.trusted_keys):
            raise InputError(f"`trusted_keys` is {self.trusted_keys!r}; it must be a list of files")
        if self.token is not None and self.token_file is not None:
            raise InputError("there are a `token` and a `token_file`; give one")
        if self.token is not None:
            check_is_token(self.token, "`token`")
        self.choice.make()

    @property
    def access(self) -> Access:
        """Who may use it; reads `token_file`."""
        token = self.token if self.token_file is None else read_token(self.token_file)
        return Access(self.host, self.allowed_hosts, self.allowed_origins, token)

    @property
    def choice(self) -> Choice:
        """The policy."""
        return Choice(
            self.policy, self.instances, self.max_batch, self.max_delay_us, self.blocks, self.agents
        )


def _are_texts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value)


def _are_paths(value: object) -> bool:
    kinds = (str, os.PathLike)
    return isinstance(value, (list, tuple)) and all(isinstance(path, kinds) for path in value)


def with_options(config: ServerConfig, options: Mapping[str, Any], origin: str) -> ServerConfig:
    """The same with other options; `origin` says in messages where they come from.

    Raises
    ------
    InputError
        There is no option of that name, or it cannot be that.
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
    """Options and models from a TOML file: options by name, and a table `[models]`.

    Paths in it are relative to its folder; `http_port = false` stands for none.

    Raises
    ------
    InputError
        It cannot be read, is no TOML, or has something in it that there is not.
    """
    path = Path(path)
    try:
        text = path.read_bytes()
        table: dict[str, Any] = msgspec.toml.decode(text, type=dict[str, Any])
    except OSError as error:
        raise InputError(f"cannot read `{path}`: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"`{path}` is no TOML file: {error}") from None
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
