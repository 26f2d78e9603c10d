"""The graph of operations of one training step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.digraphs import CompressedRows, CycleError, compress_rows, topological_order
from placeto_graphs.errors import GraphError, short_repr
from placeto_graphs.schema.arrays import (
    Record,
    byte_counts,
    check_rows_differ,
    float_array,
    int_array,
    integer,
    sorted_rows,
    text,
    texts,
)

FREE = -1  # the colocation id of an op that may go anywhere
ONCE = -1  # the micro-batch of an op that runs once
FREE_TYPE = "placeto.free"
"""Type of ops that only keep what they read, where that was made."""
MAX_CYCLE_SHOWN = 6
_DEFAULT: Any = None  # for what is the same of every op or tensor


class Phase(IntEnum):
    """The part of a training step that an op belongs to."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


OP_DEFAULTS: Mapping[str, Any] = {
    "op_types": "op",
    "scopes": "",
    "phases": Phase.FORWARD,
    "flops": 0.0,
    "bytes_accessed": 0.0,
    "parameter_bytes": 0,
    "workspace_bytes": 0,
    "colocation": FREE,
    "dtype": "",
    "groups": 1,
    "group_channels": 0,
    "computed_part": 1.0,
    "micro_batch": ONCE,
}
"""What each op has in those fields of `OpGraph` that need not be given."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenCache(Record):
    """What a step of inference with a language model keeps of earlier tokens.

    Attributes
    ----------
    context : int
        Tokens of each sequence that it has room for, at least 1.
    sequences : int
        Number of sequences, at least 1.
    bits : int
        Bits of a number in it without the scale of its block, at least 1; 16 unless given.
    on_cpu : bool
        Whether it is in the memory of the host, with the attention that reads it; False unless
        given.

    Examples
    --------
    >>> TokenCache(context=8192, sequences=4, bits=8)
    TokenCache(context=8192, sequences=4, bits=8, on_cpu=False)
    """

    context: int
    sequences: int
    bits: int = 16
    on_cpu: bool = False

    def __post_init__(self) -> None:
        for name in ("context", "sequences", "bits"):
            self._check(name, integer, minimum=1)
        if not isinstance(self.on_cpu, bool):
            raise GraphError(f"on_cpu: expected true or false, got {short_repr(self.on_cpu)}")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OpGraph(Record):
    """One training (or inference) step of a model: V ops, T tensors, E edges from tensors to ops.

    An op makes its tensors when it is done. It can run after all the tensors that it reads are on
    its device and the ops that it waits for are done on any device. The graph has no cycles.
    Everything is checked on construction; arrays are read-only afterwards.

    Names, tensors and edges have to be given. Without other fields ops are forward ops that cost
    nothing and may go anywhere.

    Attributes
    ----------
    op_names : V texts
        Names, unique and not empty.
    op_types : V texts
        Computation of each op, such as ``"aten.mm"``; not empty; ``"op"`` unless given.
    scopes : V texts
        Path of the module that the op belongs to, such as ``"encoder.layer.0"``; ``""`` if unknown.
    phases : int8[V]
        A `Phase`: 0 forward, 1 backward, 2 update.
    flops : float64[V]
        Floating-point operations.
    bytes_accessed : float64[V]
        Bytes read and written.
    parameter_bytes : int64[V]
        Bytes of weights and optimizer state that stay on the op's device for the whole step. If
        the op reads no tensor, it is a weight: of its outputs, in their order, as many as fit live
        in that storage (`lives_in_weights`) and take no further memory there; copies of them on
        other devices do. If it reads one, as a whole layer given as one op does, its outputs are
        activations and count. So give the input of a model as an op without parameters: without
        it, the first layer counts as a weight.
    workspace_bytes : int64[V]
        Bytes that the op needs only while it runs.
    colocation : int32[V]
        Co-location ids: ops with equal ids >= 0 share a device; -1 is free.
    tensor_producer : int32[T]
        The op that makes each tensor. The order of an op's tensors is the order of their indices.
    tensor_bytes : int64[T]
        The size of each tensor, in bytes.
    edges : int32[E, 2]
        Rows of (tensor, op that reads it), each at most once. The consumers of a tensor are
        ordered as their rows are.
    measured_time : mapping of text to float64[V]
        Seconds of each op on each kind of device that was measured.
    dtype : V texts
        Number format that each op computes in, such as ``"bfloat16"``; ``""`` if unknown. Empty
        for all ops unless given.
    groups : int32[V]
        Number of groups of a convolution's channels; 1, the default, for every other op.
    group_channels : int32[V]
        Number of input channels of each group of a convolution; 0, the default, for every other op.
    computed_part : float64[V]
        Part of the FLOPs of each op that its kernel computes: less than 1, the default, of
        attention that leaves out pairs of tokens.
    micro_batch : int32[V]
        Micro-batch of each op, from 0; -1, the default, for one that runs once (`micro_batched`).
    waits : int32[W, 2]
        Rows of (op, op that has to be done before it), each at most once, kept in ascending order;
        none unless given. The host issues ops in order: such an edge has no tensor, so no transfer
        and no memory.
    held_tensors : int32[H]
        Tensors that stay on their producer's device until the step ends, as the batch and the
        outputs do that a training loop keeps; each once, kept in ascending order; none unless
        given.
    tokens : int
        Number of tokens that the step makes, if it is one of decoding; else 0.
    cache : `TokenCache` or None
        What a step of inference keeps of earlier tokens, if it does.

    Examples
    --------
    >>> graph = OpGraph(
    ...     op_names=["weights", "matmul"],
    ...     op_types=["parameter", "aten.mm"],
    ...     scopes=["linear", "linear"],
    ...     flops=[0, 2e9],
    ...     bytes_accessed=[0, 12e6],
    ...     parameter_bytes=[4_000_000, 0],
    ...     tensor_producer=[0, 1],
    ...     tensor_bytes=[4_000_000, 4_000_000],
    ...     edges=[[0, 1]],
    ... )
    >>> graph
    OpGraph(ops=2, tensors=2, edges=1)
    """

    op_names: tuple[str, ...]
    op_types: tuple[str, ...] = _DEFAULT
    scopes: tuple[str, ...] = _DEFAULT
    phases: NDArray[np.int8] = _DEFAULT
    flops: NDArray[np.float64] = _DEFAULT
    bytes_accessed: NDArray[np.float64] = _DEFAULT
    parameter_bytes: NDArray[np.int64] = _DEFAULT
    workspace_bytes: NDArray[np.int64] = _DEFAULT
    colocation: NDArray[np.int32] = _DEFAULT
    tensor_producer: NDArray[np.int32]
    tensor_bytes: NDArray[np.int64]
    edges: NDArray[np.int32]
    measured_time: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    dtype: tuple[str, ...] = _DEFAULT
    groups: NDArray[np.int32] = _DEFAULT
    group_channels: NDArray[np.int32] = _DEFAULT
    computed_part: NDArray[np.float64] = _DEFAULT
    micro_batch: NDArray[np.int32] = _DEFAULT
    waits: NDArray[np.int32] = _DEFAULT
    held_tensors: NDArray[np.int32] = _DEFAULT
    tokens: int = 0
    cache: TokenCache | None = None

    def __post_init__(self) -> None:
        self._check("op_names", texts, unique=True)
        count = len(self.op_names)
        if count == 0:
            raise GraphError("op_names: expected at least one op, got none")
        for name, default in OP_DEFAULTS.items():
            if getattr(self, name) is None:
                column = [default] * count if isinstance(default, str) else np.full(count, default)
                object.__setattr__(self, name, column)
        self._check("op_types", texts, count)
        self._check("scopes", texts, count, empty=True)
        self._check("phases", int_array, np.int8, (count,), maximum=max(Phase))
        self._check("flops", float_array, (count,))
        self._check("bytes_accessed", float_array, (count,))
        self._check("parameter_bytes", byte_counts, (count,))
        self._check("workspace_bytes", byte_counts, (count,))
        self._check("colocation", int_array, np.int32, (count,), minimum=FREE)
        self._check("measured_time", _checked_times, count)
        self._check("dtype", texts, count, empty=True)
        self._check("groups", int_array, np.int32, (count,), minimum=1)
        self._check("group_channels", int_array, np.int32, (count,))
        self._check("computed_part", float_array, (count,))
        self._check("micro_batch", int_array, np.int32, (count,), minimum=ONCE)
        self._check("tensor_producer", int_array, np.int32, (None,), maximum=count - 1)
        self._check("tensor_bytes", byte_counts, (len(self.tensor_producer),))
        last = self.num_tensors - 1
        self._check("edges", int_array, np.int32, (None, 2), maximum=[last, count - 1])
        check_rows_differ("edges", self.edges, "(tensor, op)")
        self._check("held_tensors", int_array, np.int32, (None,), maximum=last, default=[])
        self._check("held_tensors", sorted_rows, "tensor")
        self._check("waits", int_array, np.int32, (None, 2), maximum=count - 1, default=[])
        self._check("waits", sorted_rows, "(op, op before it)")
        self._check("tokens", integer, default=0)
        if not isinstance(self.cache, TokenCache | None):
            raise GraphError(f"cache: expected a TokenCache or None, got {short_repr(self.cache)}")
        _ = self.topological_order

    def __repr__(self) -> str:
        return f"OpGraph(ops={self.num_ops}, tensors={self.num_tensors}, edges={self.num_edges})"

    @property
    def num_ops(self) -> int:
        """V, the number of ops."""
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        """T, the number of tensors."""
        return len(self.tensor_bytes)

    @property
    def num_edges(self) -> int:
        """E, the number of edges from a tensor to an op that reads it."""
        return len(self.edges)

    @property
    def edge_producers(self) -> NDArray[np.int32]:
        """int32[E], the op that makes the tensor of each edge."""
        return self.tensor_producer[self.edges[:, 0]]

    @property
    def edge_consumers(self) -> NDArray[np.int32]:
        """int32[E], the op that reads the tensor of each edge."""
        return self.edges[:, 1]

    @property
    def num_waits(self) -> int:
        """W, the number of edges from an op to one that waits for it."""
        return len(self.waits)

    @property
    def num_micro_batches(self) -> int:
        """Number of micro-batches of the step; 1 if it is not divided."""
        return int(self.micro_batch.max(initial=0)) + 1

    @cached_property
    def precedences(self) -> NDArray[np.int32]:
        """int32[E + W, 2], rows of (op, op that runs after it): by an edge, then by a wait."""
        by_edges = np.stack([self.edge_producers, self.edge_consumers], axis=1)
        rows = np.concatenate([by_edges, self.waits[:, ::-1]])
        rows.flags.writeable = False
        return rows

    @cached_property
    def topological_order(self) -> NDArray[np.int32]:
        """int32[V], the ops in topological order; of several ready ones the lowest index first.

        The constructor raises a `GraphError` if edges and waits have a cycle.
        """
        try:
            return topological_order(self.num_ops, *self.precedences.T)
        except CycleError as error:
            names = [short_repr(self.op_names[op]) for op in (*error.nodes, error.nodes[0])]
            if len(names) > MAX_CYCLE_SHOWN:
                names[MAX_CYCLE_SHOWN // 2 : 1 - MAX_CYCLE_SHOWN // 2] = ["..."]
            fields = "edges and waits" if self.num_waits else "edges"
            raise GraphError(f"{fields}: expected no cycle, got {' -> '.join(names)}") from None

    @cached_property
    def topological_index(self) -> NDArray[np.int32]:
        """int32[V], the position of each op in `topological_order`."""
        index = np.empty(self.num_ops, np.int32)
        index[self.topological_order] = np.arange(self.num_ops, dtype=np.int32)
        index.flags.writeable = False
        return index

    @cached_property
    def colocation_leaders(self) -> NDArray[np.int64]:
        """int64[V], the first op with the colocation id of each op; a free op is its own."""
        leaders = np.arange(self.num_ops)
        fixed = np.flatnonzero(self.colocation != FREE)
        ids, first = np.unique(self.colocation[fixed], return_index=True)
        leaders[fixed] = fixed[first][np.searchsorted(ids, self.colocation[fixed])]
        leaders.flags.writeable = False
        return leaders

    @cached_property
    def tensors_of_op(self) -> CompressedRows:
        """Row ``op`` holds the tensors that it makes, in order."""
        return compress_rows(self.num_ops, self.tensor_producer, np.arange(self.num_tensors))

    @cached_property
    def lives_in_weights(self) -> NDArray[np.bool_]:
        """bool[T], the first outputs of each weight, as far as its ``parameter_bytes`` have room.

        A weight is an op that reads no tensor; waits do not count.
        """
        ordered = self.tensors_of_op
        total = np.append(0, np.cumsum(self.tensor_bytes[ordered.values]))
        maker = self.tensor_producer[ordered.values]
        reads_none = np.diff(self.inputs_of_op.offsets) == 0
        room = np.where(reads_none, self.parameter_bytes, 0)[maker]
        result = np.empty(self.num_tensors, np.bool_)
        result[ordered.values] = (room > 0) & (total[1:] - total[ordered.offsets[maker]] <= room)
        return result

    @cached_property
    def consumers_of_tensor(self) -> CompressedRows:
        """Row ``tensor`` holds the ops that read it, in the order of the edges."""
        return compress_rows(self.num_tensors, *self.edges.T)

    @cached_property
    def inputs_of_op(self) -> CompressedRows:
        """Row ``op`` holds the tensors that it reads, in the order of the edges."""
        return compress_rows(self.num_ops, self.edges[:, 1], self.edges[:, 0])

    @cached_property
    def waiters_of_op(self) -> CompressedRows:
        """Row ``op`` holds the ops that wait for it, in ascending order."""
        return compress_rows(self.num_ops, self.waits[:, 1], self.waits[:, 0])


def columns_of_ops(
    graphs: Sequence[OpGraph],
    added: Mapping[str, Any],
    order: NDArray[np.integer[Any]] | slice = slice(None),
) -> dict[str, Any]:
    """Return the fields of `OpGraph` with one value for each op, but names and measured times.

    Parameters
    ----------
    graphs
        Graphs whose ops come first, in turn.
    added
        Fields of further ops, which have defaults in the other fields.
    order
        Index of each op of the result; by default all of them as they come.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> columns = columns_of_ops([example_problem().graph], {"flops": [7]}, np.array([-1]))
    >>> columns["op_types"], columns["flops"]
    (array(['op'], dtype=object), array([7.]))
    """
    num_added = max(map(len, added.values()), default=0)
    columns = {}
    for name, default in OP_DEFAULTS.items():
        of_graphs = [getattr(graph, name) for graph in graphs]
        dtype = object if isinstance(default, str) else of_graphs[0].dtype
        rows = [*of_graphs, added.get(name, [default] * num_added)]
        columns[name] = np.concatenate([np.array(row, dtype) for row in rows])[order]
    return columns


def _checked_times(field: str, times: Any, num_ops: int) -> Mapping[str, NDArray[np.float64]]:
    if not isinstance(times, Mapping):
        raise GraphError(f"{field}: expected a mapping, got {short_repr(times)}")
    return MappingProxyType(
        {
            text(field, kind): float_array(f"{field}[{short_repr(kind)}]", seconds, (num_ops,))
            for kind, seconds in times.items()
        }
    )
