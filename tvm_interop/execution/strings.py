"""Turns the strings of inputs into numbers, and numbers of outputs into strings.

A kernel computes numbers. So an input or output of strings, such as the labels of a classifier, has
the position of each string in a list.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ExecutionError

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact

DTYPE = "object"
"""NumPy's name of the type of an array of strings, which is an array of `str`."""
_UNLISTED = -1
"""The number of a string that is not in the list of an input."""


class Strings:
    """The inputs and outputs of a model that are strings.

    Attributes
    ----------
    inputs, outputs: for each of these inputs or outputs, by its position, the list of strings.
    """

    def __init__(self, artifact: Artifact, *, is_remote: bool = False) -> None:
        """List the inputs and outputs.

        Parameters
        ----------
        is_remote: whether a server runs the model.
        """
        if artifact.native is not None and not is_remote:
            self.inputs = artifact.native.input_strings
            self.outputs = artifact.native.output_strings
        else:
            known = artifact.manifest
            self.inputs = {each.input: each.strings for each in known.string_inputs}
            self.outputs = {each.output: each.strings for each in known.string_outputs}

    @cached_property
    def _tables(self) -> dict[int, np.ndarray]:
        return {i: np.array(texts, DTYPE) for i, texts in self.outputs.items()}

    @cached_property
    def _places(self) -> dict[int, dict[str, int]]:
        return {
            i: {text: place for place, text in enumerate(texts)} for i, texts in self.inputs.items()
        }

    def encoded(self, position: int, value: Any) -> Any:
        """Return the positions of the strings that are given for an input, as int64.

        A string that is not in the list becomes -1. Values other than strings, such as positions,
        are returned unchanged.
        """
        places = self._places.get(position) if self.inputs else None
        if places is None or (
            hasattr(value, "__dlpack_device__") and not isinstance(value, np.ndarray)
        ):
            return value
        array = np.asarray(value)
        if array.dtype.kind not in "OUST":
            return value
        texts = array.ravel().tolist()
        if not all(isinstance(text, str | bytes) for text in texts):
            return value
        found = [
            places.get(
                text if isinstance(text, str) else text.decode("utf-8", "replace"), _UNLISTED
            )
            for text in texts
        ]
        return np.array(found, np.int64).reshape(array.shape)

    def decoded(self, position: int, array: np.ndarray) -> np.ndarray:
        """Return an output as a new array of strings; return any other output unchanged.

        Parameters
        ----------
        array: the positions that a run computed.

        Returns
        -------
        An array of `str`, of dtype object and the shape of `array`.

        Raises
        ------
        ExecutionError
            A position is out of range.
        """
        table = self._tables.get(position) if self.outputs else None
        if table is None:
            return array
        is_wrong = (array < 0) | (array >= len(table))
        if is_wrong.any():
            raise ExecutionError(
                f"output {position} has the string number {array[is_wrong][0]}, and there are "
                f"{len(table)} strings: compile the model again"
            )
        return np.asarray(table[array], DTYPE).reshape(array.shape)
