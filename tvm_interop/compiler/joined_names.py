"""Finds the dimensions that have several names but one size.

Exporters may name the dimensions of each input separately. Then the length of a sequence is
`input_ids_len` in one input and `mask_len` in another. If the model can be imported with equal
lengths, but not with different lengths, the two names mean one dimension. They are joined, and get
one range. Joining only decides which sizes a run may have. The proofs about these sizes do not
depend on it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InputError, TVMInteropError
from ..frontend.load import load_model
from ..frontend.open_dimensions import axes_by_name, shapes_of_dims

_LOG = logging.getLogger("tvm_interop")
_LEAST = 3
"""Two names mean one dimension if the model cannot be imported when their sizes differ by 1.

The larger of the two sizes in this test is at least this number.

Size 1 would prove nothing, because a tensor of size 1 is broadcast to any other size.
"""


_MOST_TRIALS = 32
"""If names may mean several dimensions, at most this many combinations of meanings are tried."""


class JoinedNames(NamedTuple):
    """The ranges of dimensions, and the names that are joined because they mean one dimension.

    Attributes
    ----------
    wide: the least and the greatest size, by the name of the dimension.
    joined: for a name without a range of its own, another name of the same dimension. The name gets
        the size of that other name.
    """

    wide: dict[str, tuple[int, int]]
    joined: dict[str, str]


def joined_names(
    model: Any, wide: Mapping[str, tuple[int, int]], fixed: Mapping[str, int]
) -> JoinedNames:
    """Find the names that stand for the same dimension, and join them.

    Two names are tested if they are at the same place in the shapes of their inputs, such as the
    second dimension.

    Parameters
    ----------
    wide: the ranges that are given, by the dimension's name.
    fixed: the single sizes that are given, by the dimension's name.

    Raises
    ------
    InputError
        Two names of one dimension have different ranges, or the model lacks a named dimension.
    """
    places = axes_by_name(model)
    meanings = {
        name: [known for known in (*wide, *fixed) if places.get(known) == at]
        for name, at in places.items()
        if name not in wide and name not in fixed
    }
    if any(len(each) > 1 for each in meanings.values()):
        found = _joined_to_one_of(model, wide, fixed, meanings)
        if found is not None:
            return JoinedNames(dict(wide), found)
    leaders: dict[str, str] = {}
    for name in (*wide, *(n for n in places if n not in wide and n not in fixed)):
        known = wide if name in wide else (*wide, *fixed)
        first = next((n for n in known if n in places and places[n] == places.get(name)), None)
        if first is not None and first != name:
            leaders[name] = first
    if not leaders:
        return JoinedNames(dict(wide), {})
    sizes = {**fixed, **{name: most for name, (_, most) in wide.items()}}
    sizes.update({first: max(sizes[first], _LEAST) for first in leaders.values()})
    sizes.update({name: sizes[first] for name, first in leaders.items()})
    joined: dict[str, str] = {}
    if not _imports(model, sizes):
        return JoinedNames(dict(wide), joined)
    for name, first in leaders.items():
        if _imports(model, {**sizes, name: sizes[first] - 1}):
            # The two names mean different dimensions, because they may have different sizes.
            continue
        if name in wide and wide[name] != wide[first]:
            raise InputError(
                f"`{name}` and `{first}` must have the same size, since the model cannot be "
                f"imported where they differ, and `shapes` gives `{name}` the range "
                f"{wide[name]} and `{first}` the range {wide[first]}: give only one of them"
            )
        _LOG.info("dimension `%s` must be as large as `%s`, and gets its size", name, first)
        joined[name] = first
    return JoinedNames({n: ends for n, ends in wide.items() if n not in joined}, joined)


def _joined_to_one_of(
    model: Any,
    wide: Mapping[str, tuple[int, int]],
    fixed: Mapping[str, int],
    meanings: Mapping[str, Sequence[str]],
) -> dict[str, str] | None:
    """Find out which of several dimensions each name means. The dimensions have different sizes.

    Return None if the model cannot be imported for any choice, perhaps because two of the
    dimensions must have the same size.

    Parameters
    ----------
    meanings: for each name without a size, the dimensions that it may mean.
    """
    meant = {known for each in meanings.values() for known in each}
    sizes = {name: max(n, _LEAST) if name in meant else n for name, n in fixed.items()}
    for name, (least, most) in wide.items():
        largest = max(most, _LEAST)
        below = range(largest, max(least, _LEAST) - 1, -1)
        sizes[name] = next((n for n in below if n not in sizes.values()), largest)
    names = [name for name, each in meanings.items() if each]
    choices = itertools.product(*(meanings[name] for name in names))
    for chosen in itertools.islice(choices, _MOST_TRIALS):
        found = dict(zip(names, chosen, strict=True))
        given = {**sizes, **{name: sizes[first] for name, first in found.items()}}
        if _imports(model, given):
            return {
                name: first
                for name, first in found.items()
                if not _imports(model, {**given, name: given[name] - 1})
            }
    return None


def _imports(model: Any, sizes: Mapping[str, int]) -> bool:
    try:
        load_model(model, shapes_of_dims(model, sizes))
    except InputError:
        raise
    except TVMInteropError:
        return False
    return True
