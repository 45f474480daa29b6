"""The models that a server can load, from files, folders or Python objects."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...artifact.artifact import Artifact, load
from ...artifact.signature import SUFFIX
from ...errors import (
    ArtifactError,
    DeviceError,
    InputError,
    ModelNotFoundError,
    TVMInteropError,
    UnavailableError,
)
from ...scratch import scratch_folder
from .any_model import VERSION, AnyModel
from .executor import Executor
from .model import Model
from .protocol import check_types

_LOG = logging.getLogger("tvm_interop.serving")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_TAR = ".tar"

Source = str | os.PathLike[str] | Artifact | AnyModel
"""The source of a model: an artifact, the path of an artifact file, or a finished `AnyModel`."""


def check_name(name: str) -> None:
    """Check that a model name is valid in URLs and as a file name.

    Raises
    ------
    InputError
        The name is invalid; the message says which characters are allowed.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"a model cannot be called {name[:128]!r}: give it a name (--name) of letters, digits, "
            "`_`, `.` and `-`"
        )


class Repository:
    """Loads models, and manages the folder of artifacts that clients may load and unload.

    Without a folder, clients cannot load or unload models.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        instances: int,
        trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
    ) -> None:
        self._folder = None if folder is None else Path(folder).resolve()
        self._instances = instances
        self._trusted_keys = trusted_keys
        self._reasons: dict[str, str] = {}
        self._lock = threading.Lock()

    def open(self, name: str, source: Source) -> AnyModel:
        """Load a model from an artifact or from the path of an artifact file.

        Raises
        ------
        InputError
            The name is invalid, or the protocol has no type for an input or output.
        ArtifactError, DeviceError
            As for `GraphModule`.
        """
        check_name(name)
        if isinstance(source, AnyModel):
            model: AnyModel = source
        else:
            if not isinstance(source, Artifact):
                source = load(source, trusted_keys=self._trusted_keys)
            model = Model(name, source, self._instances)
        check_types(model)
        _LOG.info(
            "model `%s`: %.1f MiB of weights, %.1f MiB for each of %d instances",
            name,
            model.memory.weights / 2**20,
            model.memory.instance / 2**20,
            model.num_instances,
        )
        return model

    def load(self, executor: Executor, name: str) -> None:
        """Load a model from the model folder, again if it is loaded already, and serve it.

        Raises
        ------
        UnavailableError
            The server has no model folder, or it is shutting down.
        ModelNotFoundError
            The folder has no artifact of this name.
        """
        path = self._path(name)
        with self._lock:
            if not executor.is_ready:
                why = executor.broken or "the server is shutting down; ask another server"
                raise UnavailableError(why)
            try:
                executor.add(self._opened(name, path))
            except TVMInteropError as error:
                self._reasons[name] = str(error)
                raise
            self._reasons.pop(name, None)

    def _opened(self, name: str, path: Path) -> AnyModel:
        """Load a model from a private copy of its file.

        The copy has no name, and stays in use. The reason is that the weights of a model stay in
        its file, and somebody may copy a new file over the old file in the model folder. If the old
        file were in use, its model would compute with wrong weights, or end the process.
        """
        try:
            with scratch_folder() as folder:
                for suffix in ("", SUFFIX):  # The signature is in a file of its own.
                    source = path.with_name(path.name + suffix)
                    if source.exists():
                        shutil.copyfile(source, folder / source.name)
                try:
                    return self.open(name, folder / path.name)
                except ArtifactError as error:
                    raise ArtifactError(str(error).replace(str(folder), str(path.parent))) from None
        except OSError as error:
            raise DeviceError(
                f"`{path}` cannot be copied to the folder for temporary files: {error}; set TMPDIR "
                "to a folder with enough space"
            ) from error

    def unload(self, executor: Executor, name: str) -> None:
        """Stop serving a model.

        Raises
        ------
        UnavailableError
            The server has no model folder.
        ModelNotFoundError
            No model of this name is loaded.
        """
        self._required()
        with self._lock:
            executor.remove(name)
            self._reasons[name] = "unloaded"

    def index(self, loaded: Mapping[str, AnyModel], only_ready: bool) -> list[dict[str, Any]]:
        """Return a row for each loaded model, and for each other model in the folder.

        If `only_ready` is true, only loaded models have a row.
        """
        paths = [] if self._folder is None else self._folder.glob(f"*{_TAR}")
        found = {path.stem for path in paths if _NAME.fullmatch(path.stem)}
        rows = []
        for name in sorted({*found, *loaded}):
            state = "READY" if name in loaded else "UNAVAILABLE"
            if name in loaded or not only_ready:
                reason = "" if name in loaded else self._reasons.get(name, "not loaded")
                rows.append({"name": name, "version": VERSION, "state": state, "reason": reason})
        return rows

    def _required(self) -> Path:
        if self._folder is None:
            raise UnavailableError(
                "this server's models are fixed; start it with a model folder to load and unload"
            )
        return self._folder

    def _path(self, name: str) -> Path:
        folder = self._required()
        check_name(name)
        path = (folder / f"{name}{_TAR}").resolve()
        # Refuse a symbolic link that leads out of the folder.
        if path.parent != folder or not path.is_file():
            raise ModelNotFoundError(f"the model folder has no `{name}{_TAR}`")
        return path
