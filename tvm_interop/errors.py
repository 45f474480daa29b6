"""Every exception that `tvm_interop` raises on purpose.

An error's message names the object at fault, such as an operator or a file. It says what is wrong
with the object, and what the user can do. The native code raises the same classes, because
`_native.library` registers each class with tvm-ffi under the name of the class.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

_DEFINITION = re.compile(r'\bir\.Op\(span=None, .*?name="([^"]+)".*?support_level=\d+\)')
"""Matches the definition of an operator, as TVM writes it in error messages."""


class TVMInteropError(Exception):
    """Base class of all exceptions of this package."""


class UnsupportedModelError(TVMInteropError):
    """A model cannot be imported: its file is bad, a shape is dynamic, or TVM lacks an operator.

    Attributes
    ----------
    node: the node at fault, with the type of its operator; empty if no single node is at fault.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class GraphError(TVMInteropError):
    """An operator graph has a cycle, an edge to an unknown operator, or a name used twice."""


class ScheduleError(TVMInteropError):
    """A schedule is malformed or breaks a dependency, or the named scheduler does not exist."""


class NoLatencyError(ScheduleError):
    """A scheduler needs a latency model and was given none."""


class PlanError(TVMInteropError):
    """An execution plan is unsafe: it lacks a wait, or unordered operators share storage."""


class ArtifactError(TVMInteropError):
    """A file is not an artifact, is damaged, or has a format that this version cannot read."""


class DeviceError(TVMInteropError):
    """A device or needed software is missing, or this process cannot use its GPU any more."""


class InputError(TVMInteropError):
    """An input or output of a model has a wrong name, shape or type."""


class CannotFillUpError(InputError):
    """A model cannot run with inputs padded to a larger size, so each size must be compiled.

    Attributes
    ----------
    why: the reason.
    advice: what the user can do instead. In the message, the advice follows the reason.
    """

    def __init__(self, why: str, advice: str) -> None:
        """Make the error's message: the reason, the advice, and a hint to use `Session`."""
        super().__init__(
            f"{why}{advice}, or run the model by `Session`, which compiles each size at its first "
            "run"
        )
        self.why, self.advice = why, advice


class OutOfTimeError(TVMInteropError):
    """A compilation needed a measurement when its time budget was already spent."""


class LatencyError(TVMInteropError, ValueError):
    """A latency is negative, not a number, or missing; the message names the operator."""


class ExecutionError(TVMInteropError):
    """An operator failed while a model ran, or a model cannot run on this machine."""


class Terminated(BaseException):
    """The process of a command line received SIGTERM or SIGHUP.

    Like KeyboardInterrupt, this is no `Exception`, so that only the command line catches it.

    Attributes
    ----------
    number: the number of the signal.
    """

    def __init__(self, number: int | str) -> None:
        super().__init__(number)
        self.number = int(number)  # tvm-ffi passes the number on as text.


class ServingError(TVMInteropError):
    """A server did not serve a request. Its subclasses say why."""


class ModelNotFoundError(ServingError):
    """A server has no model of the requested name or version."""


class OverloadedError(ServingError):
    """The queue of a model is full.

    Attributes
    ----------
    retry_after_s: seconds after which the queue should have space for another request.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class AccessError(ServingError):
    """The sender of a request may not use the server."""


class TokenError(AccessError):
    """A request came without the token that the server requires, or with a wrong token."""


class TooLargeError(ServingError):
    """A request has more bytes than the server accepts."""


class UnavailableError(ServingError):
    """A server accepts no requests, because it is shutting down or is not ready yet."""


class DeadlineError(ServingError):
    """A request was not started, because it could not be served by its deadline."""


class CancelledError(ServingError):
    """A client disconnected before the server started its request."""


def cut(value: object, most: int = 100) -> str:
    """Convert `value` to text for an error message, and cut the text after `most` characters.

    A user may send text of any length, and messages should stay short.

    Examples
    --------
    >>> cut("a" * 10, most=4)
    'aaaa… (10 characters)'
    """
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def only_runtime(what: str) -> DeviceError:
    """Return the error for a task that the package `tvm-interop-runtime` alone cannot do."""
    return DeviceError(
        f"{what} needs the package `tvm-interop`, and only `tvm-interop-runtime` is installed, "
        "which loads and runs compiled models: `pip install tvm-interop`"
    )


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Ask, for an error message, whether the user meant the name in `known` closest to `name`.

    The result is empty if no name is close. A name that differs only in case is the closest. A name
    of more than 200 characters is not compared, because the time for a comparison grows with the
    square of the length.

    Examples
    --------
    >>> did_you_mean("grady", ["greedy", "ios"])
    ' (did you mean `greedy`?)'
    >>> did_you_mean("X", ["x"])
    ' (did you mean `x`?)'
    """
    if len(name) > 200:
        return ""
    close = [each for each in known if each.casefold() == name.casefold()]
    close = close or difflib.get_close_matches(name, known, n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def first_line(error: Exception) -> str:
    """The first line of the message of `error`, or the name of its class if it has no message.

    Messages of TVM's errors go on with a backtrace, which is left out. Where a message has the
    whole definition of an operator, only the operator's name is kept.
    """
    text = _DEFINITION.sub(r"`\1`", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
