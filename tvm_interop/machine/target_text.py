"""Reads targets in TVM's old notation, such as `llvm -mcpu=skylake-avx512`.

TVM itself no longer reads the old notation. It reads options only as JSON.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from ..errors import DeviceError

_LISTS = ("mattr",)
_INTEGERS = ("num-cores", "max_num_threads", "thread_warp_size")
_TEXTS = ("arch", "mabi", "mcpu", "mtriple")

TARGET_OPTIONS = (*_TEXTS, *_LISTS, *_INTEGERS)
"""The options that a target in the old notation may have."""


def read_target(text: str) -> Any:
    """Read a target from text: a kind such as `llvm`, a JSON object, or a kind and its options.

    Returns
    -------
    `text` itself if it is only a kind, else a dict for `tvm.target.Target`.

    Raises
    ------
    DeviceError
        TVM no longer supports an option, or the JSON cannot be read. The message names the problem.

    Examples
    --------
    >>> read_target("llvm -mcpu=core-avx2 -mattr=+fma,+f16c")
    {'kind': 'llvm', 'mcpu': 'core-avx2', 'mattr': ['+fma', '+f16c']}
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise DeviceError(f"target `{text}` is not JSON: {error}") from error
    kind, *rest = shlex.split(text) or [""]
    if not rest:
        return text
    return {"kind": kind, **dict(_option(text, word) for word in rest)}


def _option(target: str, word: str) -> tuple[str, Any]:
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("-") or not equals:
        raise DeviceError(f"target `{target}`: cannot read `{word}`; write -NAME=VALUE")
    if name in _LISTS:
        return name, value.split(",")
    if name in _INTEGERS and value.isdigit():
        return name, int(value)
    if name in _TEXTS:
        return name, value
    raise DeviceError(
        f"target `{target}`: `-{name}` has no meaning here; the options are "
        + ", ".join(f"-{known}" for known in (*_TEXTS, *_LISTS, *_INTEGERS))
    )
