"""Compares TVM's kernel with the library's kernel for each convolution of some networks.

    python -m benchmarks.kernel_winners FOLDER NAME ... [--json FILE]

The folder holds `NAME.onnx`. Both kernels run on row-major tensors, on one thread. The table shows
for how many convolutions TVM's kernel is faster, and by how many microseconds in all. For the
convolutions in the line "not tried", a compilation does not try TVM's kernel
(`tvm_may_win_on_cpu`). So in this line TVM's kernel should almost never win.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tvm_interop.compiler.backends import backend_for
from tvm_interop.compiler.offers import Offer, offers_for
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.measure.store import LatencyStore

from .markdown import table

NOT_TRIED, ONE_PIXEL, OTHERS = "not tried", "tried, 1x1 window", "tried, others"


@dataclass
class Row:
    """The results of one group of convolutions.

    Attributes
    ----------
    group: the property that the convolutions have in common.
    convolutions: the number of convolutions.
    won: the number of convolutions for which TVM's kernel is faster.
    library_us: time of all library kernels, in microseconds.
    saved_us: microseconds that TVM's kernels save where they are faster.
    """

    group: str
    convolutions: int = 0
    won: int = 0
    library_us: float = 0.0
    saved_us: float = 0.0

    def add(self, library_us: float, tvm_us: float) -> None:
        """Count one convolution with the latencies of its two kernels."""
        self.convolutions += 1
        self.won += tvm_us < library_us
        self.library_us += library_us
        self.saved_us += max(library_us - tvm_us, 0.0)


def main() -> None:
    """Print the table, and write the rows to a file if one is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    given = parser.parse_args()
    rows = {group: Row(group) for group in (NOT_TRIED, ONE_PIXEL, OTHERS)}
    for name in given.names:
        _add(rows, str(given.folder / f"{name}.onnx"))
    headings = ("convolutions", "number", "TVM's is faster", "library's time, ms", "saved, ms")
    lines = [
        (
            r.group,
            str(r.convolutions),
            str(r.won),
            f"{r.library_us / 1e3:.2f}",
            f"{r.saved_us / 1e3:.3f}",
        )
        for r in rows.values()
    ]
    print(table(headings, lines))
    if given.json:
        found = {"networks": given.names, "rows": [asdict(row) for row in rows.values()]}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


def _add(rows: dict[str, Row], model: str) -> None:
    # With `fallback`, all of TVM's kernels are compiled, so that they can be measured.
    backend = backend_for(CompileOptions(latency_db=":memory:", fallback=True))
    store = LatencyStore(":memory:")
    lowered = backend.lower(model, None, lambda: store)
    for op in lowered.on_tvm_alone.operators:
        described = op.description
        if described is None or described.op != "conv2d":
            continue
        us = _latencies(offers_for(backend, lowered, store, op.name, measure=True))
        if len(us) == 2:
            group = OTHERS if math.prod(described.shapes[1][2:]) > 1 else ONE_PIXEL
            rows[group if described.tvm_may_win_on_cpu else NOT_TRIED].add(us[1], us[0])


def _latencies(offers: Iterable[Offer]) -> list[float]:
    """The latencies of TVM's kernel and of the library's kernel, if both are known."""
    by_name = {offer.provider: offer.us for offer in offers}
    return [by_name[n] for n in ("tvm", "onednn") if not math.isnan(by_name.get(n, math.nan))]


if __name__ == "__main__":
    main()
