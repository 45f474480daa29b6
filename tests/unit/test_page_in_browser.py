"""Tests the page in headless Chromium: it loads without errors, and its table can be filtered."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

import tvm_interop
from tests.nets import inception_like
from tvm_interop.viz.page import to_page
from tvm_interop.viz.record import record

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--virtual-time-budget=5000", "--window-size=1400,1200",
]  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

ERRORS = "<script>window.errors = []; window.onerror = (m) => { errors.push(String(m)); };</script>"
REPORT = """<script>
const found = { errors, ready: document.documentElement.dataset.ready };
const body = () => [...document.querySelectorAll("#operators tbody tr")];
const cell = (line, column) => line.cells[column].textContent;
found.all = body().length;
find("filter-kind").value = "softmax, norm"; fill();
found.ofKind = body().map((line) => cell(line, 1));
find("filter-kind").value = ""; find("filter-text").value = "A1/"; fill();
found.named = body().map((line) => cell(line, 0));
find("filter-text").value = ""; fill();
const took = [...document.querySelectorAll("#operators thead tr:last-child th")]
  .findIndex((head) => head.textContent.startsWith("took"));
document.querySelectorAll("#operators thead tr:last-child th")[took].click();
found.took = body().map((line) => Number(cell(line, took)));
find("zoom-time").value = 4; zoomTime();
found.stretched = document.querySelector(".scroll").scrollWidth
  / document.querySelector(".scroll").clientWidth;
found.cut = [...document.querySelectorAll(".run[data-run='0'] .scroll .op:not(.narrow)")]
  .every((box) => box.getBoundingClientRect().width >= 29);
found.inside = [...document.querySelectorAll(".scroll .op:not(.narrow)")].every((box) => {
  const text = box.querySelector("text");
  return !text || text.getBoundingClientRect().right <= box.getBoundingClientRect().right + 1;
});
found.ends = [...document.querySelectorAll(".scroll .op:not(.narrow) text")]
  .every((text) => text.textContent === text.dataset.whole || text.textContent.endsWith("…"));
body()[0].click();
found.chosen = document.querySelectorAll(".op.chosen").length;
const ticks = [...document.querySelectorAll(".scroll svg")[0].querySelectorAll("text.tick")]
  .map((text) => text.getBoundingClientRect());
found.ticksApart = ticks.every((box, i) => i === 0 || ticks[i - 1].right < box.left);
document.body.setAttribute("data-found", JSON.stringify(found));
</script></body>"""


@pytest.mark.parametrize("schedulers", [["greedy"], ["greedy", "lios"]])
def test_page(schedulers: list[str], tmp_path: Path) -> None:
    records = [
        record(
            tvm_interop.compile(inception_like(), scheduler=name, streams=2, keep_slower=True),
            name,
            runs=1,
        )
        for name in schedulers
    ]
    page = to_page(records, "a machine").replace("<head>", "<head>" + ERRORS)
    (tmp_path / "page.html").write_text(page.replace("</body>", REPORT))
    found = _seen_by_chromium(tmp_path)
    number = len(records[0].operators)
    assert found["errors"] == []
    assert found["ready"] == "yes"
    assert found["all"] == number
    assert found["ofKind"] == ["softmax, norm"]
    assert found["named"] == ["a1/Conv"]
    assert len(found["took"]) == number
    assert found["took"] == sorted(found["took"], reverse=True)
    assert found["stretched"] > 10
    assert found["cut"]
    assert found["inside"]
    assert found["ends"]
    assert found["ticksApart"]
    # The chosen operator occurs once in each timeline and graph, and once more if it was predicted.
    predicted = sum(records_of.operators[0].predicted_us is not None for records_of in records)
    assert found["chosen"] == 2 * len(schedulers) + predicted


def _seen_by_chromium(folder: Path) -> dict[str, object]:
    ran = subprocess.run(
        [
            str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom",
            f"file://{folder / 'page.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    match = re.search(r'<body data-found="([^"]*)"', ran.stdout)
    assert match, ran.stderr[-2000:]
    return dict(json.loads(unescape(match[1])))
