"""The verbs `tvm-interop sign` and `verify`, for the signatures of artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ArtifactPath = Annotated[
    Path, typer.Argument(metavar="ARTIFACT", help="An artifact that `compile` wrote.")
]


def sign_artifact(
    artifact: ArtifactPath,
    key: Annotated[
        Path,
        typer.Option(
            "--key", help="A private Ed25519 key, made with `openssl genpkey -algorithm ed25519`."
        ),
    ],
) -> None:
    """Check an artifact and sign it; the signature is written beside it, as ARTIFACT.sig.

    With the public key (`openssl pkey -in KEY -pubout`), users can refuse to run artifacts that the
    key did not sign. They give the public key to `run --trusted-key`, to
    `load(..., trusted_keys=...)`, or in the environment variable TVM_INTEROP_TRUSTED_KEYS, which
    `serve` reads as well.
    """
    from ..artifact.artifact import load
    from ..artifact.signature import sign

    load(artifact, kernels=False)
    typer.echo(f"signed: {sign(artifact, key)}")


def verify_artifact(
    artifact: ArtifactPath,
    trusted_key: Annotated[
        list[Path],
        typer.Option("--trusted-key", help="A public Ed25519 key; may be given several times."),
    ],
) -> None:
    """Check that one of the given keys signed an artifact, and that the artifact is undamaged.

    Nothing in the artifact is run.
    """
    from ..artifact.artifact import load

    load(artifact, kernels=False, trusted_keys=trusted_key)
    typer.echo(f"`{artifact}` is signed by one of the given keys, and undamaged")
