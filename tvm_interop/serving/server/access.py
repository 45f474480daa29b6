"""Who may use a server: a token, and what keeps web pages out.

A web page of anybody can make its reader's browser send requests to servers on the loopback.
What the browser says of such a request in `Host` and `Origin` no page can change.
"""

from __future__ import annotations

import functools
import hmac
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ...errors import AccessError, InputError, TokenError, cut

OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})
"""Probes need no token: they say whether there is a server, which a port says too."""
OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})
"""The same of gRPC."""
_FORMS = ("text/plain", "multipart/form-data")
"""What a browser sends from any page without asking the server first, and no client of the
protocol sends. `curl -d` says `application/x-www-form-urlencoded`, which forms cannot make JSON."""


_HOST = re.compile(r"[^\s@/?#\\]{1,300}")


class Access:
    """What `host`, `allowed_hosts`, `allowed_origins` and `token` of a `ServerConfig` allow."""

    def __init__(
        self,
        host: str,
        allowed_hosts: Iterable[str] | None,
        allowed_origins: Iterable[str],
        token: str | None,
    ) -> None:
        self._hosts = {host.lower(), "localhost", *(name.lower() for name in allowed_hosts or ())}
        is_limited = allowed_hosts is not None or is_loopback(host)
        self._checks_hosts = is_limited and "*" not in self._hosts
        self._origins = frozenset(origin.lower().rstrip("/") for origin in allowed_origins)
        self._token = None if token is None else token.encode()

    @property
    def wants_token(self) -> bool:
        """Whether clients need one."""
        return self._token is not None

    def check_http(self, path: str, headers: Mapping[str, str]) -> None:
        """Refuse a request that nobody who may has sent.

        Parameters
        ----------
        headers: by name in lower case.

        Raises
        ------
        AccessError
            It is for a host that is not this one, or from a web page of another.
        TokenError
            It has not the token.
        """
        host = headers.get("host")
        is_known = host is None or self._knows(host)
        if not is_known and self._checks_hosts:
            raise AccessError(
                f"this server is not `{cut(host)}`; if it is, start it with that name in "
                "`allowed_hosts`"
            )
        origin = headers.get("origin")
        if origin is not None and not self._takes(origin, host if is_known else None):
            raise AccessError(
                f"pages of `{cut(origin)}` may not use this server; if they may, start it with "
                "that origin in `allowed_origins`"
            )
        if path not in OPEN_PATHS:
            self.check_token(headers.get("authorization"))

    def check_token(self, authorization: str | None) -> None:
        """Refuse what comes without the token, if there is one.

        Parameters
        ----------
        authorization: the header, or metadata of gRPC, of that name.

        Raises
        ------
        TokenError
            It is not `Bearer` and the token.
        """
        if self._token is None:
            return
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise TokenError("this server wants its token: send `Authorization: Bearer TOKEN`")
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token):
            raise TokenError("that is not the token of this server")

    def _knows(self, header: str) -> bool:
        """Whether a `Host` is one that no page can have made its own name.

        An address is always: a page that came from a name has that name in its `Host`.
        """
        name, is_address = _host_of(header)
        return is_address or name in self._hosts

    def _takes(self, origin: str, host: str | None) -> bool:
        """Whether pages of this origin may ask: a listed one, or one that this server has sent."""
        origin = origin.lower()
        if "*" in self._origins or origin in self._origins:
            return True
        return host is not None and origin in (f"http://{host.lower()}", f"https://{host.lower()}")


def is_of_a_form(content_type: str) -> bool:
    """Whether a form of a web page may have sent a body of this type, and JSON in it."""
    return content_type.partition(";")[0].strip().lower() in _FORMS


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def read_token(path: str | os.PathLike[str]) -> str:
    """The token that a file holds, without white space around it.

    Raises
    ------
    InputError
        The file cannot be read, or holds no token.
    """
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token from `{path}`: {error}") from None
    check_is_token(token, f"`{path}`")
    return token


def check_is_token(token: object, origin: str) -> None:
    """Refuse what cannot be sent as a token. The message does not repeat it.

    Raises
    ------
    InputError
        It is empty, or has characters that a header does not take.
    """
    if not isinstance(token, str) or not token or not all("!" <= c <= "~" for c in token):
        raise InputError(
            f"{origin} holds no token: it must be visible characters of ASCII without spaces"
        )


@functools.lru_cache(64)
def _host_of(header: str) -> tuple[str, bool]:
    """The name in a `Host`, without its port, and whether it is an address; "" for what is none."""
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return "", False
    if not _HOST.fullmatch(header):
        return "", False
    return name, _address(name) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
