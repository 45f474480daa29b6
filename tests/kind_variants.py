"""Makes variants of an operator in other layouts and precisions.

`python -m tests.kind_variants` writes `docs/kinds.md`, the table of the layouts and precisions
of each kind that libraries can run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.kinds import conformance
from tvm_interop.machine.kernel_libraries import library_version, why_unsupported
from tvm_interop.program.library_op import LibraryOp
from tvm_interop.program.storage import Layout, block_of, stored_shape

TABLE = Path(__file__).parents[1] / "docs" / "kinds.md"
PRECISIONS = ("as it is", "bfloat16 factors", "bfloat16 tensors", "float16")
LAYOUTS = ("plain", "blocked", "plain to blocked", "blocked by 8", "plain to blocked by 8")


def in_layout(op: LibraryOp, layout: str) -> LibraryOp | None:
    """The plain operator `op` on blocked tensors, or None if its kind is never blocked."""
    if layout == "plain":
        return op
    if not op.may_be_blocked:
        return None
    layouts: list[Layout] = ["plain"] * len(op.shapes)
    for argument in op.may_be_blocked:
        if argument > 0 or not layout.startswith("plain to"):
            layouts[argument] = "blocked8" if layout.endswith("by 8") else "blocked16"
    return op.with_fields(layouts=tuple(layouts))


def in_precision(op: LibraryOp, precision: str) -> LibraryOp | None:
    """The float32 operator `op` in another precision, or None for an operator of integers."""
    if precision == "as it is":
        return op
    if op.is_quantised:
        return None
    if precision == "float16":
        return op.with_fields(dtype="float16")
    stored = ["float32"] * len(op.shapes)
    if precision == "bfloat16 tensors":
        for argument in (0, len(stored) - 1, *[len(stored) - 2] * op.has_sum):
            stored[argument] = "bfloat16"
    dtype = "bfloat16" if op.multiplies or precision == "bfloat16 factors" else "float32"
    return op.with_fields(dtype=dtype, stored=tuple(stored))


def variants(op: LibraryOp) -> Iterator[tuple[str, LibraryOp]]:
    """Yield `op` in each layout and precision that its kind has, with the name of the variant."""
    for layout in LAYOUTS:
        laid_out = in_layout(op, layout)
        # Only CPUs without bfloat16 use blocks of 8 channels.
        precisions = PRECISIONS[:1] if layout.endswith("by 8") else PRECISIONS
        for precision in precisions if laid_out is not None else ():
            assert laid_out is not None
            typed = in_precision(laid_out, precision)
            if typed is not None:
                yield f"{layout}, {precision}", typed


def laid_out(array: np.ndarray, layout: Layout) -> np.ndarray:
    """A plain array, rearranged as it lies in memory in the given layout."""
    if layout == "plain":
        return np.ascontiguousarray(array)
    n, used, height, width = array.shape
    block = block_of(layout)
    padded = np.zeros((n, -(-used // block) * block, height, width), array.dtype)
    padded[:, :used] = array
    blocks = padded.reshape(n, -1, block, height, width)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))


def plain(array: np.ndarray, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """The opposite of `laid_out`: the plain array of `shape`, from an array in the layout."""
    if layout == "plain":
        return array.reshape(shape)
    n, used, height, width = shape
    blocks = array.reshape(n, -1, height, width, block_of(layout)).transpose(0, 1, 4, 2, 3)
    assert np.prod(stored_shape(shape, layout)) == array.size
    return blocks.reshape(n, -1, height, width)[:, :used]


def table() -> str:
    """The table of the variants that libraries can run, as Markdown."""
    lines = [
        "# Kinds of operators",
        "",
        *_LEGEND,
        "",
        "| kind | " + " | ".join(PRECISIONS) + " | blocked images | in parts |",
        "|---" * (len(PRECISIONS) + 3) + "|",
    ]
    for kind, checked in sorted(conformance().items()):
        op = next(iter(checked.cases.values()))
        cells = [_who(in_precision(op, precision)) for precision in PRECISIONS]
        cells.append(_who(in_layout(op, "blocked")))
        cells.append("yes" if any(_divides(case) for case in checked.cases.values()) else "no")
        lines.append(f"| `{kind}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


_LEGEND = """\
This page is written by `python -m tests.kind_variants`.

Each operator runs on a kernel of TVM or of a kernel library, such as oneDNN. The compiler describes
operators to the libraries as operators of the kinds in this table. Each row of the table is a kind.
The columns are forms that an operator of the kind may have:

- *as it is*: all tensors have a plain layout and are of float32. The tensors of kinds whose names
  begin with `quantised` are of integers, and their images have their channels last.
- *bfloat16 factors*: the tensors are of float32, and the factors of products may be rounded to
  bfloat16.
- *bfloat16 tensors*: the images or rows that the operator reads and writes are of bfloat16.
- *float16*: all tensors are of float16.
- *blocked images*: the images are of float32, and lie in memory in blocks of 16 channels.

A cell names the libraries that can compute this form of the kind. If there are none, the cell holds
the reason of oneDNN, as a sentence without its subject: *has no factors to round* means that the
operator has none. *No library* means that libraries never compute this kind, because it only says
where the parts of a tensor lie. A dash means that the kind does not have this form.

The last column says whether an operator of the kind can be divided into parts that run side by
side.""".splitlines()


def _who(op: LibraryOp | None) -> str:
    if op is None:
        return "-"
    said = {name: why_unsupported(name, op) for name in ("onednn", "cudnn", "cublaslt")}
    able = [name for name, why in said.items() if not why]
    why = said["onednn"].removeprefix(f"`{op.op}` ")
    return ", ".join(able) or ("no library" if why == "is not a kind of operator" else why)


def _divides(op: LibraryOp) -> bool:
    return op.row_axis is not None or op.cuts() is not None


if __name__ == "__main__":
    assert library_version("onednn") is not None, "needs oneDNN"
    TABLE.write_text(table())
