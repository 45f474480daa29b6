"""Access control of the server: a token, and protection against requests from web pages.

A malicious web page can make the browser of its reader send requests to servers on the loopback
interface. The browser sets the headers `Host` and `Origin` of such a request, and a page cannot
change them. The server therefore checks both headers.
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
"""The HTTP paths that need no token.

A client without a token may use health probes, because they reveal only that a server is running.
The open port reveals this too.
"""
OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})
"""The gRPC methods that need no token: health probes, as in `OPEN_PATHS`."""
_FORMS = ("text/plain", "multipart/form-data")
"""The content types that are refused, because the form of any web page can send them.

A browser sends these types without asking the server first, and no client of the protocol uses
them. Forms can also send the type `application/x-www-form-urlencoded`. That type is allowed,
because `curl -d` sends it, and a form cannot produce JSON with it.
"""


_HOST = re.compile(r"[^\s@/?#\\]{1,300}")


class Access:
    """The access rules of a server.

    The rules come from the options `host`, `allowed_hosts`, `allowed_origins` and `token` of the
    server's `ServerConfig`.
    """

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
    def origins(self) -> frozenset[str]:
        """The origins of web pages that may use the server, in lower case; `*` for all."""
        return self._origins

    @property
    def wants_token(self) -> bool:
        """Whether clients need a token."""
        return self._token is not None

    def check_http(self, path: str, headers: Mapping[str, str]) -> None:
        """Check that an HTTP request is allowed.

        Parameters
        ----------
        path: path of the URL.
        headers: header values, keyed by name in lower case.

        Raises
        ------
        AccessError
            The request names another host, or comes from a web page of another origin.
        TokenError
            The token is missing or wrong.
        """
        host = headers.get("host")
        is_known = host is None or self._knows(host)
        if not is_known and self._checks_hosts:
            raise AccessError(
                f"`{cut(host)}` is not a name of this server; to allow this name, start the server "
                "with it in `allowed_hosts`"
            )
        origin = headers.get("origin")
        if origin is not None and not self._takes(origin, host if is_known else None):
            raise AccessError(
                f"pages of `{cut(origin)}` may not use this server; to allow these pages, start "
                "the server with their origin in `allowed_origins`"
            )
        if path not in OPEN_PATHS:
            self.check_token(headers.get("authorization"))

    def check_token(self, authorization: str | None) -> None:
        """Check the token of a request, if the server has one.

        Parameters
        ----------
        authorization: value of the HTTP header or of the gRPC metadata of this name.

        Raises
        ------
        TokenError
            The value is not `Bearer` followed by the token.
        """
        if self._token is None:
            return
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise TokenError("this server requires a token: send `Authorization: Bearer TOKEN`")
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token):
            raise TokenError("the token is wrong: send the token of this server")

    def _knows(self, header: str) -> bool:
        """Return whether a `Host` header names this server.

        An IP address is always accepted: in a DNS rebinding attack, `Host` contains the attacker's
        host name and never an address.
        """
        name, is_address = _host_of(header)
        return is_address or name in self._hosts

    def _takes(self, origin: str, host: str | None) -> bool:
        """Return whether web pages of an origin may use this server.

        The listed origins and the origin of this server itself are allowed.
        """
        origin = origin.lower()
        if "*" in self._origins or origin in self._origins:
            return True
        return host is not None and origin in (f"http://{host.lower()}", f"https://{host.lower()}")


def is_of_a_form(content_type: str) -> bool:
    """Return whether a form on a web page could send JSON text with this content type."""
    return content_type.partition(";")[0].strip().lower() in _FORMS


def is_loopback(host: str) -> bool:
    """Return whether a host is the loopback interface, which only this machine can reach."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def read_token(path: str | os.PathLike[str]) -> str:
    """Read the token from a file, without surrounding white space.

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
    """Check that a token can be sent in a header. The error message does not contain the token.

    Raises
    ------
    InputError
        The token is empty, or has characters other than visible ASCII characters.
    """
    if not isinstance(token, str) or not token or not all("!" <= c <= "~" for c in token):
        raise InputError(
            f"{origin} holds no token: it must be visible characters of ASCII without spaces"
        )


@functools.lru_cache(64)
def _host_of(header: str) -> tuple[str, bool]:
    """Return the name in a `Host` header without the port, and whether it is an IP address.

    The name is "" if the header is invalid.
    """
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
