"""Finds endings: sets of a block's remaining operators that can be the last stage of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Mask = int
"""A set of operators of a block. Bit i stands for the operator at position i in the block."""

_MOST_OF_CLUSTER = 4096
"""Largest number of choices of groups that are kept for a cluster. If a cluster has more, the first
ones in lexicographic order are kept.
"""


def bits(mask: Mask) -> list[int]:
    """The positions of the bits of `mask` that are set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


@dataclass
class Endings:
    """All endings of the remaining operators, stored as choices of groups in each cluster.

    An ending is a set of operators that no other remaining operator reads. Its groups are its
    connected components (Ding et al., MLSys 2021, section 4.1). A group is an ending by itself, and
    two groups of one ending share no operator. Groups that share operators belong to the same
    *cluster*. Choices in different clusters can be combined freely, because their groups share no
    operator.

    Attributes
    ----------
    clusters: for each cluster, its choices, the empty choice first. A choice is a tuple of groups
        that share no operator.
    max_groups: largest number of groups in an ending, summed over its clusters.
    left_out: whether some choices are missing, because a cluster has too many.
    """

    clusters: list[list[tuple[Mask, ...]]]
    max_groups: int
    left_out: bool
    _ways: list[list[int]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of endings that hold at least one operator."""
        return self._table()[0][self.max_groups] - 1

    def numbered(self, number: int) -> tuple[Mask, ...]:
        """The groups of ending `number`, counted from 0.

        Endings are in lexicographic order of the choices of their clusters. The first cluster has
        the first operator of the block. The choices of a cluster are in lexicographic order of
        their groups.
        """
        ways = self._table()
        left = number + 1  # The table also counts the empty ending, which has no number.
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
        """A table that says in how many ways groups can be chosen from the clusters.

        Entry [i][k] counts the ways to choose at most k groups in all from cluster i and all later
        clusters.
        """
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
    """Find the endings of the remaining operators.

    Parameters
    ----------
    successors: for each operator of the block, in topological order, the set of operators that read
        its output.
    remaining: the set of operators that remain.
    max_group_ops: largest number of operators in a group, 1 or more; r in the paper on IOS.
    max_groups: largest number of groups in an ending, 1 or more; s in the paper.
    """
    # Maps an operator to the set of the operator and all its direct and indirect readers. An ending
    # that holds the operator must hold this whole set. A set of more than `max_group_ops` operators
    # is left out.
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
        # If two connected groups share an operator, their union is connected too.
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
    """Sort groups into clusters. Clusters are in order of their first operator.

    Two groups are in one cluster if they share operators, directly or through other groups.
    """
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
    """The choices of a cluster: sets of groups that share no operator.

    The choices are in lexicographic order, the empty choice first. The list has at most
    `_MOST_OF_CLUSTER` + 1 choices. If it has that many, the caller knows that choices may be
    missing.
    """
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
