"""Every exception that `tvm_interop` raises on purpose.

A message names the offender, says what is wrong with it, and says what to do. The native code
raises the same classes: `_native.library` registers each class with tvm-ffi under its own name.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class TVMInteropError(Exception):
    """Base class of all errors below; catch it to catch them all."""


class UnsupportedModelError(TVMInteropError):
    """The model cannot be imported: no ONNX file, a dynamic shape, an operator TVM lacks.

    Attributes
    ----------
    node: the node at which the import ended, with its operator; empty if no single node is at
        fault.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class GraphError(TVMInteropError):
    """An operator graph is malformed: a cycle, an unknown vertex, a name used twice."""


class ScheduleError(TVMInteropError):
    """A schedule is malformed or breaks a dependency, or the named scheduler does not exist."""


class NoLatencyError(ScheduleError):
    """A scheduler needs a latency model and was given none."""


class PlanError(TVMInteropError):
    """An execution plan is unsafe: a missing wait, or storage shared without an order."""


class ArtifactError(TVMInteropError):
    """A file is no artifact, is damaged, or is from a version that this version cannot read."""


class DeviceError(TVMInteropError):
    """A device or a tool that is needed is missing."""


class InputError(TVMInteropError):
    """An input or output of a model was named, shaped or typed wrongly."""


class LatencyError(TVMInteropError, ValueError):
    """A latency is negative, not a number, or missing; the message names the operator."""


class ExecutionError(TVMInteropError):
    """An operator failed while a model ran, or a model cannot run on this machine."""


class ServingError(TVMInteropError):
    """A server did not answer a request; the classes below say why."""


class ModelNotFoundError(ServingError):
    """A server has no model of that name or version."""


class OverloadedError(ServingError):
    """The queue of a model is full.

    Attributes
    ----------
    retry_after_s: seconds after which there should be room in the queue.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class AccessError(ServingError):
    """The sender of a request may not use the server."""


class TokenError(AccessError):
    """A request did not bring the token that the server wants."""


class TooLargeError(ServingError):
    """A request has more bytes than the server takes."""


class UnavailableError(ServingError):
    """A server takes no requests: it is ending, or is not ready yet."""


class DeadlineError(ServingError):
    """A request could not be served by its deadline; the request was never started."""


class CancelledError(ServingError):
    """The sender of a request has gone; the request was never started."""


def cut(value: object, most: int = 100) -> str:
    """`value` as text for a message, cut after `most` characters: users send texts of any length.

    Examples
    --------
    >>> cut("a" * 10, most=4)
    'aaaa… (10 characters)'
    """
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A question with the name in `known` that is closest to `name`; empty if none is close.

    A name of more than 200 characters has no close name: comparing takes time that grows with the
    square of its length.

    Examples
    --------
    >>> did_you_mean("grady", ["greedy", "ios"])
    ' (did you mean `greedy`?)'
    """
    close = difflib.get_close_matches(name, known, n=1) if len(name) <= 200 else []
    return f" (did you mean `{close[0]}`?)" if close else ""


def first_line(error: Exception) -> str:
    """The first line of `error`'s message, before TVM's backtrace; else the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
