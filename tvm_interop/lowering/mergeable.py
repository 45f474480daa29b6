"""Finds operators of a model that might be merged, and says why some cannot be merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from tvm import relax

from .chains import Chain, ChainFinder
from .conv_chains import conv_chain
from .names import is_meaningful
from .product_chains import product_chain


def find_chains(main: relax.Function) -> dict[str, Chain]:
    """The convolutions and matrix products that might be merged with others, by name.

    The operators are in the order of `main`. They have constant weights, static shapes, and unique
    names from the model.
    """
    finder = ChainFinder(main)
    found = (conv_chain(finder, var) or product_chain(finder, var) for var in finder.values)
    chains = [chain for chain in found if chain is not None]
    names = Counter(chain.name for chain in chains)
    return {c.name: c for c in chains if names[c.name] == 1 and is_meaningful(c.name)}


def mergeable_sets(chains: dict[str, Chain]) -> list[tuple[str, ...]]:
    """Sets of two or more operators of the same kind. Only operators of the same set can be
    merged.
    """
    sets: dict[Hashable, list[str]] = {}
    for name, chain in chains.items():
        sets.setdefault(chain.kind(), []).append(name)
    return [tuple(names) for names in sets.values() if len(names) > 1]


def why_not_merged(chains: Sequence[Chain]) -> str | None:
    """The reason why the operators of `chains` cannot be merged; None if they can.

    The operators must be all convolutions or all products, read the same tensor, and have the same
    data type and activation. `ConvChain.why_not_merged` has more conditions for convolutions.
    """
    if len(chains) < 2:
        return "merging takes two or more operators"
    first = chains[0]
    for chain in chains[1:]:
        differences = {
            "is another kind of operator than": type(chain) is not type(first),
            "reads another tensor than": not chain.data.same_as(first.data),
            "has another type than": chain.weight.dtype != first.weight.dtype
            or chain.result.ty.dtype != first.result.ty.dtype,
            "has another activation than": chain.activation_key() != first.activation_key(),
        }
        for what, differs in differences.items():
            if differs:
                return f"`{chain.name}` {what} `{first.name}`"
    return first.why_not_merged(chains)
