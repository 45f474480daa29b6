"""Builds a kernel's CUDA C source as a program for this machine's CPU, and runs the program."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tvm_interop.kernels.linker import find_linker

from .device_code import DeviceCode, Launch, NotExecutedError

INCLUDE = Path(__file__).parent / "include"

_OPTIONS = (
    "-std=c++17",
    "-O1",
    "-w",  # TVM's source causes warnings.
    "-fno-strict-aliasing",  # The source reads integers as floats through pointers.
    "-ffp-contract=off",
    "-ftrivial-auto-var-init=pattern",  # Local variables that nobody sets must not be zeros.
)
_SANITIZERS = (
    "-fsanitize=address,bounds,alignment",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g1",
)
_ALIGNMENT = r"(?P<alignment>(?:(?:alignas|__align__)\(\d+\) )?)"
_ARRAY = r"(?P<type>[\w ]+?) (?P<name>\w+)"
_SHARED = re.compile(rf"__shared__ {_ALIGNMENT}{_ARRAY}\[\d+\];")
_DYNAMIC_SHARED = re.compile(rf"extern __shared__ {_ALIGNMENT}{_ARRAY}\[\];")
_FIRST_FUNCTION = 'extern "C"'
_NOT_EMULATED = {
    r"\b(?:mma\.|wgmma|tcgen05|ldmatrix)": "it uses tensor cores in another way than `wmma`",
    r"\basm\b": "it has inline assembly",
}
_LONGEST_S = 300.0
"""A program that runs for longer than this, in seconds, is stopped."""
_FAULTS = re.compile(r"AddressSanitizer: [\w-]+|runtime error: .*|kernel `.*")
"""How a program says what is wrong: the sanitizers, and `Fail` of the emulation."""


class EmulatedKernel:
    """A kernel that runs on the CPU, and can be checked by `tvm_interop.kernels.check`.

    Attributes
    ----------
    runs: number of times that the kernel ran to its end.
    failed: whether a run found a fault of the kernel, apart from wrong results.
    last: the tensors of the last run that ended: inputs, and results.
    """

    def __init__(self, program: Path, workspaces: Sequence[int]) -> None:
        """Take the program that `build_program` made.

        Parameters
        ----------
        workspaces: the sizes in bytes of the kernel's last parameters, whose values do not matter.
        """
        self._program = program
        self._workspaces = list(workspaces)
        self.runs = 0
        self.failed = False
        self.last: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])

    def run_fenced(
        self,
        tensors: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        before_fence: bool,
        fill: int,
    ) -> str:
        """Run the kernel, as `tvm_interop.kernels.check.RunsFenced` describes.

        `before_fence` has no effect: it serves to find accesses outside of tensors, and here
        sanitizers find them.
        """
        said = self._run(tensors, results, fill)
        self.failed |= bool(said)
        return said

    def _run(self, tensors: Sequence[np.ndarray], results: Sequence[np.ndarray], fill: int) -> str:
        given = [array.tobytes() for array in tensors]
        sizes = [array.nbytes for array in results] + self._workspaces
        filled = [bytes([fill]) * size for size in sizes]
        try:
            done = subprocess.run(
                [str(self._program)],
                input=b"".join([*given, *filled]),
                capture_output=True,
                timeout=_LONGEST_S,
                env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"runs for more than {_LONGEST_S:.0f} seconds"
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace")
            return f"fails: {_fault(said, done.returncode, self._program.with_suffix('.cc'))}"
        begin = 0
        for i, before in enumerate(given):
            if done.stdout[begin : begin + len(before)] != before:
                return f"writes to input {i}"
            begin += len(before)
        for array in results:
            written = np.frombuffer(done.stdout, np.uint8, array.nbytes, begin)
            array.reshape(-1).view(np.uint8)[:] = written
            begin += array.nbytes
        self.runs += 1
        self.last = (list(tensors), [array.copy() for array in results])
        return ""


def build_program(
    code: DeviceCode, sizes: Sequence[int], program: Path, sanitize: bool = True
) -> None:
    """Compile a program that reads tensors, makes the launches, and writes the tensors.

    Parameters
    ----------
    sizes: the bytes of each tensor of the kernel, in the order of its parameters.
    program: the file to write. The source goes to a file beside it.
    sanitize: whether to find accesses outside of tensors and arrays, and misaligned vectors. The
        program is then several times slower.

    Raises
    ------
    NotExecutedError
        The source has something that is not emulated, or the compiler refuses it.
    DeviceError
        There is no C++ compiler.
    """
    linker = find_linker()
    source = program.with_suffix(".cc")
    source.write_text(program_source(code, sizes))
    options = (*_OPTIONS, *(_SANITIZERS if sanitize else ()))
    command = [linker.command, *linker.options, *options, f"-I{INCLUDE}"]
    done = subprocess.run(
        [*command, str(source), "-o", str(program)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        refused = [line for line in done.stderr.splitlines() if "error" in line]
        raise NotExecutedError(f"{linker.command} refuses it: {(refused or [done.stderr])[0]}")


def program_source(code: DeviceCode, sizes: Sequence[int]) -> str:
    """The C++ source of the program of `build_program`.

    Raises
    ------
    NotExecutedError
        The source has something that is not emulated.
    """
    functions = code.source[code.source.index(_FIRST_FUNCTION) :]
    for pattern, reason in _NOT_EMULATED.items():
        if re.search(pattern, functions):
            raise NotExecutedError(reason)
    source = _DYNAMIC_SHARED.sub(
        r"\g<type>* const \g<name> = cuda_emulation::DynamicShared<\g<type>>();", code.source
    )
    source = _SHARED.sub(_declared, source)
    if "__shared__" in source:
        raise NotExecutedError("it declares shared memory in a way that is not emulated")
    launches = "\n".join(_launch(code.source, launch) for launch in code.launches)
    return f"""#include "launch.h"
{source}
static void Launches(const cuda_emulation::Tensors& tensors) {{
{launches}
}}
int main() {{ return cuda_emulation::Main({{{_listed(sizes)}}}, Launches); }}
"""


def _declared(found: re.Match[str]) -> str:
    """The C++ text that replaces a shared array: a static array that the emulation knows."""
    array = found.group().removeprefix("__shared__ ").removeprefix(found["alignment"])
    name = found["name"]
    known = f"static const bool {name}_is_shared = cuda_emulation::DeclareShared"
    return f"{found['alignment']}static {array} {known}({name}, sizeof({name}));"


def _launch(source: str, launch: Launch) -> str:
    name = launch.function
    bounds = re.search(rf"__launch_bounds__\((\d+)\) {name}\(", source)
    setting = ", ".join(
        [
            f'"{name}"',
            f"{{{_listed(launch.grid)}}}",
            f"{{{_listed(launch.block)}}}",
            bounds[1] if bounds else "0",
            str(launch.dynamic_shared_bytes),
            f"{{{_listed(launch.tensors)}}}",
        ]
    )
    return f"  cuda_emulation::Launch({{{setting}}}, {name}, tensors);"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _fault(said: str, code: int, source: Path) -> str:
    """Describe the fault that made a program end with exit code `code`.

    The description has the text `said`, which the program printed, and the line of source that this
    text names.
    """
    found = _FAULTS.search(said)
    if found is None:
        return f"its program ends with {code} and says: {said.strip()[-300:]}"
    place = re.search(rf"{re.escape(source.name)}:(\d+)|at line (\d+)", said)
    if place is None:
        return found.group()
    line = source.read_text().splitlines()[int(place[1] or place[2]) - 1]
    return f"{found.group()}, in `{line.strip()}`"
