"""The endings of what remains of a block: which operators can be the last stage of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Mask = int
"""A set of operators of a block, the bit of each at its place in the block."""

_MOST_OF_CLUSTER = 4096
"""Endings of one cluster that are kept; the first in order where there are more."""


def bits(mask: Mask) -> list[int]:
    """The places in a set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


@dataclass
class Endings:
    """All endings of what remains, as a product of few choices.

    An ending is a set of operators that no other remaining one reads from; its groups are its
    connected components (Ding et al., MLSys 2021, section 4.1). A group is an ending by itself, and
    two groups of one ending share no operator. Groups that share operators are of one *cluster*:
    what is chosen in one cluster does not bear on what can be chosen in another.

    Attributes
    ----------
    clusters: of each cluster its choices, the empty one first; a choice is a tuple of groups.
    max_groups: the most groups in an ending, over all clusters.
    left_out: whether a cluster has more choices than are kept.
    """

    clusters: list[list[tuple[Mask, ...]]]
    max_groups: int
    left_out: bool
    _ways: list[list[int]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many endings there are, the empty one not among them."""
        return self._table()[0][self.max_groups] - 1

    def numbered(self, number: int) -> tuple[Mask, ...]:
        """The groups of one ending, numbered from 0.

        Order: lexicographic in the choices of the clusters, of which the first has the operator
        that comes first in the block; the choices of a cluster are lexicographic in their groups.
        """
        ways = self._table()
        left = number + 1  # The empty one is the first.
        room = self.max_groups
        groups: list[Mask] = []
        for i, choices in enumerate(self.clusters):
            for choice in choices:
                if len(choice) > room:
                    continue
                behind = ways[i + 1][room - len(choice)]
                if left < behind:
                    groups += choice
                    room -= len(choice)
                    break
                left -= behind
        return tuple(groups)

    def _table(self) -> list[list[int]]:
        """[i][k]: the ways to choose from cluster i on with at most k groups."""
        if not self._ways:
            rows = [[1] * (self.max_groups + 1)]
            for choices in reversed(self.clusters):
                sizes = [0] * (self.max_groups + 1)
                for choice in choices:
                    if len(choice) <= self.max_groups:
                        sizes[len(choice)] += 1
                behind = rows[-1]
                rows.append(
                    [
                        sum(sizes[j] * behind[k - j] for j in range(k + 1))
                        for k in range(self.max_groups + 1)
                    ]
                )
            self._ways = rows[::-1]
        return self._ways


def endings(
    successors: Sequence[Mask], remaining: Mask, max_group_ops: int, max_groups: int
) -> Endings:
    """The endings of what remains.

    Parameters
    ----------
    successors: of each operator of the block, in topological order, those that read it.
    remaining: the operators that are still there.
    max_group_ops, max_groups: the paper's r and s, both 1 or more.
    """
    # What must go together with each operator: all that reads it, and what reads that.
    behind: dict[int, Mask] = {}
    for op in reversed(bits(remaining)):
        mask = 1 << op
        is_small = True
        for reader in bits(successors[op] & remaining):
            if reader not in behind:
                is_small = False
                break
            mask |= behind[reader]
        if is_small and mask.bit_count() <= max_group_ops:
            behind[op] = mask
    groups = set(behind.values())
    last = list(groups)
    while last:
        # Groups that share an operator are connected, and so is their union.
        grown = []
        for group in last:
            for mask in behind.values():
                union = group | mask
                if group & mask and union not in groups and union.bit_count() <= max_group_ops:
                    groups.add(union)
                    grown.append(union)
        last = grown
    left_out = False
    clusters = []
    for cluster in _clusters(sorted(groups, key=bits)):
        choices = _choices(cluster, max_groups)
        left_out = left_out or len(choices) > _MOST_OF_CLUSTER
        clusters.append(choices[:_MOST_OF_CLUSTER])
    return Endings(clusters, max_groups, left_out)


def _clusters(groups: list[Mask]) -> list[list[Mask]]:
    """The groups that share operators, directly or through others, in order of their first."""
    found: list[tuple[Mask, list[Mask]]] = []
    for group in groups:
        union, members = group, [group]
        apart = []
        for mask, others in found:
            if mask & group:
                union |= mask
                members += others
            else:
                apart.append((mask, others))
        found = [*apart, (union, members)]
    found.sort(key=lambda row: row[0] & -row[0])
    return [sorted(members, key=bits) for _, members in found]


def _choices(cluster: list[Mask], max_groups: int) -> list[tuple[Mask, ...]]:
    """Sets of groups of a cluster that share no operator, lexicographic, the empty one first."""
    found: list[tuple[Mask, ...]] = []

    def extend(first: int, taken: Mask, chosen: tuple[Mask, ...]) -> None:
        found.append(chosen)
        if len(chosen) == max_groups:
            return
        for i in range(first, len(cluster)):
            if len(found) > _MOST_OF_CLUSTER:
                return
            if not cluster[i] & taken:
                extend(i + 1, taken | cluster[i], (*chosen, cluster[i]))

    extend(0, 0, ())
    return found
