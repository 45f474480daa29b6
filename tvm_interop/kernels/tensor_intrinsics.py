"""Imports TVM's tensor intrinsics in two seconds instead of twenty.

TVM's MetaSchedule imports all tensor intrinsics of TVM, and so does dlight's rule for tensor cores
when it is first used. During this import, 200 functions call `inspect.stack`, which searches every
module for the source lines of every frame. TVM needs only the frames, without their source lines.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MODULE = "tvm.s_tir.tensor_intrin"


def import_tensor_intrinsics() -> None:
    """Import TVM's tensor intrinsics, unless this process has imported them already."""
    with quick_call_stacks():
        importlib.import_module(_MODULE)


@contextmanager
def quick_call_stacks() -> Iterator[None]:
    """Make `inspect.stack` leave out source lines until the intrinsics have been imported."""
    if _MODULE in sys.modules:
        yield
        return
    whole = inspect.stack
    inspect.stack = _stack
    try:
        yield
    finally:
        inspect.stack = whole


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    """The frames that `inspect.stack` lists, innermost first, without their source lines."""
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        info = inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        frames.append(info)
        frame = frame.f_back  # type: ignore[assignment]
    return frames
