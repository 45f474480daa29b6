"""Turns outputs that hold positions of strings into strings, such as the labels of a classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ExecutionError

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact

DTYPE = "object"
"""NumPy's name of the type of an array of strings, which is an array of `str`."""


class StringOutputs:
    """The outputs of a model that are strings. A run computes the position of each string.

    Attributes
    ----------
    strings: for each of these outputs, by its position, the strings.
    """

    def __init__(self, artifact: Artifact, *, is_remote: bool = False) -> None:
        """List the outputs.

        Parameters
        ----------
        is_remote: whether a server runs the model.
        """
        if artifact.native is not None and not is_remote:
            self.strings = artifact.native.output_strings
        else:
            self.strings = {each.output: each.strings for each in artifact.manifest.string_outputs}
        self._tables = {i: np.array(texts, DTYPE) for i, texts in self.strings.items()}

    def __contains__(self, position: int) -> bool:
        return position in self.strings

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
        table = self._tables.get(position)
        if table is None:
            return array
        is_wrong = (array < 0) | (array >= len(table))
        if is_wrong.any():
            raise ExecutionError(
                f"output {position} has the string number {array[is_wrong][0]}, and there are "
                f"{len(table)} strings: compile the model again"
            )
        return np.asarray(table[array], DTYPE).reshape(array.shape)
