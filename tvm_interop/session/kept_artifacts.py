"""A folder in which sessions store the artifacts of models that they compiled.

An artifact contains machine code. So only the owner can access the folder, and a file that another
user could have written is not used (see `ownership`).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from ..artifact.artifact import Artifact, load
from ..atomic_file import replacing
from ..errors import ArtifactError, CannotFillUpError, InputError
from ..measure.kept_files import kept_beside
from ..ownership import TRUSTED_FOLDERS, make_own_folder, why_not_trusted

_LOG = logging.getLogger("tvm_interop")

_FOLDER = "artifacts"
_REFUSED = ".refused.json"
"""File name suffix for the reason why a model cannot be compiled for ranges of sizes."""
_KERNELS = ".kernels.json"
"""File name suffix for lists of the kernels that were chosen for a model, by its inputs' shapes."""
_LOCK = ".compiling"
"""Name of the file that a process locks while it compiles in the background."""
MAX_BYTES = 8 << 30
"""The largest total size of the stored artifacts, in bytes.

The least recently used artifacts are deleted first.
"""


class KeptArtifacts:
    """Stores artifacts by key, in a folder that several processes may share.

    Files are written atomically. The digests in an artifact reveal damage, and a damaged artifact
    is ignored, so the model is compiled again. If the folder cannot be used, a warning is logged
    and nothing is stored.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        """Use the folder `folder`, which is created when the first artifact is stored."""
        self.folder = Path(folder)
        self._max_bytes = max_bytes

    def path_of(self, name: str, key: str) -> Path:
        """Return the path for the artifact of a key; `name` makes the file name readable."""
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60]
        return self.folder / f"{readable}-{key[:16]}.tar"

    def has(self, name: str, key: str) -> bool:
        """Whether there is a file for the artifact of a key."""
        return self.path_of(name, key).is_file()

    def find(self, name: str, key: str) -> Artifact | None:
        """Return the stored artifact of a key, or None if it is missing or may not be used."""
        path = self.path_of(name, key)
        if not path.is_file():
            return None
        reason = why_not_trusted(path)
        if reason is not None:
            self._tell_untrusted(reason)
            return None
        try:
            artifact = load(path, trusted_keys=())  # Stored artifacts have no signature.
        except ArtifactError as error:
            _LOG.warning("%s; the model is compiled again", error)
            return None
        artifact.from_elsewhere = False  # Do not warn: this machine has compiled the artifact.
        with contextlib.suppress(OSError):
            os.utime(path)  # Mark the file as used, so that it is deleted last.
        return artifact

    def keep(self, name: str, key: str, artifact: Artifact) -> Path | None:
        """Store an artifact and return its path, or None if it cannot be stored."""
        reason = why_not_trusted(self.folder)
        if reason is None:
            try:
                make_own_folder(self.folder)
                # Check the folder's owner again, because another user may have created the folder
                # meanwhile.
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

    def find_refusal(self, name: str, key: str) -> CannotFillUpError | None:
        """Return the stored error of a compilation for ranges of sizes; None if there is none."""
        stored = _read_small(self.path_of(name, key).with_suffix(_REFUSED))
        if stored is None:
            return None
        try:
            found = json.loads(stored)
            return CannotFillUpError(str(found["why"]), str(found["advice"]))
        except (ValueError, KeyError, TypeError):
            return None  # The file is unreadable; the next compilation raises the error again.

    def keep_refusal(self, name: str, key: str, error: CannotFillUpError) -> None:
        """Store the error of a compilation for ranges of sizes, so that later sessions find it."""
        told = json.dumps({"why": error.why, "advice": error.advice})
        self._write_small(self.path_of(name, key).with_suffix(_REFUSED), told.encode())

    def find_kernels(self, name: str, key: str) -> bytes | None:
        """Return the stored list of chosen kernels (see `KnownKernels`); None if there is none."""
        return _read_small(self.path_of(name, key).with_suffix(_KERNELS))

    def keep_kernels(self, name: str, key: str, entries: bytes) -> None:
        """Store a list of chosen kernels."""
        self._write_small(self.path_of(name, key).with_suffix(_KERNELS), entries)

    def _write_small(self, path: Path, data: bytes) -> None:
        """Write a file that only saves time in later sessions. If this fails, do nothing."""
        if why_not_trusted(self.folder) is None:
            with contextlib.suppress(OSError):
                make_own_folder(self.folder)
                with replacing(path) as temporary:
                    Path(temporary).write_bytes(data)

    @contextlib.contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Wait for other processes that compile in the background for this folder.

        Waiting makes sure that equal models are compiled only once, and that measurements do not
        disturb each other. The system ends the wait when the other process ends, even if it is
        killed. If the folder cannot be used, the function does not wait.
        """
        with contextlib.ExitStack() as held:
            if why_not_trusted(self.folder) is None:
                with contextlib.suppress(OSError):
                    make_own_folder(self.folder)
                    how = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
                    lock = os.open(self.folder / _LOCK, how, 0o600)
                    held.callback(os.close, lock)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield

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
            with contextlib.suppress(OSError):  # Another process may have deleted the file.
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


def _read_small(path: Path) -> bytes | None:
    """Read a file that `_write_small` wrote; None if it is missing or may not be used."""
    if not path.is_file() or why_not_trusted(path) is not None:
        return None
    try:
        return path.read_bytes()
    except OSError:
        return None  # Another process may have deleted the file.


def kept_artifacts(latency_db: str | os.PathLike[str] | None) -> KeptArtifacts | None:
    """Return the store of artifacts, in a folder beside the database of latencies.

    Return None if nothing is to be stored (see `measure.kept_files.kept_beside`).
    """
    beside = kept_beside(latency_db)
    return None if beside is None else KeptArtifacts(beside.folder / _FOLDER)


def key_of(model_digest: str, options: Mapping[str, Any]) -> str:
    """Return a digest of everything that an artifact depends on.

    An artifact depends on the model, the options, the CPU, the number of threads of this process,
    the versions of kernel libraries and of TVM, and this package's code.

    Parameters
    ----------
    model_digest: the digest of the model's content.
    options: the options of `compile` that affect the artifact.
    """
    from .._native.runtime import num_threads
    from ..machine.cpu_name import cpu_model
    from ..machine.kernel_libraries import TVM, library_identity, provider_names

    libraries = {name: library_identity(name) for name in provider_names("cpu") if name != TVM}
    facts = [
        model_digest,
        sorted((name, repr(value)) for name, value in options.items()),
        [cpu_model(), num_threads()],
        libraries,
        [__version__, _tvm_version(), _code_digest()],
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _tvm_version() -> str:
    try:
        # Read the version from the package's metadata, because importing TVM takes seconds.
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        from .._native.tvm_runtime import tvm_version

        return tvm_version()


@functools.cache
def _code_digest() -> str:
    """Return a digest of this package's Python code, on which compiled artifacts depend."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
