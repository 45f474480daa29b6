"""Writes an artifact to its file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from ..plan.several_shapes import check_batch_sizes, check_shapes
from ..plan.validate import check_weights, weights_of
from . import weights as weights_file
from .layout import VERSION, Contents, check_counted, check_rows, check_strings, prefix
from .manifest import Manifest
from .tar import write_tar

_VERSION_OF_ONE_SHAPE, _VERSION_OF_SHAPES, _VERSION_OF_BATCHES, _VERSION_OF_RANGES = 2, 3, 4, 5
_VERSION_OF_COUNTED = 6
"""The versions of files with one set of input shapes, with several sets, with batch sizes, with
ranges of sizes, and with outputs whose size depends on computed values. A file with inputs or
outputs that are strings has version `VERSION`.

A file is written in the lowest version that can hold its contents, so that older releases can read
the file.
"""


def write(models: Sequence[Contents], path: str | os.PathLike[str]) -> Manifest:
    """Write an artifact to a file, and return its manifest; see `Artifact.save`.

    Parameters
    ----------
    models: the contents for each set of input shapes.
    """
    first, *others = models
    plans = [model.plan for model in models]
    check_shapes(plans)
    check_batch_sizes(first.manifest.batch_sizes, plans)
    check_rows(first.manifest.row_sizes, plans)
    check_counted(first.manifest, plans)
    check_strings(first.manifest, plans)
    each = [_weights_to_save(model) for model in models]
    table, places = weights_file.shared(each) if others else (each[0], [])
    offsets = weights_file.offsets_of(table)
    small: dict[str, bytes] = {}
    for i, (model, place) in enumerate(zip(others, places[1:], strict=True), 1):
        own = msgspec.structs.replace(
            model.manifest,
            sha256={},
            weights={v: offsets[index] for v, index in place.items()},
            version=_VERSION_OF_SHAPES,
        )
        texts = {"manifest.json": own.to_json(), **_texts(model)}
        small.update((f"{prefix(i)}{name}", data) for name, data in texts.items())
    small |= _texts(first)
    manifest = msgspec.structs.replace(
        first.manifest,
        sha256={
            **{name: _sha256([data]) for name, data in small.items()},
            "weights.bin": _sha256(weights_file.chunks_of(table)),
        },
        weights={v: offsets[i] for v, i in places[0].items()} if others else offsets,
        version=_version(models),
    )
    members: dict[str, Iterable[bytes | memoryview]] = {"manifest.json": [manifest.to_json()]}
    members.update((name, [data]) for name, data in small.items())
    write_tar(path, {**members, "weights.bin": weights_file.chunks_of(table)})
    return manifest


def _version(models: Sequence[Contents]) -> int:
    if models[0].manifest.string_inputs or models[0].manifest.string_outputs:
        return VERSION
    if models[0].manifest.counted:
        return _VERSION_OF_COUNTED
    if models[0].manifest.row_sizes:
        return _VERSION_OF_RANGES
    if models[0].manifest.batch_sizes:
        return _VERSION_OF_BATCHES
    return _VERSION_OF_SHAPES if len(models) > 1 else _VERSION_OF_ONE_SHAPE


def _weights_to_save(model: Contents) -> dict[int, np.ndarray]:
    plans = [model.plan, *([model.fallback] if model.fallback else [])]
    check_weights(plans, model.weights)
    needed = sorted({v for plan in plans for v in weights_of(plan)})
    return {v: model.weights[v] for v in needed}


def _texts(model: Contents) -> dict[str, bytes]:
    """All members except the manifest and the weights, as bytes by name."""
    texts = {"plan.json": model.plan.to_json(), "schedule.json": model.schedule.to_json()}
    if model.fallback is not None:
        texts["fallback.json"] = model.fallback.to_json()
    assert model.kernels is not None, "`save` made sure"
    return {name: text.encode() for name, text in texts.items()} | {"kernels.so": model.kernels}


def _sha256(chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
