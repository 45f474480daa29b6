"""Replaces unknown classes of containers that programs of `torch.export` name.

A model of `transformers` or `diffusers` returns its results in a class of that package. The saved
program names the class, and PyTorch cannot read the program in a process in which nobody has
imported the package. The compiled model needs only the tensors in the container.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils import _pytree

_CLASS = re.compile(r'\\"type\\": \\"([^"\\]+)\\"')
"""A class in the structure of inputs or outputs, which is a text of JSON within a file of JSON."""


def define_those_of(path: str) -> None:
    """Define the classes of containers that a saved program names, so that PyTorch can read it.

    If the package that defines a class is imported later, its own definition replaces the
    definition made here.

    Parameters
    ----------
    path: a file that `torch.export.save` wrote. Nothing happens if it is something else.
    """
    for name in _classes(path):
        if name not in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            _define(name)


def _classes(path: str) -> Iterator[str]:
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as file:
        for name in file.namelist():
            if name.endswith(".json"):
                yield from _CLASS.findall(file.read(name).decode(errors="replace"))


class _Container:
    """A container of an unknown class: its parts, and a text from which the class rebuilds it."""

    def __init__(self, parts: Sequence[Any], context: Any) -> None:
        self.parts, self.context = list(parts), context


def _define(name: str) -> None:
    kind = type("Container", (_Container,), {})
    _pytree.register_pytree_node(
        kind,
        lambda found: (found.parts, found.context),
        kind,
        serialized_type_name=name,
        to_dumpable_context=lambda context: context,
        from_dumpable_context=lambda context: context,
        flatten_with_keys_fn=lambda found: (
            [(_pytree.SequenceKey(i), part) for i, part in enumerate(found.parts)],
            found.context,
        ),
    )
