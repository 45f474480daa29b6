"""The kernels and layouts that were chosen for a model, without the shapes of its tensors."""

from __future__ import annotations

import msgspec

from ..errors import InputError
from ..program.program import Operator
from .artifact import Artifact


class ChosenKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kernel that was chosen for an operator.

    Attributes
    ----------
    library: the library that runs the operator; None for TVM's kernel.
    kind: the kind of the operator, such as `conv2d`, by which it is described to kernel libraries;
        None for an operator without such a description.
    is_blocked: whether the operator's result has a blocked layout.
    """

    library: str | None
    kind: str | None
    is_blocked: bool


class ChosenKernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kernels and layouts that were chosen for a model at some shapes of its inputs.

    The kernel that is the fastest at one size is usually also the fastest at similar sizes. So a
    choice made at some shapes can be used at other shapes, without new measurements.

    Attributes
    ----------
    chosen: the kernel of each operator, by the operator's name.
    are_checked: whether the results of the libraries' kernels were checked at the shapes at which
        the kernels were chosen.
    """

    chosen: dict[str, ChosenKernel]
    are_checked: bool

    @classmethod
    def of(cls, artifact: Artifact) -> ChosenKernels:
        """Return the kernels that were chosen for the model of an artifact.

        Raises
        ------
        InputError
            The artifact is for GPUs.
        """
        if artifact.is_for_gpus:
            raise InputError(
                "`like` is an artifact for GPUs, and only kernels for CPUs can be used at other "
                "shapes: leave `like` out"
            )
        plan, manifest = artifact.plan, artifact.manifest
        chosen = {
            op.whole: ChosenKernel(
                op.library,
                None if op.description is None else op.description.op,
                plan.values[plan.root_of(op.outputs[0])].layout != "plain",
            )
            for op in plan.operators
        }
        check = manifest.kernel_check
        return cls(chosen, check is not None and check.unchecked is None and not manifest.not_tried)

    def is_known_right(self, op: Operator) -> bool:
        """Whether the check of the library's kernel of `op` can be left out at the shapes of `op`.

        It can be left out if it takes long, and the same kernel was chosen and checked at the
        shapes of the earlier choice. Short checks are always repeated.
        """
        chosen = self.chosen.get(op.name)
        if not self.are_checked or chosen is None or op.description is None or op.flops <= _LONG:
            return False
        return (chosen.library, chosen.kind) == (op.library, op.description.op)


_LONG = 10_000_000
"""The check of a kernel with more operations than this takes longer than a few milliseconds."""
