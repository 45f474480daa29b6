"""Artifacts of models that were given as they are: compiled once, and kept for the next time.

An artifact holds machine code. So the folder is made for its owner alone, and a file that somebody
else could have written is not used (see `ownership`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from ..artifact.artifact import Artifact, load
from ..errors import ArtifactError, InputError
from ..measure.kept_files import kept_beside
from ..ownership import TRUSTED_FOLDERS, make_own_folder, why_not_trusted

_LOG = logging.getLogger("tvm_interop")

_FOLDER = "artifacts"
MAX_BYTES = 8 << 30
"""Of all kept artifacts together; those that were not used for the longest go first."""


class KeptArtifacts:
    """Artifacts by key, in a folder that several processes may share.

    Each is whole or not there, and its own digests show damage: one that is damaged is compiled
    anew. Keeping is never needed: where the folder cannot be used, that is logged.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        """Nothing is made yet."""
        self.folder = Path(folder)
        self._max_bytes = max_bytes

    def path_of(self, name: str, key: str) -> Path:
        """Where the artifact of that key is, or will be; `name` is for people who look there."""
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60]
        return self.folder / f"{readable}-{key[:16]}.tar"

    def find(self, name: str, key: str) -> Artifact | None:
        """The artifact that was kept; None where there is none that may be used."""
        path = self.path_of(name, key)
        if not path.is_file():
            return None
        reason = why_not_trusted(path)
        if reason is not None:
            self._tell_untrusted(reason)
            return None
        try:
            artifact = load(path, trusted_keys=())  # We made it: nobody signed it.
        except ArtifactError as error:
            _LOG.warning("%s; the model is compiled again", error)
            return None
        artifact.from_elsewhere = False  # It was made here, as it is asked for now.
        with contextlib.suppress(OSError):
            os.utime(path)  # Those that are used go last.
        return artifact

    def keep(self, name: str, key: str, artifact: Artifact) -> Path | None:
        """Write the artifact there; where to, None if that cannot be."""
        reason = why_not_trusted(self.folder)
        if reason is None:
            try:
                make_own_folder(self.folder)
                # Somebody else may have made it meanwhile.
                reason = why_not_trusted(self.folder)
                if reason is None:
                    path = self.path_of(name, key)
                    artifact.save(path)
                    self._trim(path)
                    return path
            except (OSError, InputError) as error:
                _LOG.warning("the artifact is not kept in `%s`: %s", self.folder, error)
                return None
        self._tell_untrusted(reason)
        return None

    def _tell_untrusted(self, reason: str) -> None:
        _LOG.warning(
            "no artifact is written to or read from `%s`: %s; make the folder yours alone, or name "
            "the folder in %s",
            self.folder,
            reason,
            TRUSTED_FOLDERS,
        )

    def _trim(self, newest: Path) -> None:
        found = []
        for path in self.folder.glob("*.tar"):
            with contextlib.suppress(OSError):  # Another process may remove it meanwhile.
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        nbytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if nbytes <= self._max_bytes:
                return
            if path != newest:
                with contextlib.suppress(OSError):
                    path.unlink()
                    nbytes -= size


def kept_artifacts(latency_db: str | os.PathLike[str] | None) -> KeptArtifacts | None:
    """The folder beside what else is kept (see `measure.kept_files.kept_beside`); None: none is."""
    beside = kept_beside(latency_db)
    return None if beside is None else KeptArtifacts(beside.folder / _FOLDER)


def key_of(model_digest: str, options: Mapping[str, Any]) -> str:
    """A digest of all that an artifact depends on: model, options, this machine, our own code.

    Of the machine that is the processor, and how many of its cores this process may use.

    Parameters
    ----------
    options: what `compile` is given, but for what changes nothing in the artifact.
    """
    from .._native.cpu import num_threads
    from .._native.tvm_runtime import tvm_version
    from ..machine.cpu_name import cpu_model
    from ..machine.kernel_libraries import TVM, library_version, provider_names

    libraries = {name: library_version(name) for name in provider_names("cpu") if name != TVM}
    facts = [
        model_digest,
        sorted((name, repr(value)) for name, value in options.items()),
        [cpu_model(), num_threads()],
        libraries,
        [__version__, tvm_version(), _code_digest()],
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@functools.cache
def _code_digest() -> str:
    """A digest of our Python code: what it would compile today."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
