"""`python -m tests.house`: counts lines, long functions and import cycles of the code.

The program counts the present code, or the code at an earlier commit. A line of code is a line that
holds more than comments, docstrings and blanks. Functions and files are counted by all their lines,
as a reader sees them.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import networkx

ROOT = Path(__file__).parent.parent
FOLDERS = ("tvm_interop", "passes", "runtime", "benchmarks")
CXX = (".h", ".cc")

LONG_FUNCTION = 80
LONG_FILE = 500

MOST_LONG_FUNCTIONS = 3
MOST_LONG_FILES = 0
MOST_PARAMETERS = 26
"""The limits in `tests/unit/test_house.py`.

Lower them if the code allows it, but never raise them.
"""


@dataclass(frozen=True)
class House:
    """The figures (counts) of the code at one commit or in the working tree.

    Attributes
    ----------
    code_lines: lines of code, by folder.
    long_functions: lines of each Python function above `LONG_FUNCTION` lines.
    widest: the function with the most parameters, and their number.
    long_files: lines of each file above `LONG_FILE` lines.
    circles: groups of modules that import each other in a circle. Imports inside functions count.
    """

    code_lines: dict[str, int]
    long_functions: dict[str, int]
    widest: tuple[str, int]
    long_files: dict[str, int]
    circles: list[list[str]]


def house_of(files: Mapping[str, str]) -> House:
    """The figures of code. `files` has the text of each Python and C++ file, by path."""
    trees = {path: ast.parse(text) for path, text in files.items() if path.endswith(".py")}
    code_lines: dict[str, int] = {}
    for path, text in files.items():
        folder = path.split("/")[0]
        lines = python_lines(text, trees[path]) if path in trees else cxx_lines(text)
        code_lines[folder] = code_lines.get(folder, 0) + lines
    functions = [
        (f"{path}:{node.lineno} {node.name}", node)
        for path, tree in trees.items()
        for node in _statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    widths = [(name, width_of(function)) for name, function in functions]
    return House(
        code_lines,
        _above(LONG_FUNCTION, ((name, lines_of(function)) for name, function in functions)),
        max(widths, key=lambda width: width[1], default=("none", 0)),
        _above(LONG_FILE, ((path, len(text.splitlines())) for path, text in files.items())),
        circles_of(trees),
    )


def _above(limit: int, lengths: Iterable[tuple[str, int]]) -> dict[str, int]:
    found = [(name, lines) for name, lines in lengths if lines > limit]
    return dict(sorted(found, key=lambda item: (-item[1], item[0])))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of lines of a function, its docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def width_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of parameters of a function. `*args` and `**options` count as one each."""
    given = function.args
    named = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    return named + (given.vararg is not None) + (given.kwarg is not None)


def python_lines(text: str, tree: ast.Module) -> int:
    """The number of lines of Python that hold code. `tree` is the syntax tree of `text`."""
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in _statements(tree):
        match node:  # A string that is a statement is documentation.
            case ast.Expr(value=ast.Constant(value=str())):
                code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements of a syntax tree. Expressions contain no statements, so they are skipped to
    save time."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for _, children in ast.iter_fields(waiting.pop()):
            for child in children if isinstance(children, list) else ():
                if isinstance(child, ast.stmt):
                    yield child
                if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                    waiting.append(child)


_CXX_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<fence>\w*)\(.*?\)(?P=fence)"|"(?:\\.|[^"\\\n])*\"""",
    re.DOTALL,
)


def cxx_lines(text: str) -> int:
    """The number of lines of C++ that hold code."""

    def without_comment(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n") if match["comment"] else match[0]

    return sum(bool(line.strip()) for line in _CXX_TOKEN.sub(without_comment, text).splitlines())


def circles_of(trees: Mapping[str, ast.Module]) -> list[list[str]]:
    """The circles of imports among modules. `trees` has the syntax tree of each module, by path."""
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in trees
    }
    imports = networkx.DiGraph()
    for module, path in modules.items():
        package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
        for name in _imported(trees[path], package):
            # `from a import b` may mean the module `a.b`, or a name in the module `a`.
            target = name if name in modules else name.rpartition(".")[0]
            # A module always imports the packages that contain it, and these packages often import
            # the module. Such circles do not count.
            if target in modules and target != module:
                imports.add_edge(module, target)
    circles = networkx.strongly_connected_components(imports)
    return sorted(sorted(circle) for circle in circles if len(circle) > 1)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (above, node.module) if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def files_now() -> dict[str, str]:
    """The files of the working tree."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", *CXX)
    }


def files_at(commit: str) -> dict[str, str]:
    """The files as they were at a commit.

    Raises
    ------
    subprocess.CalledProcessError: there is no such commit.
    """
    packed = subprocess.run(
        ["git", "archive", commit, *FOLDERS], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    files = {}
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None and member.name.endswith((".py", *CXX)):
                files[member.name] = content.read().decode()
    return files


def report(house: House) -> str:
    """The figures of the code, as lines of text."""
    total = sum(house.code_lines.values())
    rooms = ", ".join(f"{folder} {lines:,}" for folder, lines in house.code_lines.items())
    name, width = house.widest
    return "\n".join(
        [
            f"lines of code: {total:,} ({rooms})",
            f"functions above {LONG_FUNCTION} lines: {_listed(house.long_functions)}",
            f"most parameters: {width} ({name})",
            f"files above {LONG_FILE} lines: {_listed(house.long_files)}",
            f"circles of imports: {len(house.circles)}",
            *(f"  {' - '.join(circle)}" for circle in house.circles),
        ]
    )


def _listed(lengths: Mapping[str, int]) -> str:
    rows = [f"\n  {lines:>5} {name}" for name, lines in lengths.items()]
    return f"{len(rows)}{''.join(rows)}"


def main(arguments: list[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument(
        "commit", nargs="?", help="count the code at this commit; by default the present code"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    given = parser.parse_args(arguments)
    house = house_of(files_now() if given.commit is None else files_at(given.commit))
    print(json.dumps(asdict(house)) if given.json else report(house))
    return 0


if __name__ == "__main__":
    sys.exit(main())
