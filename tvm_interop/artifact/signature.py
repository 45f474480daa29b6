"""Signs artifacts with Ed25519, and verifies their signatures.

The signature lies in a file beside its artifact. It signs the SHA-256 of the whole artifact file,
so a changed or added byte makes it invalid. To verify a signature, `load` computes this digest
while it reads the artifact, and raises an error if the digest differs from the signed one. Weights
are mapped into memory later, but `load` has then read their bytes too, so they are verified.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..atomic_file import replacing
from ..errors import ArtifactError, InputError

SUFFIX = ".sig"
_CHUNK = 2**20
_MOST_BYTES = 4096
"""The most bytes that are read from a signature file."""


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    signature: str
    format: Literal["tvm_interop.signature"] = "tvm_interop.signature"
    version: Literal[1] = 1

    def signed(self) -> bytes:
        """The bytes that `sign` signs: the format's name and version, and the artifact's digest.

        The signed bytes begin with the name of the format. So if the same key also signs data of
        another format, the signature of that data is never valid for an artifact.
        """
        return f"{self.format} {self.version}\n{self.sha256}\n".encode()


def sign(path: str | os.PathLike[str], key: str | os.PathLike[str]) -> Path:
    """Sign the artifact at `path`, and return the path of the signature file, `path` plus `.sig`.

    Parameters
    ----------
    key: a file with a private Ed25519 key in PEM, as `openssl genpkey -algorithm ed25519` writes.

    Raises
    ------
    InputError
        The file `key` holds no private Ed25519 key, or the package `cryptography` is not installed
        (extra `sign`).
    ArtifactError
        There is no file at `path`.
    """
    private = _key(key, "private")
    summed = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                summed.update(chunk)
    except OSError as error:
        raise ArtifactError(f"`{path}` cannot be read: {error.strerror or error}") from error
    digest = summed.hexdigest()
    unsigned = _Signature(digest, "")
    signature = base64.b64encode(private.sign(unsigned.signed())).decode()
    made = Path(f"{os.fspath(path)}{SUFFIX}")
    with replacing(made) as temporary:
        Path(temporary).write_bytes(msgspec.json.encode(_Signature(digest, signature)) + b"\n")
    return made


def signed_sha256(path: str | os.PathLike[str], keys: Sequence[str | os.PathLike[str]]) -> str:
    """Return the digest of the artifact at `path` that one of `keys` has signed.

    Parameters
    ----------
    keys: files with a public Ed25519 key each, in PEM, as `openssl pkey -pubout` writes.

    Raises
    ------
    ArtifactError
        There is no readable signature, or it was made with none of `keys`.
    InputError
        A file holds no public Ed25519 key, or the package `cryptography` is not installed (extra
        `sign`).
    """
    known = [_key(key, "public") for key in keys]
    from cryptography.exceptions import InvalidSignature

    beside = f"{os.fspath(path)}{SUFFIX}"
    try:
        with open(beside, "rb") as file:
            found = msgspec.json.decode(file.read(_MOST_BYTES + 1)[:_MOST_BYTES], type=_Signature)
        signature = base64.b64decode(found.signature, validate=True)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"it has no signature `{beside}`, and only signed artifacts are trusted; sign it with "
            "`tvm-interop sign`"
        ) from error
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise ArtifactError(f"its signature `{beside}` cannot be read: {error}") from error
    for key in known:
        try:
            key.verify(signature, found.signed())
        except InvalidSignature:
            continue
        return found.sha256
    shown = ", ".join(f"`{os.fspath(key)}`" for key in keys)
    raise ArtifactError(f"its signature `{beside}` was made with none of the keys {shown}")


def _key(path: str | os.PathLike[str], kind: Literal["private", "public"]) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise InputError(
            "signatures need `cryptography`: `pip install tvm-interop[sign]`"
        ) from error
    try:
        data = Path(path).read_bytes()
        key = (
            serialization.load_pem_private_key(data, password=None)
            if kind == "private"
            else serialization.load_pem_public_key(data)
        )
    except OSError as error:
        raise InputError(f"key `{path}` cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise InputError(
            f"`{path}` holds no {kind} key in PEM without a password: {error}"
        ) from error
    wanted = ed25519.Ed25519PrivateKey if kind == "private" else ed25519.Ed25519PublicKey
    if not isinstance(key, wanted):
        raise InputError(f"key `{path}` is of another kind than Ed25519; give an Ed25519 key")
    return key
