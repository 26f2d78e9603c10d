"""Reduce-scatter and all-gather of copies in machines, as ops with ordinary tensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.copies.joint import AddedOp, Joint
from placeto_graphs.micro_batches.steps import BYTES_PER_NUMBER
from placeto_graphs.schema.op_graph import Phase

BUCKET, SUM, SHARD, GATHER = (
    f"placeto.{name}" for name in ("bucket", "sum_copies", "shard", "gather")
)
PASSES_OF_COPY = 2  # it reads and writes
Interval = tuple[int, int]  # of the whole, from 0 to `Shares.whole`
OpOfCopy = Mapping[int, int]


class Shares:
    """What copies in machines own of all bytes.

    The first C copies of each machine, as many as the smallest has, own columns: all bytes
    together in each machine. Copies of different machines that own the same column divide it into
    shards.

    Attributes
    ----------
    machines
        The copies of each machine.
    wholes, columns, shards
        For each copy the interval of all bytes, and for each that owns any those of its column and
        of its shard.
    whole
        End of the last interval.
    """

    def __init__(self, machines: Sequence[Sequence[int]], weights: Sequence[int]) -> None:
        self.machines = machines
        self.columns: dict[int, Interval] = {}
        self.shards: dict[int, Interval] = {}
        self.whole = 0
        for owners in zip(*machines, strict=False):
            begin = self.whole
            for copy in owners:
                self.shards[copy] = self.whole, self.whole + weights[copy]
                self.whole += weights[copy]
            self.columns |= dict.fromkeys(owners, (begin, self.whole))
        self.wholes = {copy: (0, self.whole) for machine in machines for copy in machine}

    def of(self, interval: Interval, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[N], the bytes of tensors of N sizes that are in an interval."""
        begin, end = (sizes.astype(object) * end // self.whole for end in interval)
        difference: NDArray[np.int64] = (end - begin).astype(np.int64)
        return difference


class _Team(NamedTuple):
    """Copies that sum or gather a tensor together."""

    name: str
    members: Sequence[int]
    bytes_of_owner: Mapping[int, int]


@dataclass(frozen=True)
class Collective:
    """The sum or the gathering of N tensors over all copies.

    It has a step within each machine and one between machines, so that a network card carries what
    it would in a ring.

    Attributes
    ----------
    joint
        The problem that ops are added to.
    shares
        What copies own.
    name, phase
        Name and phase of the ops.
    neighbours
        For each copy an op in whose group its ops are.
    sizes : int64[N]
        Bytes of the tensors.
    """

    joint: Joint
    shares: Shares
    name: str
    phase: Phase
    neighbours: Sequence[int]
    sizes: NDArray[np.int64]

    @property
    def in_machines(self) -> list[_Team]:
        """The copies of each machine, with the columns that they own."""
        columns = self.bytes_of_owners(self.shares.columns)
        return [
            _Team("", machine, {copy: columns[copy] for copy in machine if copy in columns})
            for machine in self.shares.machines
        ]

    @property
    def between_machines(self) -> list[_Team]:
        """The owners of each column, with the shards that they own."""
        shards = self.bytes_of_owners(self.shares.shards)
        return [
            _Team("/machines", owners, {copy: shards[copy] for copy in owners})
            for owners in zip(*self.shares.machines, strict=False)
        ]

    def reduce_scatter(self, teams: Sequence[_Team], op_of_copy: OpOfCopy) -> OpOfCopy:
        """Add up what the op of each member has; return the op of each owner with its sum."""
        op_of_owner: dict[int, int] = {}
        for name, members, bytes_of_owner in teams:
            if len(members) == 1:
                op_of_owner |= {copy: op_of_copy[copy] for copy in members}
                continue
            tensors = [
                [self.joint.make(op_of_copy[copy], size) for size in bytes_of_owner.values()]
                for copy in members
            ]
            for owner, shards in zip(bytes_of_owner, zip(*tensors, strict=True), strict=True):
                size = bytes_of_owner[owner]
                flops = (len(members) - 1) * size / BYTES_PER_NUMBER
                moved_bytes = (len(members) + 1) * size
                op_of_owner[owner] = self.add(SUM, name, owner, shards, moved_bytes, flops)
        return op_of_owner

    def all_gather(self, teams: Sequence[_Team], op_of_owner: OpOfCopy) -> OpOfCopy:
        """Send what the op of each owner has; return the op of each member that has all."""
        op_of_copy: dict[int, int] = {}
        for name, members, bytes_of_owner in teams:
            if len(members) == 1:
                op_of_copy |= {copy: op_of_owner[copy] for copy in members}
                continue
            tensors = [
                self.joint.make(op_of_owner[copy], size) for copy, size in bytes_of_owner.items()
            ]
            moved_bytes = PASSES_OF_COPY * sum(bytes_of_owner.values())
            for copy in members:
                op_of_copy[copy] = self.add(GATHER, name, copy, tensors, moved_bytes)
        return op_of_copy

    def add(
        self,
        op_type: str,
        name: str,
        copy: int,
        tensors: Iterable[int],
        moved_bytes: int,
        flops: float = 0.0,
    ) -> int:
        """Add an op of a copy that reads tensors; return its number."""
        full_name = f"{op_type}/{self.name}{name}#{copy}"
        neighbour = self.neighbours[copy]
        op = AddedOp(op_type, full_name, neighbour, self.phase, moved_bytes, flops)
        return self.joint.add(op, tensors)

    def bytes_of_owners(self, intervals: Mapping[int, Interval]) -> dict[int, int]:
        """Return the bytes of all tensors together in the interval of each copy."""
        return {
            copy: int(self.shares.of(interval, self.sizes).sum())
            for copy, interval in intervals.items()
        }
