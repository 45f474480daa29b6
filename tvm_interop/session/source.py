"""Reads the model that a session gets: an artifact to load, or a model to compile."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..artifact.artifact import Artifact, load
from ..errors import (
    DeviceError,
    ExecutionError,
    InputError,
    UnsupportedModelError,
    first_line,
    only_runtime,
)
from .tensor_info import (
    MapInfo,
    ModelMeta,
    TensorInfo,
    infos_of_onnx,
    maps_of_onnx,
    meta_of_onnx,
    replaceable_of_onnx,
)

_CHUNK = 1 << 22
OF_TORCH = ".pt2"
"""The file name suffix of programs of `torch.export`. Reading them takes seconds."""


class Source(NamedTuple):
    """A model to compile.

    Attributes
    ----------
    model: the model, in a form that `compile` takes.
    name: a name for messages and file names.
    digest: a digest of the model's content. None if the model has no reproducible digest, such as
        an IRModule.
    inputs, outputs: the inputs and outputs, as far as they are known before compilation.
    meta: the metadata that the exporter wrote into the model.
    maps: for each output that ONNX defines as a list of dictionaries, its type in onnxruntime's
        words, and the keys.
    replaceable: the weights that are also inputs, so that a run may replace them.
    """

    model: Any
    name: str
    digest: str | None
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    meta: ModelMeta
    maps: Mapping[str, MapInfo] = MappingProxyType({})
    replaceable: Sequence[TensorInfo] = ()


def artifact_or_source(given: Any) -> Artifact | Source:
    """Turn a user's argument for a session into an artifact or a model to compile.

    If `given` is the path of an artifact, the artifact is loaded.

    Raises
    ------
    ArtifactError
        The same cases as for `load`.
    UnsupportedModelError
        `given` is a path, and the file is neither an artifact nor a model.
    InputError
        `given` is not a model at all.
    DeviceError
        `given` is a model, and a package that is needed to compile it is not installed.
    """
    if isinstance(given, Artifact):
        return given
    is_path = isinstance(given, (str, os.PathLike))
    if is_path and Path(given).is_file() and tarfile.is_tarfile(given):
        return load(given)
    if given is None or isinstance(given, (int, float)):
        kind = type(given).__name__
        raise InputError(
            f"a session cannot be made from a `{kind}`; give a model, an artifact or a path"
        )
    if importlib.util.find_spec("tvm") is None:
        what = f"`{given}`" if is_path else "what was given"
        raise only_runtime(f"{what} is a model, not an artifact. Compiling it")
    if is_path and os.fspath(given).endswith(OF_TORCH):
        digest = _digest_of_files([Path(given)]) if Path(given).is_file() else None
        return Source(_absolute(given), Path(given).stem, digest, [], [], ModelMeta({}))
    return _source_of_onnx(given, is_path)


def with_tensors(source: Source, is_stored: bool) -> Source:
    """Return `source` with the inputs and outputs of a program of `torch.export`.

    If the model is not a program of `torch.export`, the result is `source` itself. The result is
    `source` too if the artifact is stored, because the artifact names its inputs and outputs, and
    converting the program would take seconds.

    Parameters
    ----------
    is_stored: whether the artifact for `source` and all its sizes is stored.

    Raises
    ------
    UnsupportedModelError, InputError
        The program cannot be read or converted, or PyTorch is not installed.
    """
    is_path = isinstance(source.model, (str, os.PathLike))
    is_file = is_path and os.fspath(source.model).endswith(OF_TORCH)
    is_program = is_file or type(source.model).__name__ == "ExportedProgram"
    if is_stored or not is_program:
        return source
    # Import these modules only here: they import TVM, which takes seconds.
    from ..frontend.torch_program import ConvertedProgram, as_onnx
    from ..models.source import read_for_import

    model = as_onnx(source.model)
    graph = read_for_import(model) if isinstance(model, (str, os.PathLike)) else model
    inputs, outputs = infos_of_onnx(graph)
    kept = source.model if is_file else ConvertedProgram(model, source.model)
    return source._replace(model=kept, inputs=inputs, outputs=outputs)


def _source_of_onnx(given: Any, is_path: bool) -> Source:
    try:
        import onnx
    except ImportError as error:
        what = f"`{given}`" if is_path else "what was given"
        raise _no_compiler(what, "the package `onnx`: `pip install onnx`") from error

    if is_path:
        return _source_of_path(Path(given))
    model = (
        model_of_bytes(bytes(given)) if isinstance(given, bytes | bytearray | memoryview) else given
    )
    if isinstance(model, onnx.ModelProto) and any(_locations(model.graph)):
        raise UnsupportedModelError(
            "the model's weights are in other files, and a model in memory does not say in which "
            "folder: give the path of the model's file"
        )
    if not isinstance(model, onnx.ModelProto):
        return Source(given, type(given).__name__, None, [], [], ModelMeta({}))
    return source_of_message(model, "model")


def source_of_message(model: Any, name: str) -> Source:
    """Return an `onnx.ModelProto` as a model to compile."""
    return Source(model, name, _digest_of_message(model), *_told_by(model))


def _source_of_path(path: Path) -> Source:
    name = path.name.removesuffix(".onnx")
    model, is_alone = model_of_path(path)
    if is_alone:
        located = sorted(set(_locations(model.graph)))
        digest = _digest_of_files([path, *(path.parent / location for location in located)])
    else:
        digest = _digest_of_message(model)
    return Source(_absolute(path), name, digest, *_told_by(model))


def _told_by(model: Any) -> tuple[Any, ...]:
    """Return the fields of `Source` that an `onnx.ModelProto` describes, in their order."""
    inputs, outputs = infos_of_onnx(model)
    told = meta_of_onnx(model), maps_of_onnx(model), replaceable_of_onnx(model)
    return inputs, outputs, *told


def model_of_path(path: Path) -> tuple[Any, bool]:
    """Read a model without the weights that it keeps in other files, which may take gigabytes.

    `path` may also be the name of a network, which has all its weights.

    Returns
    -------
    The `onnx.ModelProto`, and whether it is from a file.

    Raises
    ------
    UnsupportedModelError
        There is no such file or network, or the file is not an ONNX model.
    """
    import onnx

    from ..models.source import read_onnx

    try:
        return onnx.load(path, format="protobuf", load_external_data=False), True
    except Exception:
        # Catch any error, because protobuf's `DecodeError` has moved to another module before.
        # For a file that is not a model, `read_onnx` raises an error.
        return read_onnx(path), False


def model_of_bytes(data: bytes) -> Any:
    """Read the bytes of an ONNX file.

    Raises
    ------
    UnsupportedModelError
        The bytes are not an ONNX file.
    """
    import onnx

    if not data:
        raise UnsupportedModelError("the bytes of the model are empty: read the file again")
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:  # The module of protobuf's DecodeError differs between versions.
        from ..models.source import check_not_of_ort

        check_not_of_ort(data[:8], f"the {len(data)} bytes that were given are")
        raise UnsupportedModelError(
            f"the {len(data)} bytes that were given are not an ONNX file ({first_line(error)}): "
            "read the file as bytes, or give its path; an artifact is given by its path"
        ) from error


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path if there is a file, because the program may change its folder.

    A text without a file may be the name of a network, and is returned as it is.
    """
    return os.path.abspath(path) if Path(path).is_file() else os.fspath(path)


def check_unchanged(source: Source) -> None:
    """Check that the model has not changed since the session was made.

    A session may compile its model long after it was made. If the model had changed, the new
    model's artifact would be stored for the old model.

    Raises
    ------
    ExecutionError
        The model's file, or the model itself, has changed.
    """
    model = source.model
    if source.digest is None or isinstance(model, bytes):
        return
    if isinstance(model, str | os.PathLike):
        if not Path(model).is_file():
            return  # It is the name of a network, or `compile` says that the file is missing.
        now = artifact_or_source(model)
        digest = None if isinstance(now, Artifact) else now.digest
        what = f"`{model}` has"
    elif hasattr(model, "SerializeToString"):
        digest, what = _digest_of_message(model), "the model has"
    else:
        return
    if digest != source.digest:
        raise ExecutionError(f"{what} changed since the session was made; make a new session")


def _locations(graph: Any) -> Iterator[str]:
    """Yield the names of the files that hold weights of `graph` and of its subgraphs."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    tensors = [each for a in attributes for each in (a.t, *a.tensors)]
    for tensor in (*graph.initializer, *tensors):
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")
    for attribute in attributes:
        for inner in (attribute.g, *attribute.graphs):
            yield from _locations(inner)


def _digest_of_files(paths: list[Path]) -> str | None:
    """Return a digest of the files' content, or None if a file cannot be read.

    If a file cannot be read, this function raises no error, because the compilation later raises
    one that describes the problem.
    """
    digest = hashlib.sha256()
    try:
        for path in paths:
            for chunk in _chunks(path):
                digest.update(chunk)
            digest.update(b"\0")
    except OSError:
        return None
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _digest_of_message(model: Any) -> str | None:
    try:
        return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    except ValueError:  # Protobuf cannot serialise more than 2 GiB.
        return None


def require_compiler(source: Source) -> None:
    """Check that this process can compile a model.

    The check imports TVM, which takes seconds. So a session calls this function only when it has
    found no stored artifact.

    Raises
    ------
    DeviceError
        Only TVM's runtime is loaded.
    """
    import tvm

    what = f"`{source.model}`" if isinstance(source.model, (str, os.PathLike)) else "what was given"
    if tvm.base._RUNTIME_ONLY:
        raise _no_compiler(
            what, "TVM's compiler, but only TVM's runtime is loaded: unset TVM_USE_RUNTIME_LIB"
        )


def _no_compiler(what: str, missing: str) -> DeviceError:
    return DeviceError(
        f"{what} is a model, not an artifact, and compiling it needs {missing}. Or compile the "
        "model on another machine with `tvm-interop compile MODEL -o model.tar`, and give "
        "`model.tar`"
    )
