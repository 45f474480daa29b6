"""Tests how `benchmarks.two_cores` charges core time to operators, on profiles made by hand."""

import pytest

from benchmarks.two_cores import Spoiler, charged, spoilers
from tvm_interop.execution.operator_profile import OpProfile


def row(name: str, start_us: float, end_us: float) -> OpProfile:
    return OpProfile(name, "kernel", 0, start_us, end_us, 0, 0.0)


def test_an_operator_alone_is_charged_all_cores():
    assert charged([row("a", 10, 14)], cores=2) == {"a": 8}
    assert charged([row("a", 10, 14)], cores=1) == {"a": 4}


def test_two_at_a_time_are_charged_their_halves_and_parts_belong_to_one():
    profile = [row("a[1/2]", 0, 4), row("a[2/2]", 0, 6), row("b", 5, 9), row("nothing", 9, 9)]
    # Both parts of `a` run for 4 us. Then one of the parts runs alone for 1 us, and beside `b` for
    # 1 us. Then `b` runs alone for 3 us.
    assert charged(profile, cores=2) == {"a": 2 * 4 + 2 * 1 + 1, "b": 1 + 2 * 3}


def test_other_brackets_belong_to_the_name():
    profile = [row("x[0][1/2]", 0, 4), row("x[0][2/2]", 0, 4), row("x[1]", 4, 5)]
    assert charged(profile, cores=2) == {"x[0]": 8, "x[1]": 2}


def test_spoilers_are_what_is_charged_beyond_one_core_the_worst_first():
    on_one = {"even": 10.0, "whole": 6.0, "worse": 5.0, "better": 4.0}
    on_two = {"even": 10.0, "whole": 12.0, "worse": 15.0, "better": 3.0}
    assert spoilers(on_one, on_two) == [
        Spoiler("worse", 5.0, 10.0, pytest.approx(0.25)),
        Spoiler("whole", 6.0, 6.0, pytest.approx(0.15)),
    ]
    assert [s.operator for s in spoilers(on_one, on_two, most=1)] == ["worse"]
    assert spoilers({}, {"too short to see on one": 2.0}) == [
        Spoiler("too short to see on one", 0.0, 2.0, 1.0)
    ]
