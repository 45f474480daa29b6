"""Defines `InterOpSchedule`, the Relax pass that schedules a model's operators."""

from __future__ import annotations

from typing import Any

import tvm

from .annotate import annotate
from .api import new_compilation
from .options import CompileOptions


@tvm.transform.module_pass(opt_level=0, name="InterOpSchedule")
class InterOpSchedule:
    """Schedules a model's operators, so that independent operators run side by side.

    The resulting module is lowered to fused kernels, and has the schedule as an attribute of
    `main`. `tvm_interop.compile` uses this schedule. Stock TVM ignores the attribute, and runs the
    operators one after the other with the same results. The schedulers `ios-merge` and `ios-both`
    also merge operators in the module. The merged operators are compared with the operators that
    they replace, and the result is stored in the module.

    The options are arguments of the constructor, because TVM's PassContext accepts no options of
    other projects.

    Parameters
    ----------
    scheduler: one of `tvm_interop.schedulers()`. If it is `auto`, or needs latencies and none are
        given, the kernels are compiled and measured on this machine.
    target: a TVM target for a CPU; by default the target in scope (`with target:`), or else `llvm`.
    options: as for `tvm_interop.compile`: `streams`, `threads`, `latency`, `latency_db`,
        `progress`, `providers`, and options of the scheduler. `parts` is as in `CompileOptions`.

    Examples
    --------
    >>> import tvm, tvm_interop
    >>> pipeline = tvm.transform.Sequential([
    ...     tvm.relax.transform.FoldConstant(),
    ...     tvm_interop.transform.InterOpSchedule("lios"),
    ... ])
    """

    def __init__(self, scheduler: str = "auto", target: Any = None, **options: Any) -> None:
        self.scheduler = scheduler
        self.target = target
        self.options = options

    def transform_module(self, module: Any, context: Any) -> Any:
        """Lower the module, make a schedule, and attach the schedule to the lowered module."""
        target = self.target or tvm.target.Target.current(allow_none=True) or "llvm"
        options = dict(self.options)
        latency = options.pop("latency", None)
        own = {
            name: options.pop(name)
            for name in ("streams", "threads", "parts", "latency_db", "progress", "providers")
            if name in options
        }
        compilation = new_compilation(module, CompileOptions(target, **own))
        made = compilation.schedule(self.scheduler, latency, **options)
        home, schedule = compilation.realized(made)
        merge_check = None if home is compilation else compilation.merge_check(made)
        return annotate(home.module, schedule, merge_check)
