"""Where the oracles differ, which is right by ONNX's text; and what is refused, and why."""

from __future__ import annotations

from typing import NamedTuple

DECIDED: dict[str, tuple[str, str]] = {}
"""By operator the oracle that counts (`onnxruntime`, `reference`, `either`), and the reason."""


class Refusal(NamedTuple):
    """What is refused although onnxruntime runs it.

    Attributes
    ----------
    op: the operator; any if empty.
    words: of our message.
    reason: why it stays so.
    """

    op: str
    words: str
    reason: str


REFUSED: list[Refusal] = []
