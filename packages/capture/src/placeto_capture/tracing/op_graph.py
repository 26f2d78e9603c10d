"""Makes an `OpGraph` of a trace.

Each op that writes a storage makes a version of the part that it writes. An in-place op reads the
version before its own, unless it overwrites all of it, and makes a new one, as if it were not in
place: the graph is one of values, and each op can run on any device. Who reads a part of a storage
reads those versions of which it shows some bytes.

What an op makes in a storage is a tensor of the graph. Where ops read different parts of it, it is
several tensors: one for all bytes that the same ops read. So each op reads as many bytes as it
looks at (`placeto_capture.tracing.storage_parts` says where it may be more), the tensors of an op
have no byte in common, and bytes that no op has written are in none.

Where the storage is resident (weights, optimizer state, buffers) there is one place for all of its
versions: a write takes no further memory (its tensor has 0 bytes and says only what comes first)
and happens on the device of the weights. Who reads a later version reads the op of the weights as
well, because that is what a copy for another device costs.

Parameters, buffers and inputs that overlap in memory are one storage, and so one op.

A write waits for the ops that read the version that it replaces, and for the one that made it.
Where no other path says so, these get a tensor of 0 bytes that the writer reads. Any topological
order of the ops may thus run in the memory that the model and autograd use.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from placeto_capture.tracing.functions import dtype_of, groups_of
from placeto_capture.tracing.storage_parts import Access, StorageAccesses
from placeto_capture.tracing.trace import Call, Placeholder, Trace, View
from placeto_graphs import OpGraph, Phase

FREE = -1  # the colocation id of an op that may be anywhere
LONGEST_SEARCH = 1_000  # ops that `EarlierOps` looks at before the answer is no


def op_graph_of(trace: Trace, tensors: "TensorsOfTrace | None" = None) -> OpGraph:
    """Return the graph of the ops of a trace, with equal indices; its tensors may be known."""
    tensors = tensors or TensorsOfTrace(trace)
    placeholders = [op if isinstance(op, Placeholder) else None for op in trace.ops]
    calls = [op if isinstance(op, Call) else None for op in trace.ops]
    return OpGraph(
        op_names=_unique_names(trace),
        op_types=tuple(op.op_type for op in trace.ops),
        dtype=tuple(dtype_of(op) for op in trace.ops),
        groups=np.array([groups_of(op)[0] for op in trace.ops], np.int32),
        group_channels=np.array([groups_of(op)[1] for op in trace.ops], np.int32),
        scopes=tuple(op.scope for op in trace.ops),
        phases=np.array([call.phase if call else Phase.FORWARD for call in calls], np.int8),
        flops=np.array([call.flops if call else 0 for call in calls], np.float64),
        bytes_accessed=np.array([call.bytes_accessed if call else 0 for call in calls], np.float64),
        parameter_bytes=np.array(
            [
                sum(trace.storage_bytes[storage] for storage in placeholder.storages)
                if placeholder is not None and placeholder.is_resident
                else 0
                for placeholder in placeholders
            ],
            np.int64,
        ),
        workspace_bytes=np.zeros(len(trace.ops), np.int64),
        colocation=_colocation(trace, tensors.home_of_storage),
        tensor_producer=np.array([tensor.producer for tensor in tensors.made], np.int32),
        tensor_bytes=np.array([tensor.num_bytes for tensor in tensors.made], np.int64),
        edges=np.array(tensors.edges, np.int32).reshape(-1, 2),
    )


class TensorsOfTrace:
    """The tensors of the graph of a trace, and who reads them.

    Attributes
    ----------
    made : list of `Version`
        The op that makes each tensor, and the parts of a storage that it is.
    parts : `StorageAccesses`
        Parts of the storages.
    edges : list of (tensor, op)
        Readers of tensors, in the order of the ops.
    home_of_storage : dict of int to int
        The op of each storage that is resident.
    """

    def __init__(self, trace: Trace) -> None:
        self.home_of_storage: dict[int, int] = {}
        self.parts = StorageAccesses(trace)
        self._versions = Versions()
        self._version_of_home: dict[int, int] = {}
        self._version_of_part: dict[tuple[int, int], int] = {}  # by storage and part
        self._readers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # of these
        self._before: list[tuple[int, ...]] = []  # for each op those right before it
        for op, made in enumerate(trace.ops):
            if isinstance(made, Placeholder):
                self._add_placeholder(op, made)
            else:
                self._add_call(op, made)
        self.made, self.edges = self._versions.as_tensors()

    def contents(self, tensor: int) -> list[View]:
        """Return the bytes of a tensor; those of one that is in resident memory are none."""
        made = self.made[tensor]
        if made.storage is None or not made.num_bytes:
            return []
        parts = self.parts.parts(made.storage)
        return [parts[part] for part in made.bytes_of_part]

    def _add_placeholder(self, op: int, placeholder: Placeholder) -> None:
        self._before.append(())
        sizes = self.parts.sizes(placeholder.storages[0])
        home = self._versions.add(Version(op, placeholder.storages[0], dict(enumerate(sizes))))
        self._version_of_home[op] = home
        for storage in placeholder.storages:
            for part in range(len(self.parts.sizes(storage))):
                self._version_of_part[storage, part] = home
            if placeholder.is_resident:
                self.home_of_storage[storage] = op

    def _add_call(self, op: int, call: Call) -> None:
        uses = {storage: self.parts.access(op, storage) for storage in (*call.reads, *call.writes)}
        before = []
        for version, parts in self._read_versions(uses).items():
            before.append(self._versions.versions[version].producer)
            self._versions.read(version, op, parts)
        earlier_ops = EarlierOps(self._before, before)
        for earlier in self._ops_to_wait_for(uses):
            if not earlier_ops.has(earlier):
                earlier_ops.add(earlier)
                before.append(earlier)
                self._versions.read(self._versions.add(Version(earlier, None, {0: 0})), op, [0])
        self._before.append(tuple(before))

        for storage, use in uses.items():
            for part in use.read:
                self._readers[storage, part].append(op)
        for storage in call.creates:
            self._add_version(op, storage, self.parts.created(op, storage))
        for storage in call.writes:
            self._add_version(op, storage, uses[storage].written)

    def _read_versions(self, uses: Mapping[int, Access]) -> dict[int, set[int]]:
        """Return the versions that a call reads, and which of their parts."""
        read: dict[int, set[int]] = {}
        for storage, use in uses.items():
            if storage in self.home_of_storage:
                home = self._version_of_home[self.home_of_storage[storage]]
                read.setdefault(home, set()).update(self._parts_in(home, storage, use.all))
            for part in use.read:
                version = self._version_of_part.get((storage, part))
                if version is not None:
                    read.setdefault(version, set()).update(self._parts_in(version, storage, [part]))
        return read

    def _parts_in(self, version: int, storage: int, parts: Iterable[int]) -> Iterable[int]:
        """Return parts of a version; an optimizer's state is part of no weight, and so of all."""
        made = self._versions.versions[version]
        return parts if made.storage == storage else made.bytes_of_part

    def _ops_to_wait_for(self, uses: Mapping[int, Access]) -> list[int]:
        """Return who made or reads what a call replaces, the last one first.

        It may come after the others.
        """
        earlier: set[int] = set()
        for storage, use in uses.items():
            for part in use.written:
                earlier.update(self._readers[storage, part])
                version = self._version_of_part.get((storage, part))
                if version is not None:
                    earlier.add(self._versions.versions[version].producer)
        return sorted(earlier, reverse=True)

    def _add_version(self, op: int, storage: int, parts: Iterable[int]) -> None:
        is_resident = storage in self.home_of_storage
        sizes = self.parts.sizes(storage)
        version = Version(op, storage, {part: 0 if is_resident else sizes[part] for part in parts})
        index = self._versions.add(version)
        for part in version.bytes_of_part:
            self._version_of_part[storage, part] = index
            self._readers[storage, part] = []


def _unique_names(trace: Trace) -> tuple[str, ...]:
    """Return names of the ops; of equal ones the later ones get a number."""
    taken = {placeholder.name for placeholder in trace.placeholders}
    counts = dict.fromkeys(taken, 0)
    names = []
    for op in trace.ops:
        name = op.name if isinstance(op, Placeholder) else _call_name(trace, op)
        counts[name] = counts.get(name, 0) + 1
        unique = name
        if counts[name] > 1 or (name in taken and isinstance(op, Call)):
            counts[name] = max(counts[name], 2)
            while (unique := f"{name}_{counts[name]}") in taken:
                counts[name] += 1
        taken.add(unique)
        names.append(unique)
    return tuple(names)


def _call_name(trace: Trace, call: Call) -> str:
    owner = None if call.belongs_to is None else trace.ops[call.belongs_to]
    if call.phase == Phase.UPDATE and isinstance(owner, Placeholder):
        return f"{owner.name}/{call.op_type}"
    return f"{call.scope}/{call.op_type}" if call.scope else call.op_type


def _colocation(trace: Trace, home_of_storage: dict[int, int]) -> NDArray[np.int32]:
    """Return int32[V]: equal ids for what belongs together, and for who writes resident storage."""
    leader = list(range(len(trace.ops)))

    def find(op: int) -> int:
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    def join(left: int, right: int) -> None:
        first, second = sorted((find(left), find(right)))
        leader[second] = first

    for op, call in enumerate(trace.ops):
        if isinstance(call, Call):
            if call.belongs_to is not None:
                join(op, call.belongs_to)
            for storage in call.writes:
                if storage in home_of_storage:
                    join(op, home_of_storage[storage])
    leaders = np.array([find(op) for op in range(len(trace.ops))])
    _, ids, counts = np.unique(leaders, return_inverse=True, return_counts=True)
    shared = counts[ids] > 1
    colocation = np.full(len(leaders), FREE, np.int32)
    _, colocation[shared] = np.unique(leaders[shared], return_inverse=True)
    return colocation


@dataclass
class Version:
    """What an op makes in a storage.

    Attributes
    ----------
    producer : int
        The op.
    storage : int or None
        None for what says only that the op comes before others.
    bytes_of_part : dict of int to int
        The parts of the storage that the op writes, and their bytes.
    readers : dict of int to list of int
        The ops that read each of these parts.
    """

    producer: int
    storage: int | None
    bytes_of_part: Mapping[int, int]
    readers: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = {part: [] for part in self.bytes_of_part}

    @property
    def num_bytes(self) -> int:
        """The bytes of all its parts."""
        return sum(self.bytes_of_part.values())

    def by_readers(self) -> list[dict[int, int]]:
        """Return the bytes of its parts, those that the same ops read together."""
        if not self.num_bytes:
            return [dict(self.bytes_of_part)]
        sizes: defaultdict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        for part, size in self.bytes_of_part.items():
            sizes[tuple(self.readers[part])][part] = size
        return list(sizes.values())


class Versions:
    """All versions of a step, in the order in which they were made, and who reads what of them."""

    def __init__(self) -> None:
        self.versions: list[Version] = []
        self._reads: list[tuple[int, int, tuple[int, ...]]] = []  # version, op, parts

    def add(self, version: Version) -> int:
        """Add a version; return its index."""
        self.versions.append(version)
        return len(self.versions) - 1

    def read(self, index: int, op: int, parts: Iterable[int]) -> None:
        """Note that an op reads parts of a version."""
        parts = tuple(sorted(parts))
        self._reads.append((index, op, parts))
        for part in parts:
            self.versions[index].readers[part].append(op)

    def as_tensors(self) -> tuple[list[Version], list[tuple[int, int]]]:
        """Return the tensors, each as the parts of a version that it is, and their edges.

        A tensor is all parts of a version that the same ops read. One without bytes is one.

        Examples
        --------
        Of three parts, one op reads the first two, and another one all of them:

        >>> versions = Versions()
        >>> thirds = versions.add(Version(producer=0, storage=0, bytes_of_part={0: 8, 1: 8, 2: 9}))
        >>> versions.read(thirds, 1, [0, 1])
        >>> versions.read(thirds, 2, [0, 1, 2])
        >>> tensors, edges = versions.as_tensors()
        >>> [dict(tensor.bytes_of_part) for tensor in tensors], edges
        ([{0: 8, 1: 8}, {2: 9}], [(0, 1), (0, 2), (1, 2)])
        """
        tensors: list[Version] = []
        tensor_of_part: list[dict[int, int]] = []
        for version in self.versions:
            tensor_of_part.append({})
            for sizes in version.by_readers():
                tensor_of_part[-1].update(dict.fromkeys(sizes, len(tensors)))
                tensors.append(Version(version.producer, version.storage, sizes))
        edges = [
            (tensor, op)
            for index, op, parts in self._reads
            for tensor in dict.fromkeys(tensor_of_part[index][part] for part in parts)
        ]
        return tensors, edges


class EarlierOps:
    """The ops that come before one by the edges of a graph; asked for from the last to the first.

    The earliest ops are looked at first: from a gradient op the way to what its forward op has read
    is short by what the forward op has kept. After some steps the answer is no, which is on the
    safe side: an edge more says what other edges say already.

    Parameters
    ----------
    before
        For each op those right before it.
    inputs
        The ops right before the one in question.
    """

    def __init__(self, before: Sequence[Iterable[int]], inputs: Iterable[int]) -> None:
        self._before = before
        self._seen = set(inputs)
        self._waiting: list[int] = []  # a heap of ops after the one that was asked for
        self._further = [-op for op in self._seen]  # a heap of ops before it, the last one first
        heapify(self._further)

    def has(self, op: int) -> bool:
        """Return whether an op is among them."""
        while self._further and -self._further[0] >= op:
            heappush(self._waiting, -heappop(self._further))
        for _ in range(LONGEST_SEARCH):
            if op in self._seen or not self._waiting:
                break
            for before in self._before[heappop(self._waiting)]:
                if before not in self._seen:
                    self._seen.add(before)
                    if before > op:
                        heappush(self._waiting, before)
                    else:
                        heappush(self._further, -before)
        return op in self._seen

    def add(self, op: int) -> None:
        """Add an op that was not among them."""
        self._seen.add(op)
        heappush(self._waiting, op)
