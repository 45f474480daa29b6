"""Finds an ONNX model by the text that a user gives: the path of a file or a network's name."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from ..errors import UnsupportedModelError, did_you_mean
from . import catalog, light
from .external_weights import read_all_but_large, read_whole

_LIGHT = "light:"


def read_onnx(source: str | os.PathLike[str]) -> onnx.ModelProto:
    """The model in the file `source` or, if there is no such file, the network of that name.

    Parameters
    ----------
    source: the path of an ONNX file, one of `models.list()`, or `light:` and one of
        `models.light.names()`.

    Raises
    ------
    UnsupportedModelError: `source` is neither a file nor the name of a network, or the file is not
        an ONNX model.
    """
    name, path = os.fspath(source), Path(source)
    if not path.exists():
        if name in catalog.names():
            return catalog.build(name)
        if name.startswith(_LIGHT):
            return light.build(name.removeprefix(_LIGHT))
        raise UnsupportedModelError(_nothing_there(path))
    return _read_file(path)


def read_for_import(source: str | os.PathLike[str]) -> onnx.ModelProto:
    """Like `read_onnx`, but large weights stay in their external files (see `external_weights`)."""
    path = Path(source)
    return _read_file(path, read_all_but_large) if path.exists() else read_onnx(source)


def read_graph(model: Any) -> onnx.ModelProto:
    """Return `model` itself if it is an ONNX model, otherwise the model that `read_onnx` finds.

    Use the result only to read the graph, because the weights of a named network may lack values.
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise UnsupportedModelError(
            "a model must be the path of an ONNX file, the name of a network or an "
            f"onnx.ModelProto, not `{type(model).__name__}`"
        )
    name = os.fspath(model)
    if name in catalog.names() and not Path(name).exists():
        return catalog.skeleton(name)
    return read_onnx(model)


def _read_file(path: Path, read: Callable[[Path], onnx.ModelProto] = read_whole) -> onnx.ModelProto:
    """Read the file at `path` with `read`; errors of `read` become UnsupportedModelError."""
    if path.is_dir():
        raise UnsupportedModelError(f"`{path}` is a directory: give the .onnx file inside it")
    if path.stat().st_size == 0:
        raise UnsupportedModelError(f"`{path}` is empty: export or download the model again")
    try:
        return read(path)
    except UnsupportedModelError:
        raise
    except OSError as err:
        raise UnsupportedModelError(f"cannot read `{path}`: {err}") from err
    except onnx.checker.ValidationError as err:
        raise UnsupportedModelError(
            f"`{path}` keeps weights in other files that cannot be read: {err}"
        ) from err
    # Catch any error, because the module of protobuf's DecodeError differs between versions.
    except Exception as err:
        if _is_artifact(path):
            raise UnsupportedModelError(
                f"`{path}` is an artifact, not a model: give the ONNX file that it was compiled "
                f"from. `tvm-interop run {path}` runs the artifact, and `tvm-interop show {path}` "
                "draws its schedule"
            ) from err
        refuse_of_torch_save(path)
        with open(path, "rb") as file:
            check_not_of_ort(file.read(8), f"`{path}` is")
        raise UnsupportedModelError(f"`{path}` is not an ONNX file: {err}") from err


def refuse_of_torch_save(path: Path) -> None:
    """Refuse a file that `torch.save` or `torch.jit.save` wrote.

    Raises
    ------
    UnsupportedModelError
        The file is one of these; the message says how to save the model instead.
    """
    if _is_of_torch(path):
        raise UnsupportedModelError(
            f"`{path}` was written by torch.save or torch.jit.save, and is not a program that "
            "can be compiled: load the module in PyTorch, then `torch.export.save("
            "torch.export.export(module.eval(), (example_input,)), 'model.pt2')`, and give "
            "`model.pt2`; or export it to ONNX"
        )


def check_not_of_ort(head: bytes, what: str) -> None:
    """Refuse a model in the format that onnxruntime has of its own.

    Parameters
    ----------
    head: the first eight bytes of the model.
    what: the beginning of the error message, such as "`model.ort` is".

    Raises
    ------
    UnsupportedModelError
        The model is in this format.
    """
    if head[4:8] == b"ORTM":
        raise UnsupportedModelError(
            f"{what} in onnxruntime's own format: give the ONNX file that it was made from"
        )


def _is_artifact(path: Path) -> bool:
    """Whether the file looks like an artifact: a tar file whose first member is a manifest."""
    with open(path, "rb") as file:
        head = file.read(512)
    return head[257:262] == b"ustar" and head[:100].rstrip(b"\0") == b"manifest.json"


def _is_of_torch(path: Path) -> bool:
    """Whether PyTorch seems to have written the file: a pickle, or a zip file with a pickle."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            # `torch.export.save` writes the first of these names, `torch.save` the second.
            names = {name.partition("/")[2] for name in file.namelist()}
            return "archive_format" not in names and "data.pkl" in names
    with open(path, "rb") as opened:
        return opened.read(2) == b"\x80\x02"  # torch.save wrote a pickle before PyTorch 1.6.


def _nothing_there(path: Path) -> str:
    if path.suffix or len(path.parts) != 1:
        return f"there is no file `{path}`: check the path"
    name = str(path)
    return (
        f"there is no file and no network `{name}`{did_you_mean(name, catalog.names())}: "
        f"check the path, or give one of {', '.join(catalog.names())}"
    )
