"""Defines a field of the manifest: how a compiled program of `torch.export` compares with PyTorch.

The result of the comparison is stored in `manifest.json`; the artifact has no separate file for it.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from ..errors import ArtifactError


class ProgramCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the outputs of a program of `torch.export` are from PyTorch's outputs.

    PyTorch ran the program, and the compiled model ran, on the same inputs (see
    `compiler.program_check`).

    Attributes
    ----------
    errors: the error of each output, by its name. For floats, it is the Euclidean norm of the
        difference to PyTorch's output, divided by the norm of PyTorch's output. For integers and
        bools, it is the share of elements that differ. None means that the error is infinite: the
        output has another shape or type than PyTorch's, or has NaN or infinity where PyTorch has a
        number. An output without any finite number is left out.
    bound: the largest error that rounding alone can cause; None if nothing was compared.
    inputs: `example` for the inputs that the program was exported with; `resized` if these were
        repeated or cut to the compiled shapes.
    unchecked: why nothing was compared; None if the outputs were compared.
    """

    errors: dict[str, float | None]
    bound: float | None = None
    inputs: Literal["example", "resized"] = "example"
    unchecked: str | None = None

    @property
    def largest(self) -> float | None:
        """The largest error of all outputs; None if nothing was compared."""
        return None if self.unchecked is not None else max(self._errors.values(), default=0.0)

    @property
    def differing(self) -> dict[str, float]:
        """The errors above the bound, by the output's name, the largest first."""
        above = [(n, e) for n, e in self._errors.items() if self.bound is None or e > self.bound]
        return dict(sorted(above, key=lambda each: -each[1]))

    @property
    def _errors(self) -> dict[str, float]:
        return {name: math.inf if e is None else e for name, e in self.errors.items()}

    @property
    def warning(self) -> str | None:
        """The warning that users get; None if no output differs from PyTorch's by more than the
        bound.
        """
        if self.unchecked is not None:
            return f"the outputs were not compared with PyTorch's: {self.unchecked}"
        if not self.differing:
            return None
        told = ", ".join(f"`{name}` by {error:.2g}" for name, error in self.differing.items())
        return (
            f"on {self._inputs_told}, these outputs differ from PyTorch's: {told} (at most "
            f"{self.bound:.2g} is expected, as a share of the norm, or of the elements for "
            "integers), so the answers may be wrong: compare them with PyTorch's on inputs of your "
            "own, and report the difference as a fault, with the program"
        )

    @property
    def _inputs_told(self) -> str:
        resized = ", repeated or cut to the compiled shapes" if self.inputs == "resized" else ""
        return f"the program's example inputs{resized}"

    def __str__(self) -> str:
        if self.warning is not None:
            return self.warning
        return (
            f"the outputs differ from PyTorch's by at most {self.largest:.2g} of the norm, on "
            f"{self._inputs_told}"
        )


def check_errors(check: ProgramCheck) -> None:
    """Check the numbers of a `ProgramCheck` that was read from a file.

    Raises
    ------
    ArtifactError
        A number is negative or not finite; the message names its output.
    """
    for name, error in {"bound": check.bound, **check.errors}.items():
        if error is not None and not 0 <= error < math.inf:
            raise ArtifactError(
                f"`manifest.json` has a `program_check` with {error} for `{name}`; it must be "
                "finite, 0 or more"
            )
