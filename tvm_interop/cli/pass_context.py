"""Sets up TVM's pass context from `--opt-level`, `--pass-config` and related options."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm.ir.instrument import PassTimingInstrument, pass_instrument

from ..errors import InputError, did_you_mean

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@contextmanager
def pass_context(
    opt_level: int | None = None,
    config: Sequence[str] = (),
    disabled: str | None = None,
    print_times: bool = False,
    print_before: str | None = None,
    print_after: str | None = None,
) -> Iterator[None]:
    """Run the `with` block in a pass context of TVM that has the given settings.

    Pass times and programs are printed on standard error.

    Parameters
    ----------
    opt_level: the optimization level; None for TVM's own.
    config: entries `NAME=VALUE` of TVM's pass configuration.
    disabled: names of the passes to leave out, separated by commas.
    print_times: whether to print how long each pass took.
    print_before, print_after: names of the passes before or after which the program is printed,
        separated by commas.

    Raises
    ------
    InputError
        TVM has no configuration entry of a given name, or a value is not of its entry's type.
    """
    timing = PassTimingInstrument()
    printing = _PrintPrograms(_names(print_before), _names(print_after))
    wanted = [timing] if print_times else []
    if print_before or print_after:
        wanted.append(printing)
    settings: dict[str, Any] = {} if opt_level is None else {"opt_level": opt_level}
    context = tvm.transform.PassContext(
        config=read_config(config),
        disabled_pass=sorted(_names(disabled)),
        instruments=wanted or None,
        **settings,
    )
    with context:
        yield
        if print_times:
            print(timing.render(), file=sys.stderr)
    if print_before or print_after:
        printing.tell_unknown()


def read_config(entries: Sequence[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` entries of TVM's pass configuration. Convert values to the types of the
    entries.

    Raises
    ------
    InputError
        TVM has no configuration entry of a given name, or a value is not of its entry's type.
    """
    known = {str(name): str(about["type"]) for name, about in _known_config().items()}
    return dict(_read_entry(entry, known) for entry in entries)


def _known_config() -> Any:
    return tvm.transform.PassContext.list_configs()


def _read_entry(entry: str, known: dict[str, str]) -> tuple[str, Any]:
    name, equals, text = (part.strip() for part in entry.partition("="))
    if not equals:
        raise InputError(f"--pass-config: cannot read `{entry}`; write NAME=VALUE")
    if name not in known:
        raise InputError(
            f"--pass-config: TVM has no `{name}`{did_you_mean(name, sorted(known))}; "
            f"it has {', '.join(sorted(known))}"
        )
    kind = known[name]
    if kind == "bool" and text.lower() in _TRUTH:
        return name, _TRUTH[text.lower()]
    if kind == "int" and text.removeprefix("-").isdecimal():
        return name, int(text)
    readable = {"bool": "true or false", "int": "a whole number"}.get(kind)
    reason = (
        f"it must be {readable}" if readable else f"a {kind} cannot be written on a command line"
    )
    raise InputError(f"--pass-config: `{name}` cannot be `{text}`: {reason}")


def _names(text: str | None) -> set[str]:
    """Split names of passes at commas. Brackets and quotes around names are dropped, as in tvmc."""
    names = (text or "").strip("[] ").split(",")
    return {name.strip(" \"'") for name in names if name.strip(" \"'")}


@pass_instrument
class _PrintPrograms:
    """Prints the program before and after the passes whose names are given."""

    def __init__(self, before: set[str], after: set[str]) -> None:
        self.before = before
        self.after = after
        self.seen: set[str] = set()

    def run_before_pass(self, mod: Any, info: Any) -> None:
        self.seen.add(str(info.name))
        if info.name in self.before:
            print(f"# before {info.name}\n{mod.script()}", file=sys.stderr)

    def run_after_pass(self, mod: Any, info: Any) -> None:
        if info.name in self.after:
            print(f"# after {info.name}\n{mod.script()}", file=sys.stderr)

    def tell_unknown(self) -> None:
        """Print each given name of a pass that did not run."""
        for name in sorted((self.before | self.after) - self.seen):
            ran = ", ".join(sorted(self.seen))
            print(
                f"tvm-interop: no pass `{name}` ran; the passes that ran are {ran}", file=sys.stderr
            )
