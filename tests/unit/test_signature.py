"""Tests trusted keys: an artifact is loaded only if one of the given keys signed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

import tvm_interop
from tests import nets
from tvm_interop.artifact.signature import sign
from tvm_interop.cli.app import run_app
from tvm_interop.errors import ArtifactError, InputError
from tvm_interop.serving import Server
from tvm_interop.serving.server.config import ServerConfig


def write_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a private key and its public key, and return the paths of both files."""
    private = ed25519.Ed25519PrivateKey.generate()
    (secret := folder / f"{name}.pem").write_bytes(_pem(private))
    (known := folder / f"{name}.pub").write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return secret, known


def _pem(private: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey) -> bytes:
    return private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = tvm_interop.compile(nets.chain(), scheduler="sequential", latency_db=":memory:")
    made.save(tmp_path / "model.tar")
    return tmp_path / "model.tar"


def test_a_signed_artifact_is_loaded(model: Path, tmp_path: Path) -> None:
    secret, known = write_keys(tmp_path, "mine")
    _, other = write_keys(tmp_path, "other")
    assert sign(model, secret) == tmp_path / "model.tar.sig"
    assert tvm_interop.load(model, trusted_keys=[other, known]).kernels is not None
    with pytest.raises(ArtifactError, match="made with none of the keys"):
        tvm_interop.load(model, trusted_keys=[other])


def test_what_is_not_signed_is_refused_where_keys_are_trusted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, known = write_keys(tmp_path, "mine")
    with pytest.raises(ArtifactError, match="has no signature"):
        tvm_interop.load(model, trusted_keys=[known])
    monkeypatch.setenv("TVM_INTEROP_TRUSTED_KEYS", str(known))
    with pytest.raises(ArtifactError, match="has no signature"):
        tvm_interop.load(model)
    # Without kernels no code of the artifact can run, so no signature is needed.
    assert tvm_interop.load(model, kernels=False).kernels is None


@pytest.mark.parametrize("place", [600, -2000])
def test_any_other_byte_is_refused(model: Path, tmp_path: Path, place: int) -> None:
    """A byte is changed in the first member of the archive, or after the last member."""
    secret, known = write_keys(tmp_path, "mine")
    sign(model, secret)
    data = bytearray(model.read_bytes())
    data[place] ^= 1
    model.write_bytes(data)
    with pytest.raises(ArtifactError):
        tvm_interop.load(model, trusted_keys=[known])


def test_the_signature_of_another_artifact_is_refused(model: Path, tmp_path: Path) -> None:
    secret, known = write_keys(tmp_path, "mine")
    (other := tmp_path / "other.tar").write_bytes(model.read_bytes() + bytes(512))
    sign(other, secret).replace(tmp_path / "model.tar.sig")
    with pytest.raises(ArtifactError, match="is not the file that you mean"):
        tvm_interop.load(model, trusted_keys=[known])


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"\xff", b'{"sha256":"a","signature":"!"}', b"[" * 100_000]
)
def test_a_signature_that_is_none_is_refused(model: Path, tmp_path: Path, text: bytes) -> None:
    _, known = write_keys(tmp_path, "mine")
    (tmp_path / "model.tar.sig").write_bytes(text)
    with pytest.raises(ArtifactError, match="signature"):
        tvm_interop.load(model, trusted_keys=[known])


def test_keys_of_other_kinds_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    (odd := tmp_path / "rsa.pem").write_bytes(_pem(rsa.generate_private_key(65537, 2048)))
    (text := tmp_path / "text.pem").write_text("no key")
    with pytest.raises(InputError, match=r"`.*rsa.pem` is of another kind than Ed25519"):
        sign(model, odd)
    with pytest.raises(InputError, match=r"`.*text.pem` holds no private key"):
        sign(model, text)
    with pytest.raises(InputError, match=r"`.*none.pem` cannot be read"):
        sign(model, tmp_path / "none.pem")


def test_the_command_line_signs_verifies_and_runs(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, known = write_keys(tmp_path, "mine")
    assert run_app(["verify", str(model), "--trusted-key", str(known)]) == 2
    assert "has no signature" in capsys.readouterr().err
    assert run_app(["sign", str(model), "--key", str(secret)]) == 0
    assert run_app(["verify", str(model), "--trusted-key", str(known)]) == 0
    assert run_app(["run", str(model), "--trusted-key", str(known)]) == 0
    shown = ["-o", str(tmp_path / "shown.svg"), "--runs", "1"]
    assert run_app(["show", str(model), *shown, "--trusted-key", str(known)]) == 0
    _, other = write_keys(tmp_path, "other")
    for verb in (["run"], ["show", *shown], ["serve", "--http-port", "0", "--grpc-port", "0"]):
        assert run_app([*verb, str(model), "--trusted-key", str(other)]) == 2, verb
        assert "made with none of the keys" in capsys.readouterr().err


def test_a_server_loads_only_what_is_signed(model: Path, tmp_path: Path) -> None:
    secret, known = write_keys(tmp_path, "mine")
    options = {"http_port": 0, "grpc_port": None, "model_folder": tmp_path}
    with pytest.raises(ArtifactError, match="has no signature"):
        Server({"net": model}, trusted_keys=[known], **options).start()
    sign(model, secret)
    (tmp_path / "serve.toml").write_text('trusted_keys = ["mine.pub"]\nhttp_port = 0\n')
    with Server({"net": model}, tmp_path / "serve.toml", grpc_port=None) as server:
        assert server.service is not None
        assert server.service.is_model_ready("net")
    with pytest.raises(InputError, match="it must be a list of files"):
        ServerConfig(trusted_keys="mine.pub")
