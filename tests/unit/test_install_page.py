"""Tests that `docs/install.rst` names exactly the extras of the package."""

from __future__ import annotations

import re

from tests.unit.test_release import PROJECT, ROOT


def test_the_page_has_every_extra() -> None:
    text = (ROOT / "docs" / "install.rst").read_text().split("Extras\n---", 1)[1]
    terms = re.findall(r"^(``.*``)$", text, flags=re.MULTILINE)
    told = {name for term in terms for name in re.findall(r"``(\w+)``", term)}
    assert told == set(PROJECT["optional-dependencies"])
