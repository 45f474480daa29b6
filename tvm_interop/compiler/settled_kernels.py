"""Gives operators to a library without trying TVM's kernels, where the library always wins.

TVM's kernels of these operators are not measured. If the artifact does not hold them, they are not
compiled either. This saves up to two thirds of the time for compiling kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..machine.kernel_libraries import TVM
from ..program.program import Program
from .backend import Lowered
from .provider_choice import NoKernelError, can_run, given_to

L = TypeVar("L", bound=Lowered)


@dataclass
class SettledKernels(Generic[L]):
    """Chooses kernels for a model. It tries only those of TVM's kernels that may win.

    Attributes
    ----------
    lowered: the lowered model. Without `keeps_all`, it has only the kernels of TVM that still had
        to be tried after the last call of `settle`.
    providers: the names of the available providers.
    tries_all: whether to try all of TVM's kernels, for example because tuning made them faster.
    keeps_all: whether `lowered` keeps all of TVM's kernels, because the artifact will hold them.
    """

    lowered: L
    providers: Sequence[str]
    tries_all: bool = False
    keeps_all: bool = False
    _all: L = field(init=False)
    _to_try: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._all = self.lowered

    def settle(self, program: Program) -> Program:
        """Give an operator to the first library that computes it if TVM's kernel need not be tried.

        `lowered` then has the kernels of TVM for the other operators only.
        """
        if self.tries_all:
            return program
        for library in (name for name in self.providers if name != TVM):
            program = given_to(program, self._settled(program, library), library)
        tried = {op.kernel for op in program.operators if op.library is None}
        if not self.keeps_all and tried != self.lowered.kernels.names:
            self.lowered = self._all.with_kernels(tried)
        return program

    def choose(self, program: Program, how: Callable[[Program], Program]) -> Program:
        """Choose kernels by `how`, which gets the program with settled kernels.

        If a library has no good kernel for an operator after all, `how` runs again, with TVM's
        kernel of this operator.
        """
        while True:
            try:
                return how(self.settle(program))
            except NoKernelError as error:
                self._to_try.update(error.names)

    def _settled(self, program: Program, library: str) -> list[int]:
        return [
            i
            for i, op in enumerate(program.operators)
            if op.library is None
            and op.name not in self._to_try
            and op.description is not None
            and not (TVM in self.providers and op.description.tvm_may_win_on_cpu)
            and can_run(library, op)
        ]
