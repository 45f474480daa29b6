"""Distinguishes a transformation that TVM refuses from an error in our own scheduling rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def is_refusal(error: Exception) -> bool:
    """Whether TVM's native code raised `error`; this code marks its errors by an attribute.

    If TVM's native code raises an error, it refuses a transformation that does not fit the kernel.
    Only TVM knows which transformations fit. Any other error, such as Python's AttributeError,
    shows a fault in the scheduling rule.
    """
    return hasattr(error, "__tvm_ffi_error__")


@contextmanager
def unless_refused() -> Iterator[None]:
    """Run the body of the `with` statement, and ignore errors that TVM's native code raises."""
    try:
        yield
    except Exception as error:
        if not is_refusal(error):
            raise
