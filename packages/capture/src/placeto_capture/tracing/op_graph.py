"""Makes an `OpGraph` of a trace.

Each op that writes a storage makes a version of it, which is a tensor of the graph. An in-place op
reads the version before, unless it overwrites all of it. A view is the storage. All versions of a
resident storage (weights, optimizer state, buffers) have one place, so that a write has 0 bytes,
and a reader of a later one reads the op of the weights, too: a copy elsewhere costs that. So have
those of what the update of a weight makes, as all of it is on one device.

A write waits for the ops that read or made the version that it replaces, and a gradient op for
those of the gradients with which autograd came to its node. A barrier waits for the backward ops
from which no other one is reached, and later ops for it. Updates as ready wait for tensors alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from networkx.utils import UnionFind
from numpy.typing import NDArray

from placeto_capture.tracing.functions import (
    OVERWRITES,
    computed_part_of,
    dtype_of,
    function_of,
    groups_of,
)
from placeto_capture.tracing.lifetimes import SMALLEST_BLOCK
from placeto_capture.tracing.trace import Call, Placeholder, Trace, views_in
from placeto_graphs import OpGraph, Phase

FREE = -1  # the colocation id of an op that may be anywhere


def op_graph_of(trace: Trace, tensors: "TensorsOfTrace | None" = None) -> OpGraph:
    """Return the graph of the ops of a trace, with equal indices; its tensors may be known."""
    tensors = tensors or TensorsOfTrace(trace)
    ops, versions = trace.ops, tensors.versions
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
        computed_part=np.array([computed_part_of(op) for op in ops], np.float64),
        scopes=tuple(op.scope for op in ops),
        phases=np.array([op.phase for op in ops], np.int8),
        flops=np.array([op.flops for op in ops], np.float64),
        bytes_accessed=np.array([op.bytes_accessed for op in ops], np.float64),
        parameter_bytes=np.array(resident_bytes, np.int64),
        workspace_bytes=np.array(workspace, np.int64),
        colocation=_colocation(trace, tensors.home_of_storage),
        tensor_producer=np.array([tensor.producer for tensor in versions], np.int32),
        tensor_bytes=np.array([tensor.num_bytes for tensor in versions], np.int64),
        edges=np.array(tensors.edges, np.int32).reshape(-1, 2),
        waits=np.array(tensors.waits, np.int32).reshape(-1, 2),
        held_tensors=np.array([t for t, tensor in enumerate(versions) if tensor.is_held], np.int32),
        cache=trace.cache,
    )


@dataclass
class Version:
    """What an op has made of a storage: a tensor of the graph."""

    producer: int  # the op
    storage: int | None  # None for what says only that the op comes before others
    num_bytes: int
    is_held: bool = False  # until the end of the step


class TensorsOfTrace:
    """Tensors of the graph of a trace, ``versions``, who reads them, ``edges``, and ``waits``."""

    def __init__(self, trace: Trace) -> None:
        self.versions: list[Version] = []
        self.edges: list[tuple[int, int]] = []  # tensors, and ops that read them
        self.waits: list[tuple[int, int]] = []  # ops, and those that have to be done before
        self.is_dataflow = trace.updates == "as-ready"  # tensors alone say what comes first
        self._trace = trace
        self._last_backward_ops: dict[int, None] = {}  # from which no other one is reached
        self._barrier: int | None = None
        # Sets of ops are bits of whole numbers.
        self._predecessors: list[tuple[int, ...]] = []  # for each op those right before it
        self._ancestors: list[int] = []  # of each op, with itself
        self._homes: dict[int, int] = {}  # the first tensor of each resident storage
        self._first_of_update: dict[int, int] = {}  # the same of what updates of a weight make
        self._current: dict[int, int] = {}  # the last tensor of each storage
        self._readers: defaultdict[int, list[int]] = defaultdict(list)  # of these
        for op, traced_op in enumerate(trace.ops):
            if isinstance(traced_op, Placeholder):
                self._add_placeholder(op, traced_op)
            else:
                self._add_call(op, traced_op)
        for storage in () if self.is_dataflow else trace.held_storages - self._homes.keys():
            if storage in self._current:
                first = self._first_of_update.get(storage, self._current[storage])
                self.versions[first].is_held = True

    @property
    def home_of_storage(self) -> dict[int, int]:
        """The op of each storage that is resident."""
        return {storage: self.versions[home].producer for storage, home in self._homes.items()}

    def _add(self, producer: int, storage: int | None, num_bytes: int) -> int:
        self.versions.append(Version(producer, storage, num_bytes))
        return len(self.versions) - 1

    def _add_placeholder(self, op: int, placeholder: Placeholder) -> None:
        self._predecessors.append(())
        self._ancestors.append(1 << op)
        first, *_ = placeholder.storages
        home = self._add(op, first, self._trace.bytes_before([first]))
        self._current.update(dict.fromkeys(placeholder.storages, home))
        if placeholder.is_resident:
            self._homes.update(dict.fromkeys(placeholder.storages, home))

    def _add_call(self, op: int, call: Call) -> None:
        looked_at = _looked_at(call, self._trace.storage_bytes)
        read = self._read(call, looked_at)
        predecessors = [self.versions[tensor].producer for tensor in read]
        self.edges += [(tensor, op) for tensor in read]
        for earlier in self._ops_to_wait_for(call, predecessors):
            predecessors.append(earlier)
            if self.is_dataflow:
                self.edges.append((self._add(earlier, None, 0), op))
            else:
                self.waits.append((op, earlier))
        self._predecessors.append(tuple(predecessors))
        for earlier in predecessors:
            self._last_backward_ops.pop(earlier, None)
        if call.phase == Phase.BACKWARD:
            self._last_backward_ops[op] = None
        self._ancestors.append(self._ancestors_of(predecessors) | 1 << op)
        if call.is_barrier:
            self._barrier = op

        for storage in looked_at:
            self._readers[storage].append(op)
        for storage in (*call.creates, *call.writes):
            has_place = storage in self._homes or storage in self._first_of_update
            num_bytes = 0 if has_place else self._trace.storage_bytes[storage]
            self._current[storage] = self._add(op, storage, num_bytes)
            if call.phase == Phase.UPDATE and call.belongs_to is not None and not has_place:
                self._first_of_update[storage] = self._current[storage]
            self._readers[storage] = []

    def _read(self, call: Call, looked_at: set[int]) -> list[int]:
        """Return the tensors that a call reads."""
        tensors: list[int] = []
        for storage in (*call.reads, *call.writes):
            places = self._homes, self._first_of_update
            tensors += [place[storage] for place in places if storage in place]
            if storage in looked_at and storage in self._current:
                tensors.append(self._current[storage])
        return [*dict.fromkeys(tensors)]

    def _ops_to_wait_for(self, call: Call, inputs: Sequence[int]) -> list[int]:
        """Return the ops that a call waits for and that do not come before its inputs anyway."""
        if call.is_barrier:
            return list(self._last_backward_ops)
        earlier: set[int] = set()  # that made or read what the call replaces
        for storage in call.writes:
            earlier.update(self._readers[storage])
            if storage in self._current:
                earlier.add(self.versions[self._current[storage]].producer)
        if call.is_free:
            for last in call.waits_for:
                earlier.update(self._right_before(last, inputs))
        elif not self.is_dataflow:
            earlier.update(call.waits_for)
        ancestors = self._ancestors_of(inputs)
        if self._barrier is not None:
            earlier = {op for op in earlier if not self._ancestors[self._barrier] >> op & 1}
            if not (ancestors | self._ancestors_of(earlier)) >> self._barrier & 1:
                earlier.add(self._barrier)
        to_wait_for: list[int] = []
        for candidate in sorted(earlier, reverse=True):
            if not ancestors >> candidate & 1:
                ancestors |= self._ancestors[candidate]
                to_wait_for.append(candidate)
        return to_wait_for

    def _ancestors_of(self, ops: Iterable[int]) -> int:
        """Return some ops and all that come before them."""
        return reduce(or_, (self._ancestors[op] for op in ops), 0)

    def _right_before(self, last: int, inputs: Sequence[int]) -> tuple[int, ...]:
        """Return what a free waits for to queue right behind the last op that it is for."""
        predecessors = self._predecessors[last]
        return predecessors if max(predecessors, default=-1) > max(inputs) else (last,)


def _looked_at(call: Call, storage_bytes: Sequence[int]) -> set[int]:
    """Return the storages that a call reads, or changes without overwriting all of their bytes."""
    looked_at = set(call.reads)
    for single_call in call.single_calls:
        function = function_of(single_call.function)
        views = views_in((single_call.arguments, single_call.keywords))
        if function.name in OVERWRITES:
            for view in views_in(function.written(single_call.arguments, single_call.keywords)):
                if view.num_bytes == storage_bytes[view.storage]:
                    views.remove(view)
        looked_at.update(view.storage for view in views)
    return looked_at.intersection((*call.reads, *call.writes))


def _unique_names(trace: Trace) -> tuple[str, ...]:
    """Return names of the ops; of equal ones the later ones get a number."""
    used_names = {placeholder.name for placeholder in trace.placeholders}
    counts = dict.fromkeys(used_names, 0)
    names = []
    for op in trace.ops:
        name = op.name if isinstance(op, Placeholder) else _call_name(trace, op)
        counts[name] = counts.get(name, 0) + 1
        unique = name
        if counts[name] > 1 or (name in used_names and isinstance(op, Call)):
            counts[name] = max(counts[name], 2)
            while (unique := f"{name}_{counts[name]}") in used_names:
                counts[name] += 1
        used_names.add(unique)
        names.append(unique)
    return tuple(names)


def _call_name(trace: Trace, call: Call) -> str:
    owner = None if call.belongs_to is None else trace.ops[call.belongs_to]
    if call.phase == Phase.UPDATE and isinstance(owner, Placeholder) and not call.is_barrier:
        return f"{owner.name}/{call.op_type}"
    return f"{call.scope}/{call.op_type}" if call.scope else call.op_type


def _colocation(trace: Trace, home_of_storage: dict[int, int]) -> NDArray[np.int32]:
    """Return int32[V]: equal ids for what belongs together, and for who writes resident storage.

    So is a reader of a written buffer, as attention is of a cache: elsewhere it would need all of
    it.
    """
    together = UnionFind(range(len(trace.ops)))
    written_buffers: set[int] = set()
    for op, call in enumerate(trace.ops):
        if call.belongs_to is not None:
            together.union(op, call.belongs_to)
        for storage in call.writes:
            if storage in home_of_storage:
                home = home_of_storage[storage]
                together.union(op, home)
                is_large = trace.storage_bytes[storage] > SMALLEST_BLOCK
                if is_large and trace.ops[home].op_type == "buffer":
                    written_buffers.add(storage)
        for storage in written_buffers.intersection(call.reads):
            together.union(op, home_of_storage[storage])
    first: dict[int, int] = {}
    leaders = np.array([first.setdefault(together[op], op) for op in range(len(trace.ops))])
    _, ids, counts = np.unique(leaders, return_inverse=True, return_counts=True)
    shared = counts[ids] > 1
    colocation = np.full(len(leaders), FREE, np.int32)
    _, colocation[shared] = np.unique(leaders[shared], return_inverse=True)
    return colocation
