"""Runs the code blocks of README and docs. `NOT_RUN` says why some blocks are not run."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import typer

import tvm_interop
from tests.code_blocks import Block, blocks, commands, in_page, small_model
from tests.string_nets import classifier, features
from tvm_interop import tvmc
from tvm_interop.cli.app import app
from tvm_interop.serving.server.config import read_config

BLOCKS = list(blocks())
NO_CODE = {"docs/architecture.rst", "docs/how_it_works.rst"}
"""Pages whose code blocks are diagrams."""
NOT_RUN = {
    ("README.md", "model.onnx      Relax module      Program       Schedule        Plan            "
     "Artifact"): "a picture",
    ("docs/add_kind.rst", "pytest tests/unit/test_kinds.py        # each case in every layout "
     "and precision"): "commands of the tests themselves",
    ("docs/deploy.rst", 'cmake -S examples -B build/examples -Dtvm_interop_DIR="$(tvm-interop '
     'config --cmakedir)"'): "test_runtime_examples does that",
    ("docs/deploy.rst", "# On your machine:"): "test_farm and test_remote do that",
    ("docs/deploy.rst", "FROM scratch"): "test_runtime_examples runs the folder with unshare",
    ("docs/deploy.rst", "app/program                       <1 MB    the program"):
        "a listing",
    ("docs/deploy.rst", "FROM python:3.12-slim"): "needs a container engine and a network",
    ("docs/install.rst", "pip install ."): "needs a network",
    ("docs/runtime.rst", 'cmake -S examples -B build/examples -Dtvm_interop_DIR="$(tvm-interop '
     'config --cmakedir)"'): "test_runtime_examples does that",
    ("docs/runtime.rst", "find_package(tvm_interop REQUIRED)"): "test_runtime_examples does that",
    ("docs/runtime.rst", 'export PKG_CONFIG_PATH="$(tvm-interop config --pkgconfigdir)"'):
        "test_runtime_examples does that",
    ("docs/server.rst", "from ray import serve"): "needs a Ray cluster",
    ("docs/server.rst", "apiVersion: serving.kserve.io/v1alpha1"): "needs a cluster with KServe",
    ("docs/serving.rst", "from tvm_interop.serving import Programs, periodic, simulate_combined"):
        "trains for minutes, with PyTorch",
    ("docs/serving.rst", "from tvm_interop.serving.learning.top import OURS, TopTraining"):
        "trains for minutes, with PyTorch",
    ("docs/several_gpus.rst", "no device `cuda:1`: this machine has 1, numbered from 0"):
        "a message; needs a GPU",
}  # fmt: skip
"""The blocks that no test runs, by page and first line, each with the reason."""


def _is_python(block: Block) -> bool:
    return block.language == "python" or block.first_line.startswith("from tvm_interop import")


def _pages(wanted: Any) -> list[str]:
    return list(dict.fromkeys(block.page for block in BLOCKS if wanted(block)))


@pytest.mark.parametrize("page", _pages(_is_python))
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order, as one program."""
    if page == "docs/server.rst":
        pytest.importorskip("tritonclient.grpc", reason="extra `serve`")
    monkeypatch.chdir(tmp_path)
    names = _beforehand(page)
    with contextlib.redirect_stdout(io.StringIO()), _own_onnxruntime():
        for block in BLOCKS:
            if block.page == page and _is_python(block) and _key(block) not in NOT_RUN:
                exec(compile(block.text, page, "exec"), names)


@contextlib.contextmanager
def _own_onnxruntime() -> Iterator[None]:
    """Give later tests onnxruntime itself, also if a page puts our module in its place.

    Packages that were imported meanwhile, and have our classes, are imported anew.
    """
    before = set(sys.modules)
    try:
        yield
    finally:
        if sys.modules["onnxruntime"] is not onnxruntime:
            sys.modules["onnxruntime"] = onnxruntime
            for name in set(sys.modules) - before:
                if name.partition(".")[0] == "rapidocr_onnxruntime":
                    del sys.modules[name]


def _beforehand(page: str) -> dict[str, Any]:
    """Write the files that a page expects its reader to have, and return the values that the
    page uses."""
    image = np.linspace(-1, 1, 3, dtype=np.float32).reshape(1, 3)
    name = {"docs/session.rst": "image", "docs/server.rst": "x"}.get(page, "data")
    model = small_model(name)
    onnx.save(model, "model.onnx")
    if page == "docs/server.rst":
        tvm_interop.compile(model, scheduler="sequential", out="a.tar")
    names: dict[str, Any] = {"image": image, "array": image}
    if page == "docs/session.rst":
        tvm_interop.compile(classifier(), scheduler="sequential", out="classifier.tar")
        names["x"] = features()
    if page == "docs/several_gpus.rst":
        edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
        names |= {
            "Schedule": tvm_interop.Schedule,
            "graph": tvm_interop.OpGraph.from_edges(4, edges),
        }
    return names


@pytest.mark.parametrize(
    ("page", "line"), [(block.page, line) for block in BLOCKS for line in commands(block)]
)
def test_command_lines_are_understood(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    for word in words:
        if "." in word and "/" not in word:
            Path(word).touch()
    _parse(words)


def test_a_command_line_that_does_not_exist_is_noticed() -> None:
    for line in ("compile model.onnx --no-such-option", "no-such-verb"):
        with pytest.raises(typer.TyperException):
            _parse(line.split())


def _parse(words: Sequence[str]) -> None:
    """Parse a command line, which raises an error if it has an unknown verb or option."""
    command: Any = typer.main.get_command(app)
    name, rest = "tvm-interop", list(words)
    parent = None
    while True:
        context = command.make_context(name, list(rest), parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        parent = context


def test_tvmc_lines_are_understood() -> None:
    lines = [
        line.split("tvm_interop.tvmc ")[1]
        for block in BLOCKS for line in block.text.splitlines() if "-m tvm_interop.tvmc " in line
    ]  # fmt: skip
    assert len(lines) >= 2
    for line in lines:
        assert tvmc.translate(shlex.split(line))


def test_configurations_are_read(tmp_path: Path) -> None:
    texts = [block.text for block in BLOCKS if block.language == "toml"]
    assert texts
    for text in texts:
        path = tmp_path / "server.toml"
        path.write_text(text)
        assert read_config(path)


_BEFORE = {
    "c": "#include <stdio.h>\n#include <stdlib.h>\n#include <tvm_interop/runtime.h>\n"
         "float image[8], scores[8];\n",
    "cpp": "#include <vector>\n#include <tvm_interop/runtime.hpp>\n"
           "std::vector<float> image(8), scores(8);\n",
}  # fmt: skip
"""For each language of the runtime library, the code to compile before a block of a page."""


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in _BEFORE], ids=lambda b: b.first_line
)
def test_c_and_cpp_are_compiled(block: Block, tmp_path: Path) -> None:
    """The compiler checks each code block as the body of a function."""
    lines = [line for line in block.text.splitlines() if not line.startswith("#include")]
    before = _BEFORE[block.language]
    if "model = " not in block.text and "tvi_model* model" not in block.text:
        before += "tvi_model* model;\n"
    if "(instance" in block.text and "tvi_instance* instance" not in block.text:
        before += "tvi_instance* instance;\n"
    source = tmp_path / f"block.{block.language}"
    body = "\n".join(lines)
    source.write_text(f"{before}void body(void) {{\n{body}\n}}\n")
    headers = Path(__file__).parents[2] / "runtime" / "include"
    compiler = {"c": "cc", "cpp": "c++"}[block.language]
    done = subprocess.run(
        [compiler, "-fsyntax-only", "-Wall", "-Wextra", f"-I{headers}", str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_block_runs_or_says_why_not() -> None:
    left = [
        _key(block)
        for block in BLOCKS
        if not _is_python(block)
        and not commands(block)
        and block.language not in {"toml", *_BEFORE}
        and "tvm_interop.tvmc" not in block.text
        and block.page not in NO_CODE
        and _key(block) not in NOT_RUN
    ]
    assert left == []
    assert set(NOT_RUN) <= {_key(block) for block in BLOCKS}, "NOT_RUN names a missing block"


def test_blocks_are_found() -> None:
    markdown = "a\n```python\nx = 1\n```\nb\n```\nplain\n```\n"
    assert [block.text for block in in_page("a.md", markdown)] == ["x = 1\n", "plain\n"]
    rest = "a\n\n.. code-block:: python\n\n   x = 1\n\n   y = 2\n\nb::\n\n   $ z\n"
    rest += "\n.. note::\n\n   n\n"
    found = list(in_page("a.rst", rest))
    assert [block.language for block in found] == ["python", "none"]
    assert found[0].text.strip() == "x = 1\n\ny = 2"
    assert found[1].first_line == "$ z"


def _key(block: Block) -> tuple[str, str]:
    return block.page, block.first_line
