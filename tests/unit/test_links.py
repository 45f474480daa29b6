"""Tests that the targets of links in README and docs exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for found in ("*.md", "docs/*.md", "docs/*.rst", "docs/papers/*.md")
    for path in ROOT.glob(found)
)
MADE = {"cli", "tutorials/index"}
"""The pages that the build of the site writes."""


def missing(page: Path, text: str) -> list[str]:
    """The links of a page to files and pages of the repository that do not exist."""
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    found = [link for link in links if not (page.parent / link).exists()]
    names = re.findall(r":doc:`(?:[^`<]*<)?/?([\w/]+)>?`", text)
    for block in re.findall(r"\.\. toctree::\n(?: +:.*\n)*\n((?: +\S+\n)+)", text):
        names += block.split()
    docs = ROOT / "docs"
    there = {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.*")} | MADE
    return found + [name for name in names if name not in there]


def test_links_lead_somewhere() -> None:
    assert {page: missing(page, page.read_text()) for page in PAGES} == {page: [] for page in PAGES}


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    text = "[a](docs/none.md) :doc:`no_page` :doc:`x <none>`\n"
    text += ".. toctree::\n   :caption: C\n\n   gone\n"
    assert missing(ROOT / "README.md", text) == ["docs/none.md", "no_page", "none", "gone"]


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.rst").read_text()
    docs = ROOT / "docs"
    names = {
        path.relative_to(docs).with_suffix("").as_posix() for path in PAGES if docs in path.parents
    }
    pages = names - {"index", "sg_execution_times"}
    assert (
        sorted(name for name in pages if not re.search(rf"^   {name}$", index, re.MULTILINE)) == []
    )
