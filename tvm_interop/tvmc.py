"""Runs command lines of tvmc, for example `python -m tvm_interop.tvmc compile model.onnx`.

tvmc was removed in TVM 0.20. This module translates its commands `compile` and `run` into commands
of `tvm-interop`. It accepts abbreviated options, as tvmc did. Options that mean the same in
`tvm-interop` are passed on. Options that change nothing are accepted with a message. Options
without a counterpart are refused with a message, which says what to use instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .cli.app import run_app
from .errors import InputError, TVMInteropError
from .machine.target_text import TARGET_OPTIONS, read_target

_HARMLESS = {
    "--desired-layout": "models come in NCHW, and kernels choose their own layouts",
    "--executor": "the graph executor is the only one",
    "--module-name": "a library has no name",
    "--runtime": "the C++ runtime is the only one",
}
"""Options that are accepted but change nothing, each with the reason."""

_REFUSED = {
    "--desired-layout-ops": "layouts are chosen by measurement",
    "--dump-code": "`tar -xf model.tar kernels.so` takes the kernels out",
    "--dump-offloads": "`tvm-interop show model.tar` tells which library runs what",
    "--list-options": "there are no micro targets",
    "--mixed-precision": "convert the model to float16 before it is compiled",
    "--options": "there are no micro targets",
    "--project-option": "there are no micro targets",
    "--target-": "the target has no such option",
    "--workspace-pools": "memory is planned for each schedule",
}
"""Options that are refused, each with the reason or with what to use instead."""

_VERBS = {
    "micro": "microTVM left TVM",
    "tune": "use `tvm-interop tune MODEL --kernels`",
}
"""Commands of tvmc that are refused, each with the reason or with what to use instead."""

_FIXED = {"--executor": "graph", "--runtime": "cpp", "--desired-layout": "NCHW"}
"""Options for which only one value is supported, each with this value."""

_KINDS = ("llvm", "cuda")
_OPTION = "target option "
"""Prefix of the names under which the parser stores options such as `--target-llvm-mcpu`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line of tvmc. Return the exit code of `run_app`, or 2 for an invalid line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        translated = translate(given)
    except TVMInteropError as error:
        print(f"tvmc: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as exit:  # argparse has printed help or an error, and raises SystemExit.
        return exit.code if isinstance(exit.code, int) else 2
    return run_app(translated)


def translate(arguments: Sequence[str]) -> list[str]:
    """Translate a command line of tvmc into a command line of `tvm-interop`.

    Raises
    ------
    InputError, DeviceError
        A command, an option or a target of tvmc has no counterpart in `tvm-interop`.
    """
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verb in _VERBS:
        raise InputError(f"`tvmc {verb}` is not run here: {_VERBS[verb]}")
    parsed, rest = _parser().parse_known_args(arguments)
    options = vars(parsed)
    if rest:
        _refuse(rest[0])
    if options["verb"] == "compile":
        _take_target(options)
        _take_cross_compiler(options)
    translated = [options.pop("verb"), options.pop("FILE")]
    for name, value in options.items():
        translated += _passed_on(f"--{name.replace('_', '-')}", value)
    return translated


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tvmc", description=__doc__)
    parser.add_argument(
        "--version", action="version", version="the commands of tvmc, run by tvm_interop"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)

    compile = verbs.add_parser("compile", help="compile a model")
    compile.add_argument("FILE")
    compile.add_argument("-o", "--output", default="module.tar")
    compile.add_argument("-f", "--output-format")
    compile.add_argument("-O", "--opt-level")
    compile.add_argument("--pass-config", action="append")
    for name in ("target", "model-format", "input-shapes", "disabled-pass", "desired-layout"):
        compile.add_argument(f"--{name}")
    for name in ("executor", "runtime", "module-name", "tuning-records"):
        compile.add_argument(f"--{name}")
    compile.add_argument("--cross-compiler")
    compile.add_argument("--cross-compiler-options", default="")
    for kind in _KINDS:
        for name in TARGET_OPTIONS:
            compile.add_argument(f"--target-{kind}-{name}", dest=f"{_OPTION}{kind}-{name}")
    compile.add_argument("--print-pass-times", action="store_true")
    compile.add_argument("--print-ir-before")
    compile.add_argument("--print-ir-after")
    compile.add_argument("-v", "--verbose", action="count")

    run = verbs.add_parser("run", help="run a compiled model")
    run.add_argument("FILE")
    run.add_argument("-i", "--inputs")
    run.add_argument("-o", "--outputs")
    run.add_argument("--device")
    run.add_argument("--fill-mode", default="random")
    run.add_argument("--print-time", action="store_true")
    run.add_argument("--print-top")
    run.add_argument("--profile", dest="print_profile", action="store_true")
    run.add_argument("--end-to-end", action="store_true")
    run.add_argument("--repeat", default="1")
    run.add_argument("--number", default="1")
    run.add_argument("--rpc-tracker")
    run.add_argument("--rpc-key")
    run.add_argument("-v", "--verbose", action="count")
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def _take_target(options: dict[str, Any]) -> None:
    """Move the values of options such as `--target-llvm-mcpu` into the option `target`."""
    found = {key: options.pop(key) for key in [key for key in options if key.startswith(_OPTION)]}
    kind = str(options["target"] or "llvm").split(" ")[0]
    given = {key: value for key, value in found.items() if value is not None}
    for key in given:
        if not key.startswith(f"{_OPTION}{kind}-"):
            raise InputError(f"`--target-{key.removeprefix(_OPTION)}` is not an option of `{kind}`")
    words = [f"-{key.removeprefix(f'{_OPTION}{kind}-')}={value}" for key, value in given.items()]
    if words:
        options["target"] = json.dumps(read_target(" ".join([options["target"] or "llvm", *words])))


def _take_cross_compiler(options: dict[str, Any]) -> None:
    """Join the cross compiler and its options into one command."""
    given = options.pop("cross_compiler_options")
    if given and not options["cross_compiler"]:
        raise InputError("--cross-compiler-options goes with --cross-compiler: give both")
    if options["cross_compiler"]:
        options["cross_compiler"] = f"{options['cross_compiler']} {given}".strip()


def _refuse(option: str) -> NoReturn:
    name = option.partition("=")[0]
    known = next((known for known in _REFUSED if name.startswith(known)), None)
    why = (
        f": {_REFUSED[known]}" if known else "; see `tvm-interop --help` for the options that exist"
    )
    raise InputError(f"`{name}` has no meaning here{why}")


def _passed_on(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if name in _FIXED and value.lower() != _FIXED[name].lower():
        raise InputError(
            f"{name} `{value}` is not supported here; the only value is `{_FIXED[name]}`"
        )
    if name in _HARMLESS:
        print(f"tvmc: {name} {value} changes nothing: {_HARMLESS[name]}", file=sys.stderr)
        return []
    if name == "--verbose" or value is True:
        return [name]
    if isinstance(value, list):
        return [word for entry in value for word in (name, entry)]
    return [name, str(value)]


if __name__ == "__main__":
    sys.exit(main())
