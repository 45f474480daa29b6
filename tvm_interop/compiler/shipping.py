"""Makes the parts of an artifact that describe it: its manifest and its fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import tvm
import tvm_ffi

from .._version import __version__
from ..artifact.manifest import (
    CountedOutput,
    KernelCheck,
    Manifest,
    MergeCheck,
    Precision,
    Quantised,
    SpeedCheck,
    StringInput,
    StringOutput,
)
from ..lowering.names import COUNTED_OUTPUTS, STRING_INPUTS, STRING_OUTPUTS
from ..lowering.quantised import QUANTISED
from ..plan.plan import Plan
from ..scheduling.one_after_another import one_after_another
from .annotate import annotated_merge_check
from .backend import Backend, Lowered
from .time_budget import TimeBudget


def manifest_of(
    lowered: Lowered,
    backend: Backend,
    budget: TimeBudget,
    *,
    scheduler: str,
    speed_check: SpeedCheck | None,
    precision: Precision | None,
    kernel_check: KernelCheck,
    merge_check: MergeCheck | None,
) -> Manifest:
    """Describe the artifact of a model.

    Parameters
    ----------
    lowered: the lowered model that the artifact will run.
    budget: the time budget of the compilation, which lists the work that was left out.
    scheduler, speed_check, precision, kernel_check: as in `Manifest`.
    merge_check: as in `Manifest`; None if this compilation merged no operators. If it is None and
        the pass `InterOpSchedule` merged operators, the manifest has the check of this pass.
    """
    return Manifest(
        tvm_interop_version=__version__,
        tvm_version=tvm.__version__,
        target=str(backend.target),
        scheduler=scheduler,
        cpu_features=backend.cpu_features(),
        structural_hash=f"{tvm_ffi.structural_hash(lowered.module) % 2**64:016x}",
        speed_check=speed_check,
        precision=precision,
        quantised=_quantised(lowered.module),
        kernel_check=kernel_check,
        merge_check=merge_check or annotated_merge_check(lowered.module),
        gpu_kernels=lowered.gpu_kernels,
        not_tried=tuple(budget.not_tried),
        counted=_counted(lowered.module),
        string_inputs=_strings(lowered.module, STRING_INPUTS, StringInput),
        string_outputs=_strings(lowered.module, STRING_OUTPUTS, StringOutput),
        unaligned_inputs=True,  # See `kernels/without_marks.py`.
    )


def fallback_of(lowered: Lowered, op_us: Callable[[], dict[str, float] | None]) -> Plan | None:
    """The plan for machines without the kernel libraries; None if the model uses no kernel library.

    Parameters
    ----------
    op_us: see `Lowered.plan`.
    """
    if all(op.library is None for op in lowered.program.operators):
        return None
    alone = lowered.on_tvm_alone
    return lowered.plan(alone, one_after_another(alone, 1), op_us)


_Strings = TypeVar("_Strings", StringInput, StringOutput)


def _quantised(module: Any) -> Quantised | None:
    """The report on quantised operators that is stored in the lowered `module`; None if there is
    none.
    """
    report = (module["main"].attrs or {}).get(QUANTISED)
    return None if report is None else msgspec.json.decode(str(report), type=Quantised)


def _counted(module: Any) -> tuple[CountedOutput, ...]:
    """The outputs whose size depends on the inputs' numbers, not only on their shapes."""
    found = (module["main"].attrs or {}).get(COUNTED_OUTPUTS, ())
    return tuple(CountedOutput(*map(int, each)) for each in found)


def _strings(module: Any, attribute: str, kind: type[_Strings]) -> tuple[_Strings, ...]:
    """The inputs or outputs that stand for strings, each with its strings."""
    found = (module["main"].attrs or {}).get(attribute)
    if found is None:
        return ()
    return tuple(msgspec.json.decode(str(found), type=list[kind]))  # type: ignore[valid-type]
