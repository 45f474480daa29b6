"""Finds the code blocks of README and docs, and makes the model that these blocks run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[1]
_WRITTEN = (
    "CHANGELOG.md", "benchmarks.md", "cli.rst", "kinds.md", "results.md", "serving_results.md",
    "sg_execution_times.rst",
)  # fmt: skip
_FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_DIRECTED = re.compile(
    r"^(?P<head>\.\. code-block:: *(?P<language>\w+)|.*(?<!:)::)\n(?P<text>(?:\n| {3,}.*\n?)+)",
    re.MULTILINE,
)
_DIRECTIVE = re.compile(r"^ *\.\. (?!code-block)")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes
    ----------
    page: path of the file, relative to the root of the repository.
    language: `python`, `console` and so on; `none` if the page names no language.
    """

    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """The first line, which serves as the name of the block."""
        return self.text.lstrip("\n").partition("\n")[0].strip()


def blocks() -> Iterator[Block]:
    """Yield every code block of README and docs, but no code blocks of generated pages."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*.rst")]):
        if path.name not in _WRITTEN:
            yield from in_page(path.relative_to(ROOT).as_posix(), path.read_text())


def in_page(page: str, text: str) -> Iterator[Block]:
    """Yield the code blocks of one page."""
    pattern = _FENCED if page.endswith(".md") else _DIRECTED
    for found in pattern.finditer(text):
        if "head" not in found.groupdict() or not _DIRECTIVE.match(found["head"]):
            yield Block(page, found["language"] or "none", textwrap.dedent(found["text"]))


def commands(block: Block) -> list[str]:
    """Return the command lines of `tvm-interop` in a block, without comments.

    A command that continues on the next line is returned as one line.
    """
    joined = re.sub(r"\\\n\s*", "", block.text)
    lines = (line.strip().removeprefix("$ ").partition("  #")[0] for line in joined.splitlines())
    return [line for line in lines if line.startswith("tvm-interop ")]


def small_model(name: str) -> onnx.ModelProto:
    """A model with the input `name` and the output `y`, which is the ReLU of twice the input."""
    shape = [1, 3]
    graph = helper.make_graph(
        [helper.make_node("Add", [name, name], ["d"]), helper.make_node("Relu", ["d"], ["y"])],
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
