"""The page of figures says what the results say."""

from __future__ import annotations

from benchmarks.figures import PAGE, page


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text() == page(), "run `python -m benchmarks.figures`"
