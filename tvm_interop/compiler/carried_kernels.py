"""Gives a model the kernels that were chosen for it at other shapes of its inputs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..artifact.artifact import Artifact, load
from ..artifact.chosen_kernels import ChosenKernels
from ..errors import InputError
from ..machine.kernel_libraries import TVM
from ..program.kinds.winograd_conv2d import WinogradConv2d
from ..program.program import Operator, Program
from ..program.storage import Layout, block_of
from .kernel_choice import blockable_for, images_of, laid_out, of_any_layout
from .provider_choice import give_to_libraries, is_usually_tvms
from .winograd_choice import by_winograd


def with_kernels(
    kernels: ChosenKernels,
    program: Program,
    providers: Sequence[str],
    blocked: Layout,
    *,
    winograd: bool,
) -> Program:
    """Give each operator of `program` the kernel that `kernels` has for an operator of this name.

    An operator may have no kernel in `kernels`, or its library may be unable to run it at the
    shapes of `program`. Such an operator gets the kernel of the first library that can run it, or
    TVM's kernel if TVM's is usually faster (see `is_usually_tvms`). A tensor gets a blocked layout
    if it has one in `kernels`, and every operator that reads or writes it can work with this
    layout.

    Parameters
    ----------
    kernels: the kernels that were chosen for other shapes of the model's inputs.
    program: the program, whose operators have TVM's kernels.
    providers: the names of the available providers, at least one of them a library.
    blocked: the layout of blocked tensors.
    winograd: whether convolutions may be computed by Winograd's algorithm.
    """
    chosen = kernels.chosen

    def is_the_chosen(library: str, op: Operator) -> bool:
        return op.name in chosen and chosen[op.name].library == library

    def is_not_for_tvm(_: str, op: Operator) -> bool:
        if op.name in chosen:
            return chosen[op.name].library is not None
        return not is_usually_tvms(op, providers)

    libraries = [name for name in providers if name != TVM]
    program = give_to_libraries(program, libraries, is_the_chosen)
    program = give_to_libraries(program, libraries, is_not_for_tvm)
    first = libraries[0]
    program = laid_out(program, _blocked(kernels, program, first, blocked), first, blocked)
    if not winograd:
        return program
    wanted = {name for name, kernel in chosen.items() if kernel.kind == WinogradConv2d.op}
    return by_winograd(program, wanted)


def _blocked(kernels: ChosenKernels, program: Program, library: str, blocked: Layout) -> set[int]:
    """The values that have a blocked layout in `kernels` and can have it in `program` too."""
    had = {
        program.storage_of(op.outputs[0])
        for op in program.operators
        if op.name in kernels.chosen and kernels.chosen[op.name].is_blocked
    }
    found = had & blockable_for(library, program, blocked)
    # All tensors of an element-wise operator must have the same layout.
    alike = of_any_layout(program, block_of(blocked))
    groups = [{program.storage_of(v) for v in images_of(program.operators[i])} for i in alike]
    while plain := {v for roots in groups if roots - found for v in roots & found}:
        found -= plain
    return found


def kernels_like(given: object) -> ChosenKernels | None:
    """The kernels that the option `like` of `compile` asks for; None if nothing was given.

    Parameters
    ----------
    given: an artifact or its path, `ChosenKernels`, or None.

    Raises
    ------
    InputError
        `given` is of another type, or an artifact for GPUs.
    ArtifactError
        The file is not an artifact.
    """
    if given is None or isinstance(given, ChosenKernels):
        return given
    if isinstance(given, str | os.PathLike):
        given = load(given)
    if not isinstance(given, Artifact):
        raise InputError(
            f"`like` is a `{type(given).__name__}`: give an artifact of the same model, or its path"
        )
    return ChosenKernels.of(given)
