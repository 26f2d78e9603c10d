"""Makes an `OpGraph` of a trace.

Each op that writes a storage makes a version of it, and each version is a tensor of the graph, of
the size of the storage, which every op reads that looks at the storage before the next write. So an
in-place op reads the version before its own and makes a new tensor, as if it were not in place: the
graph is one of values, and each op can run on any device.

Where the storage is resident (weights, optimizer state, buffers) there is one place for all of its
versions: a write takes no further memory (its tensor has 0 bytes and says only what comes first)
and happens on the device of the weights. Who reads a later version reads the op of the weights as
well, because that is what a copy for another device costs.

Parameters, buffers and inputs that overlap in memory are one storage, and so one op.

A write waits for the ops that read the version that it replaces. Where no other path says so, the
reader gets a tensor of 0 bytes that the writer reads. Any topological order of the ops may thus
run in the memory that the model and autograd use.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from heapq import heapify
from heapq import heappop
from heapq import heappush

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import OpGraph
from placeto_graphs import Phase
from placeto_workloads.capture.op_types import op_type_of
from placeto_workloads.capture.trace import Call
from placeto_workloads.capture.trace import Source
from placeto_workloads.capture.trace import Trace

FREE = -1
LONGEST_SEARCH = 1_000  # ops that are looked at to find out whether one comes before another


def op_graph_of(trace: Trace) -> OpGraph:
    """Return the graph of the ops of a trace, with equal indices."""
    tensors = _Tensors(trace)
    sources = [op if isinstance(op, Source) else None for op in trace.ops]
    calls = [op if isinstance(op, Call) else None for op in trace.ops]
    return OpGraph(
        op_names=_unique_names(trace),
        op_types=tuple(op_type_of(op) for op in trace.ops),
        scopes=tuple(op.scope for op in trace.ops),
        phases=np.array([call.phase if call else Phase.FORWARD for call in calls], np.int8),
        flops=np.array([call.flops if call else 0 for call in calls], np.float64),
        bytes_accessed=np.array([call.bytes_accessed if call else 0 for call in calls], np.float64),
        parameter_bytes=np.array(
            [
                sum(trace.storage_bytes[storage] for storage in source.storages)
                if source is not None and source.is_resident
                else 0
                for source in sources
            ],
            np.int64,
        ),
        workspace_bytes=np.zeros(len(trace.ops), np.int64),
        colocation=_colocation(trace, tensors.home_of_storage),
        tensor_producer=np.array(tensors.producers, np.int32),
        tensor_bytes=np.array(tensors.sizes, np.int64),
        edges=np.array(tensors.edges, np.int32).reshape(-1, 2),
    )


def storages_of_tensors(trace: Trace) -> list[tuple[int, ...]]:
    """Return what each tensor of the graph holds: a storage, those of a source, or nothing."""
    return _Tensors(trace).storages


class _Tensors:
    """The tensors of a graph, and who reads them.

    Attributes
    ----------
    producers, sizes : list of int
        The op and the bytes of each tensor.
    storages : list of tuple of int
        What each tensor is a version of.
    edges : list of (tensor, op)
        Who reads what, in the order of the ops.
    home_of_storage : dict of int to int
        The op of each storage that is resident.
    """

    def __init__(self, trace: Trace) -> None:
        self.producers: list[int] = []
        self.sizes: list[int] = []
        self.storages: list[tuple[int, ...]] = []
        self.edges: list[tuple[int, int]] = []
        self.home_of_storage: dict[int, int] = {}
        self._trace = trace
        self._tensor_of_storage: dict[int, int] = {}  # its current version
        self._tensor_of_home: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}  # of the current version of each storage
        self._before: list[tuple[int, ...]] = []  # for each op those right before it
        for op, made in enumerate(trace.ops):
            if isinstance(made, Source):
                self._add_source(op, made)
            else:
                self._add_call(op, made)

    def _add_source(self, op: int, source: Source) -> None:
        self._before.append(())
        self._tensor_of_home[op] = self._add_tensor(
            op, self._trace.storage_bytes[source.storages[0]], source.storages
        )
        for storage in source.storages:
            self._tensor_of_storage[storage] = self._tensor_of_home[op]
            self._readers[storage] = []
            if source.is_resident:
                self.home_of_storage[storage] = op

    def _add_call(self, op: int, call: Call) -> None:
        read = dict.fromkeys(
            tensor
            for storage in (*call.reads, *call.writes)
            for tensor in self._tensors_to_read(storage)
        )
        self.edges += [(tensor, op) for tensor in read]
        before = [self.producers[tensor] for tensor in read]
        earlier = _Earlier(self._before, before)
        for reader in self._readers_to_wait_for(call):
            if not earlier.has(reader):
                earlier.add(reader)
                before.append(reader)
                self.edges.append((self._add_tensor(reader, 0), op))
        self._before.append(tuple(before))

        for storage in call.reads:
            self._readers[storage].append(op)
        for storage in (*call.creates, *call.writes):
            is_resident = storage in self.home_of_storage
            size = 0 if is_resident else self._trace.storage_bytes[storage]
            self._tensor_of_storage[storage] = self._add_tensor(op, size, (storage,))
            self._readers[storage] = []

    def _tensors_to_read(self, storage: int) -> list[int]:
        version = self._tensor_of_storage[storage]
        if storage in self.home_of_storage:
            return [self._tensor_of_home[self.home_of_storage[storage]], version]
        return [version]

    def _readers_to_wait_for(self, call: Call) -> list[int]:
        """Return who reads what a call replaces, the last one first: it may come after others."""
        return sorted(
            {op for storage in call.writes for op in self._readers[storage]}, reverse=True
        )

    def _add_tensor(self, producer: int, size: int, storages: tuple[int, ...] = ()) -> int:
        self.producers.append(producer)
        self.sizes.append(size)
        self.storages.append(storages)
        return len(self.producers) - 1


class _Earlier:
    """Which ops come before an op by the edges of a graph; asked for from the last to the first.

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


def _unique_names(trace: Trace) -> tuple[str, ...]:
    """Return names of the ops; of equal ones the later ones get a number."""
    taken = {source.name for source in trace.sources}
    counts = dict.fromkeys(taken, 0)
    names = []
    for op in trace.ops:
        name = op.name if isinstance(op, Source) else _call_name(trace, op)
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
    if call.phase == Phase.UPDATE and isinstance(owner, Source):
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
