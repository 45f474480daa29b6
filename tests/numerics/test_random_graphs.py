"""A few random graphs; `make graphs` runs more of them, with new seeds each day."""

from __future__ import annotations

import pytest

from tests.random_graphs.judge import judged

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", [3, 8, 16, 24])
def test_right_and_the_same_by_every_schedule(seed: int) -> None:
    record = judged(seed)
    assert not {"wrong", "bits", "raw", "refused"} & record.keys(), record
