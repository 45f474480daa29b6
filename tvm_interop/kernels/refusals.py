"""Tells what TVM refuses to do with a kernel from a fault of those who ask it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def is_refusal(error: Exception) -> bool:
    """Whether TVM's native code raised it, which marks all that it raises.

    A transformation does not fit a kernel, and TVM alone knows beforehand which do. What Python
    raises by itself, such as an AttributeError, is a fault of whoever wrote the rule.
    """
    return hasattr(error, "__tvm_ffi_error__")


@contextmanager
def unless_refused() -> Iterator[None]:
    """Do what is inside, but for what TVM refuses."""
    try:
        yield
    except Exception as error:
        if not is_refusal(error):
            raise
