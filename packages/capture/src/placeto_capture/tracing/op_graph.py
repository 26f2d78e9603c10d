"""Makes an `OpGraph` of a trace.

Each op that writes a storage makes a version of the part that it writes. An in-place op reads the
version before its own, unless it overwrites all of it, and makes a new one. The graph is therefore
one of values, and each op can run on any device. A reader of a part of a storage reads those
versions of which it shows some bytes.

The bytes that an op makes in a storage are a tensor of the graph. If ops read different parts of
it, it is several tensors: one for all bytes that the same ops read. So each op reads as many bytes
as it looks at (`placeto_capture.tracing.storage_parts` names the exceptions). The tensors of an op
have no byte in common, and bytes that no op has written are in none.

A resident storage (weights, optimizer state, buffers) has one place for all of its versions. A
write takes no further memory: its tensor has 0 bytes and says only what comes first. It happens on
the device of the weights. A reader of a later version reads the op of the weights as well, because
a copy for another device costs that.

Parameters, buffers and inputs that overlap in memory are one storage, and so one op.

A write waits for the ops that read the version that it replaces, and for the one that made it.
A gradient op waits for the ops that made the gradients with which autograd came to its node.
Otherwise a reader of saved values alone, such as recomputation, would run during the forward pass.
If no other path says so, these are ``waits``. Any order of the ops that keeps to tensors and waits
may thus run in the memory that the model and autograd use.

A barrier waits for the backward ops from which no other backward op is reached, and so for the
backward pass. Later ops wait for the barrier. Tensors that a training loop holds (inputs, outputs,
loss, gradients, variables) stay until the end of the step: ``held_tensors``. Tensors that are kept
for a shorter time are read by a free (`placeto_capture.tracing.lifetimes`).

If updates run as soon as they can, as in TensorFlow, tensors alone say what comes first, and
nothing is held. A write then reads a tensor of 0 bytes of each op that it waits for.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from placeto_capture.tracing.functions import dtype_of, groups_of
from placeto_capture.tracing.lifetimes import SMALLEST_BLOCK
from placeto_capture.tracing.storage_parts import Access, StorageAccesses
from placeto_capture.tracing.trace import Call, Placeholder, Trace
from placeto_graphs import OpGraph, Phase

LONGEST_SEARCH = 1_000  # ops that `EarlierOps` looks at before the answer is no
FREE = -1  # the colocation id of an op that may be anywhere


def op_graph_of(trace: Trace, tensors: "TensorsOfTrace | None" = None) -> OpGraph:
    """Return the graph of the ops of a trace, with equal indices; its tensors may be known."""
    tensors = tensors or TensorsOfTrace(trace)
    ops, made = trace.ops, tensors.made
    groups = np.array([groups_of(op) for op in ops], np.int32).reshape(-1, 2)
    workspace = [0 if tensors.is_dataflow else op.workspace_bytes for op in ops]
    resident_bytes = [
        trace.bytes_before(op.storages) if isinstance(op, Placeholder) and op.is_resident else 0
        for op in ops
    ]
    return OpGraph(
        op_names=_unique_names(trace),
        op_types=tuple(op.op_type for op in ops),
        dtype=tuple(dtype_of(op) for op in ops),
        groups=groups[:, 0],
        group_channels=groups[:, 1],
        scopes=tuple(op.scope for op in ops),
        phases=np.array([op.phase for op in ops], np.int8),
        flops=np.array([op.flops for op in ops], np.float64),
        bytes_accessed=np.array([op.bytes_accessed for op in ops], np.float64),
        parameter_bytes=np.array(resident_bytes, np.int64),
        workspace_bytes=np.array(workspace, np.int64),
        colocation=_colocation(trace, tensors.home_of_storage),
        tensor_producer=np.array([tensor.producer for tensor in made], np.int32),
        tensor_bytes=np.array([tensor.num_bytes for tensor in made], np.int64),
        edges=np.array(tensors.edges, np.int32).reshape(-1, 2),
        waits=np.array(tensors.waits, np.int32).reshape(-1, 2),
        held_tensors=np.array([t for t, tensor in enumerate(made) if tensor.held], np.int32),
    )


@dataclass(eq=False)
class Version:
    """The parts of a storage that an op has made."""

    producer: int  # the op
    storage: int | None  # None for what says only that the op comes before others
    bytes_of_part: Mapping[int, int]  # the parts of the storage that the op writes, and their bytes
    held: set[int] = field(default_factory=set)  # the parts that stay until the end of the step

    @property
    def num_bytes(self) -> int:
        """The bytes of all its parts."""
        return sum(self.bytes_of_part.values())


Read = tuple[Version, int, Sequence[int]]  # a version, the op that reads it, and parts of it


def as_tensors(
    versions: Sequence[Version], reads: Sequence[Read]
) -> tuple[list[Version], list[tuple[int, int]]]:
    """Return the tensors, each as the parts of a version that it is, and their edges.

    A tensor is all parts of a version that the same ops read. One without bytes is one.
    """
    readers: defaultdict[tuple[Version, int], list[int]] = defaultdict(list)
    for version, op, parts in reads:
        for part in parts:
            readers[version, part].append(op)
    tensors: list[Version] = []
    tensor_of_part: dict[tuple[Version, int], int] = {}
    for version in versions:
        groups: defaultdict[Hashable, dict[int, int]] = defaultdict(dict)
        has_bytes = version.num_bytes > 0
        for part, size in version.bytes_of_part.items():
            key = (part in version.held, *readers[version, part]) if has_bytes else None
            groups[key][part] = size
        for sizes in groups.values() or [{}]:
            tensor_of_part.update(((version, part), len(tensors)) for part in sizes)
            held = version.held & sizes.keys()
            tensors.append(Version(version.producer, version.storage, sizes, held))
    edges = [
        (tensor, op)
        for version, op, parts in reads
        for tensor in dict.fromkeys(tensor_of_part[version, part] for part in parts)
    ]
    return tensors, edges


class EarlierOps:
    """The ops that come before one by the edges of a graph, queried from the last to the first.

    The search begins with the earliest ops. From a gradient op, the way to the inputs of its
    forward op is short by way of what that has kept. After some steps the answer is no, which is
    safe: a further edge only says what other edges say already.
    """

    def __init__(self, before: Sequence[Iterable[int]], inputs: Iterable[int]) -> None:
        self._before = before  # for each op those right before it
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


class TensorsOfTrace:
    """The tensors of the graph of a trace, ``made``, who reads them, ``edges``, and ``waits``."""

    def __init__(self, trace: Trace) -> None:
        self.parts = StorageAccesses(trace)
        self.waits: list[tuple[int, int]] = []  # ops, and those that have to be done before
        self.is_dataflow = trace.updates == "as-ready"  # tensors alone say what comes first
        self._last_backward_ops: dict[int, None] = {}  # from which no other one is reached
        self._barrier: int | None = None
        self._before_barrier: set[int] = set()
        self._after_barrier: set[int] = set()  # it and the ops that come after it
        self._versions: list[Version] = []
        self._reads: list[Read] = []
        self._homes: dict[int, Version] = {}  # what there is of each resident storage at first
        self._version_of_part: dict[tuple[int, int], Version] = {}  # by storage and part
        self._readers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # of these
        self._before: list[tuple[int, ...]] = []  # for each op those right before it
        for op, made in enumerate(trace.ops):
            if isinstance(made, Placeholder):
                self._add_placeholder(op, made)
            else:
                self._add_call(op, made)
        if not self.is_dataflow:
            self._hold(trace.held)
        self.made, self.edges = as_tensors(self._versions, self._reads)

    @property
    def home_of_storage(self) -> dict[int, int]:
        """The op of each storage that is resident."""
        return {storage: home.producer for storage, home in self._homes.items()}

    def _add_placeholder(self, op: int, placeholder: Placeholder) -> None:
        self._before.append(())
        sizes = self.parts.sizes(placeholder.storages[0])
        home = self._add(Version(op, placeholder.storages[0], dict(enumerate(sizes))))
        for storage in placeholder.storages:
            self._version_of_part.update(((storage, part), home) for part in self._all(storage))
            if placeholder.is_resident:
                self._homes[storage] = home

    def _add(self, version: Version) -> Version:
        self._versions.append(version)
        return version

    def _all(self, storage: int) -> Iterable[int]:
        return range(len(self.parts.sizes(storage)))

    def _current(self, storage: int, parts: Iterable[int]) -> Iterator[tuple[int, Version]]:
        """Yield those parts that something has made, and their versions."""
        for part in parts:
            if (storage, part) in self._version_of_part:
                yield part, self._version_of_part[storage, part]

    def _add_call(self, op: int, call: Call) -> None:
        uses = {storage: self.parts.access(op, storage) for storage in (*call.reads, *call.writes)}
        before = []
        for version, parts in self._read_versions(uses).items():
            before.append(version.producer)
            self._reads.append((version, op, sorted(parts)))
        for earlier in self._ops_to_wait_for(call, uses, before):
            before.append(earlier)
            if self.is_dataflow:
                self._reads.append((self._add(Version(earlier, None, {0: 0})), op, [0]))
            else:
                self.waits.append((op, earlier))
        self._before.append(tuple(before))
        for earlier in before:
            self._last_backward_ops.pop(earlier, None)
        if call.phase == Phase.BACKWARD:
            self._last_backward_ops[op] = None
        if call.is_barrier:
            self._barrier, self._before_barrier = op, self._ancestors(op)
            self._after_barrier = {op}
        elif not self._after_barrier.isdisjoint(before):
            self._after_barrier.add(op)

        for storage, use in uses.items():
            for part in use.read:
                self._readers[storage, part].append(op)
        for storage in (*call.creates, *call.writes):
            self._add_version(op, storage, self.parts.made(op, storage))

    def _read_versions(self, uses: Mapping[int, Access]) -> dict[Version, set[int]]:
        """Return the versions that a call reads, and which of their parts."""
        read: defaultdict[Version, set[int]] = defaultdict(set)
        for storage, use in uses.items():
            if storage in self._homes:
                home = self._homes[storage]
                read[home].update(_parts_in(home, storage, use.all))
            for part, version in self._current(storage, use.read):
                read[version].update(_parts_in(version, storage, [part]))
        return read

    def _ops_to_wait_for(
        self, call: Call, uses: Mapping[int, Access], inputs: Sequence[int]
    ) -> list[int]:
        """Return the ops that a call waits for and that do not come before its inputs anyway."""
        if call.is_barrier:
            return list(self._last_backward_ops)
        earlier = self._replaced_by(uses)
        if call.is_free:
            for last in call.waits_for:
                earlier.update(self._right_before(last, inputs))
        elif not self.is_dataflow:
            earlier.update(call.waits_for)
        if self._barrier is not None:
            earlier -= self._before_barrier
            if self._after_barrier.isdisjoint((*inputs, *earlier)):
                earlier.add(self._barrier)
        to_wait_for: list[int] = []
        earlier_ops = EarlierOps(self._before, inputs)
        for other in sorted(earlier, reverse=True):
            if not earlier_ops.has(other):
                earlier_ops.add(other)
                to_wait_for.append(other)
        return to_wait_for

    def _right_before(self, last: int, inputs: Sequence[int]) -> tuple[int, ...]:
        """Return what a free has to wait for to queue right behind the last op that it is for.

        If it waited for that op, it would queue behind the next one as well.
        """
        before = self._before[last]
        return before if max(before, default=-1) > max(inputs) else (last,)

    def _ancestors(self, op: int) -> set[int]:
        found = {op}
        for other in range(op, -1, -1):
            if other in found:
                found.update(self._before[other])
        return found

    def _hold(self, storages: Iterable[int]) -> None:
        """Let what is in some storages at the end stay there; what is resident does anyway."""
        for storage in storages:
            if storage not in self._homes:
                for part, version in self._current(storage, self._all(storage)):
                    version.held.update(_parts_in(version, storage, [part]))

    def _replaced_by(self, uses: Mapping[int, Access]) -> set[int]:
        """Return the ops that made or read what a call replaces."""
        earlier: set[int] = set()
        for storage, use in uses.items():
            earlier.update(*(self._readers[storage, part] for part in use.written))
            earlier.update(made.producer for _, made in self._current(storage, use.written))
        return earlier

    def _add_version(self, op: int, storage: int, parts: Iterable[int]) -> None:
        sizes = self.parts.sizes(storage)
        bytes_of_part = {part: 0 if storage in self._homes else sizes[part] for part in parts}
        version = self._add(Version(op, storage, bytes_of_part))
        for part in bytes_of_part:
            self._version_of_part[storage, part] = version
            self._readers[storage, part] = []


def _parts_in(version: Version, storage: int, parts: Iterable[int]) -> Iterable[int]:
    """Return parts of a version; an optimizer's state is part of no weight, and so of all."""
    return parts if version.storage == storage else version.bytes_of_part


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
    if call.phase == Phase.UPDATE and isinstance(owner, Placeholder) and not call.is_barrier:
        return f"{owner.name}/{call.op_type}"
    return f"{call.scope}/{call.op_type}" if call.scope else call.op_type


def _colocation(trace: Trace, home_of_storage: dict[int, int]) -> NDArray[np.int32]:
    """Return int32[V]: equal ids for what belongs together, and for who writes resident storage.

    A reader of a buffer that the step has written is with it, as attention is with the keys and
    values of its layer. Elsewhere it would need all of them in each step.
    """
    leader = list(range(len(trace.ops)))

    def find(op: int) -> int:
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    def join(left: int, right: int) -> None:
        first, second = sorted((find(left), find(right)))
        leader[second] = first

    written_buffers: set[int] = set()
    for op, call in enumerate(trace.ops):
        if call.belongs_to is not None:
            join(op, call.belongs_to)
        for storage in call.writes:
            if storage in home_of_storage:
                home = home_of_storage[storage]
                join(op, home)
                is_large = trace.storage_bytes[storage] > SMALLEST_BLOCK
                if is_large and trace.ops[home].op_type == "buffer":
                    written_buffers.add(storage)
        for storage in written_buffers.intersection(call.reads):
            join(op, home_of_storage[storage])
    leaders = np.array([find(op) for op in range(len(trace.ops))])
    _, ids, counts = np.unique(leaders, return_inverse=True, return_counts=True)
    shared = counts[ids] > 1
    colocation = np.full(len(leaders), FREE, np.int32)
    _, colocation[shared] = np.unique(leaders[shared], return_inverse=True)
    return colocation
