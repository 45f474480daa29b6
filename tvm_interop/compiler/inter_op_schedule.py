"""`InterOpSchedule`: the pass that schedules a model's operators."""

from __future__ import annotations

from typing import Any

import tvm

from .annotate import annotate
from .api import new_compilation
from .options import CompileOptions, parts_for


@tvm.transform.module_pass(opt_level=0, name="InterOpSchedule")
class InterOpSchedule:
    """Partition a model's operators into groups that run side by side.

    The module that comes out is lowered to fused kernels and carries the schedule as an attribute
    of `main`; `tvm_interop.compile` runs it so, and stock TVM, which ignores the attribute,
    compiles and runs it sequentially with the same numbers.

    TVM takes no foreign PassContext options, so the options are the constructor's. The target is
    the constructor's too, or the one in scope (`with target:`), or `llvm`.

    Parameters
    ----------
    scheduler: one of `tvm_interop.schedulers()`; `auto` compiles the kernels and measures here,
        and so do all others that ask for latencies and are given none.
    target: a TVM target for a CPU.
    options: as for `tvm_interop.compile`: `streams`, `threads`, `latency`, `latency_db`,
        `progress`, `providers`, and the scheduler's own.

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
        """Lower the module, schedule it, and attach the schedule."""
        target = self.target or tvm.target.Target.current(allow_none=True) or "llvm"
        options = dict(self.options)
        latency = options.pop("latency", None)
        own = {
            name: options.pop(name)
            for name in ("streams", "threads", "parts", "latency_db", "progress", "providers")
            if name in options
        }
        own.setdefault("parts", parts_for(self.scheduler))
        compilation = new_compilation(module, CompileOptions(target, **own))
        home, schedule = compilation.realized(
            compilation.schedule(self.scheduler, latency, **options)
        )
        return annotate(home.module, schedule)
