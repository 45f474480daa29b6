"""Counts code outside of the kinds' own files that compares kinds of operators.

Code must not compare kinds of operators. If their behaviour differs, the class of the kind says so
(`tvm_interop/program/kinds`). So a new kind needs a few new files, and no other file changes. Run
`python -m tests.kind_comparisons`. A test checks the result
(`tests/unit/test_kind_comparisons.py`).

In Python, a comparison is `==`, `!=`, `in` or `match` with the name of a kind, a table with the
names of two or more kinds, or `isinstance` with the class of a kind. In C++ it is a line with the
name of a kind in quotes, or with its class in a `dynamic_cast`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ROOT / "tvm_interop" / "program" / "kinds"
OWN = (
    "tvm_interop/program/kinds/",
    "tvm_interop/lowering/recognise/",
    "runtime/core/operators/",
    "runtime/cpu/onednn/kinds/",
    "runtime/cuda/cudnn/conv2d.cc",
    "runtime/cuda/cublaslt/matmul.cc",
    "tvm_interop/program/concat_in_place.py",
    "tvm_interop/program/parts_in_place.py",
)
"""The files of the kinds, which are not searched. The last two belong to `concat` and `part`."""
OTHER_NAMES = ("tvm_interop/frontend/", "tvm_interop/models/", "tvm_interop/viz/")
"""Folders that are not searched: words such as `conv2d` name other things than kinds there."""


def kinds() -> frozenset[str]:
    """The names of the kinds, which are the names of their files."""
    return frozenset(path.stem for path in KINDS.glob("*.py") if path.stem != "__init__")


def class_of(name: str) -> str:
    """The name of a kind's class, in both languages."""
    return "".join(map(str.capitalize, name.split("_")))


def comparisons(names: frozenset[str]) -> dict[str, list[int]]:
    """The lines that compare the kinds called `names`, by the path of the file."""
    found = {}
    for path in sorted((*ROOT.glob("tvm_interop/**/*.py"), *ROOT.glob("runtime/**/*.*"))):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith((*OWN, *OTHER_NAMES)):
            continue
        text = path.read_text()
        lines = of_python(text, names) if path.suffix == ".py" else of_cpp(text, names)
        if lines:
            found[file] = lines
    return found


def of_python(text: str, names: frozenset[str]) -> list[int]:
    """The lines of a Python file that compare kinds."""
    tree = ast.parse(text)
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and _names(node.value, names, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    known = frozenset(constants)
    return sorted({node.lineno for node in ast.walk(tree) if _compares(node, names, known)})


def _compares(node: ast.AST, names: frozenset[str], constants: frozenset[str]) -> bool:
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        return any(_mentions(side, names, constants) for side in sides)
    if isinstance(node, ast.MatchValue):
        return _names(node.value, names, constants)
    if isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        classes = set(map(class_of, names))
        return called == "isinstance" and any(
            isinstance(part, ast.Name) and part.id in classes for part in ast.walk(node.args[1])
        )
    table: list[ast.expr | None] = []
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        table = [*node.elts]
    if isinstance(node, ast.Dict):
        table = node.keys
    return sum(_names(each, names, constants) for each in table if each is not None) > 1


def _mentions(side: ast.expr, names: frozenset[str], constants: frozenset[str]) -> bool:
    parts = side.elts if isinstance(side, ast.Tuple | ast.Set | ast.List) else [side]
    return any(_names(part, names, constants) for part in parts)


def _names(node: ast.AST, names: frozenset[str], constants: frozenset[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in constants
    return isinstance(node, ast.Constant) and node.value in names


def of_cpp(text: str, names: frozenset[str]) -> list[int]:
    """The lines of a C++ file that compare kinds."""
    classes = "|".join(map(class_of, sorted(names)))
    quoted = "|".join(sorted(names))
    compares = re.compile(rf'"(?:{quoted})"|dynamic_cast<(?:const )?(?:{classes})\b')
    return [number for number, line in _code_lines(text) if compares.search(line)]


def _code_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        yield number, line.partition("//")[0]


def main(names: frozenset[str]) -> None:
    """Print the files and lines."""
    found = comparisons(names)
    for file, lines in found.items():
        print(f"{file}: {len(lines)} ({', '.join(map(str, lines))})")
    print(f"{sum(map(len, found.values()))} lines in {len(found)} files compare kinds")


if __name__ == "__main__":
    main(frozenset(sys.argv[1:]) or kinds())
