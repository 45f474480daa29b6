"""Writes the graph of a recorded run's operators in DOT, the language of Graphviz."""

from __future__ import annotations

from .kinds import colours_of
from .record import Record


def to_dot(record: Record) -> str:
    """Write a digraph with a box per operator.

    Boxes are grouped into a cluster per stage, or per stream if there are no stages.
    """
    by_cluster: dict[str, list[int]] = {}
    for i, op in enumerate(record.operators):
        label = f"stage {op.stage}" if op.stage is not None else f"stream {op.stream}"
        by_cluster.setdefault(label, []).append(i)
    lines = [
        "digraph schedule {",
        "  rankdir=LR;",
        '  node [shape=box, style=filled, fontname="sans-serif", fontsize=10];',
    ]
    for c, (label, ops) in enumerate(by_cluster.items()):
        lines += [f"  subgraph cluster_{c} {{", f"    label={_quoted(label)};"]
        for i in ops:
            op = record.operators[i]
            fill, ink = colours_of(op.kind)
            text = f"{op.name}\\nstream {op.stream}, {op.took_us:.1f} us"
            lines.append(
                f'    op{i} [label={_quoted(text)}, fillcolor="{fill}", fontcolor="{ink}"];'
            )
        lines.append("  }")
    lines += [f"  op{p} -> op{i};" for i, op in enumerate(record.operators) for p in op.reads]
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """`text` as a quoted string in DOT. Backslashes stay, so `\\n` in `text` is a line break."""
    return '"' + text.replace('"', '\\"') + '"'
