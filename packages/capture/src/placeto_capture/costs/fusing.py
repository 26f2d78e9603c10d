"""Ops that a compiler, or a server for language models, runs as one kernel. Begin at `fused`."""

import re
from collections.abc import Sequence
from os.path import commonprefix

import numpy as np
from numpy.typing import NDArray

from placeto_capture.costs.op_classes import RESIDENT_TYPES, OpClass, class_of_type
from placeto_graphs import OpGraph, columns_of_ops

FUSIBLE = frozenset({OpClass.ELEMENTWISE, OpClass.NORMALISATION, OpClass.REDUCTION, OpClass.COPY})
# The first part of a scope that ends in a number, which is a layer of a model.
LAYER = re.compile(r"(?:.*?\.)??[0-9]+(?![^.])")
FREE = -1  # the colocation id of an op that may go anywhere


def fused(graph: OpGraph) -> OpGraph:
    """Return a step of inference with fused kernels, as llama.cpp, vLLM and torch.compile run it.

    Ops that are no products are one kernel if they are connected, belong to one layer (what a scope
    names up to its first number), and no product or op of another layer is between them. A kernel
    is launched once. It reads and writes what goes into it and comes out of it, and what is inside
    takes no memory. It has the name, type and dtype of the op that accesses most bytes, and the
    scope that its ops have in common. Ops of unknown types stay as they are.

    Parameters
    ----------
    graph
        The V ops of a step of inference.

    Returns
    -------
    OpGraph
        At most V ops, each after those that it reads.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from placeto_capture import capture
    >>> layer = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Tanh(), nn.Linear(8, 2))
    >>> graph = fused(capture(nn.Sequential(layer), torch.ones(1, 4), mode="inference"))
    >>> [kind for kind in graph.op_types if kind.startswith("aten")]
    ['aten.addmm', 'aten.tanh', 'aten.addmm']
    """
    kernel_of_op = _kernels(graph)
    num_kernels = int(kernel_of_op.max()) + 1

    def summed(values: NDArray[np.float64 | np.int64]) -> NDArray[np.float64]:
        return np.bincount(kernel_of_op, values, num_kernels).astype(np.float64)

    makers, readers = kernel_of_op[graph.edge_producers], kernel_of_op[graph.edge_consumers]
    crosses = makers != readers
    is_read = np.bincount(graph.edges[:, 0], minlength=graph.num_tensors) > 0
    leaves = np.bincount(graph.edges[crosses, 0], minlength=graph.num_tensors) > 0
    leaves |= ~is_read
    leaves[graph.held_tensors] = True
    new_tensor = np.cumsum(leaves) - 1
    edges = _first_rows(np.stack([new_tensor[graph.edges[:, 0]], readers], axis=1)[crosses])
    waits = _first_rows(kernel_of_op[graph.waits][np.diff(kernel_of_op[graph.waits])[:, 0] != 0])
    # The order of an op's tensors is that of their indices, as before.
    main = np.empty(num_kernels, np.int64)
    by_bytes = np.argsort(graph.bytes_accessed, kind="stable")
    main[kernel_of_op[by_bytes]] = by_bytes
    workspace = np.zeros(num_kernels, np.int64)
    np.maximum.at(workspace, kernel_of_op, graph.workspace_bytes)
    columns = columns_of_ops([graph], {}, main)
    accessed = summed(graph.bytes_accessed - _bytes_inside(graph, crosses))
    columns |= {
        "scopes": _common_scopes(graph.scopes, kernel_of_op, num_kernels),
        "flops": summed(graph.flops),
        "bytes_accessed": np.maximum(accessed, 0),
        "parameter_bytes": summed(graph.parameter_bytes).astype(np.int64),
        "workspace_bytes": workspace,
        "colocation": _colocation(graph.colocation, kernel_of_op, num_kernels),
    }
    return OpGraph(
        **columns,
        op_names=tuple(graph.op_names[op] for op in main.tolist()),
        tensor_producer=kernel_of_op[graph.tensor_producer[leaves]].astype(np.int32),
        tensor_bytes=graph.tensor_bytes[leaves],
        edges=edges,
        measured_time={kind: summed(seconds) for kind, seconds in graph.measured_time.items()},
        waits=waits,
        held_tensors=new_tensor[graph.held_tensors],
        tokens=graph.tokens,
        cache=graph.cache,
    )


def _kernels(graph: OpGraph) -> NDArray[np.int64]:
    """Return int64[V], the kernel of each op, numbered so that each comes after those it reads.

    Every edge from one kernel to another leads to a higher level, so that there is no cycle.
    """
    from networkx.utils import UnionFind  # noqa: PLC0415 (it takes a while, as below)

    is_fusible = [
        op_type not in RESIDENT_TYPES and class_of_type(op_type) in FUSIBLE
        for op_type in graph.op_types
    ]
    layers = [match[0] if (match := LAYER.match(scope)) else "" for scope in graph.scopes]
    before: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for earlier, later in graph.precedences.tolist():
        before[later].append(earlier)
    level = [0] * graph.num_ops
    together = UnionFind(range(graph.num_ops))
    for op in graph.topological_order.tolist():
        can_join = [
            is_fusible[op] and is_fusible[earlier] and layers[op] == layers[earlier]
            for earlier in before[op]
        ]
        level[op] = max(
            (
                level[earlier] + (not joins)
                for earlier, joins in zip(before[op], can_join, strict=True)
            ),
            default=-1 if graph.op_types[op] in RESIDENT_TYPES else 0,  # weights are there before
        )
        for earlier, joins in zip(before[op], can_join, strict=True):
            if joins and level[earlier] == level[op]:
                together.union(op, earlier)
    kernels = [sorted(ops) for ops in together.to_sets()]
    kernels.sort(key=lambda ops: (level[ops[0]], ops[0]))
    kernel_of_op = np.empty(graph.num_ops, np.int64)
    for kernel, ops in enumerate(kernels):
        kernel_of_op[ops] = kernel
    return kernel_of_op


def _bytes_inside(graph: OpGraph, crosses: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return float64[V], bytes that ops access and their kernels do not.

    That is what they read of their own kernel; and what they write, if it is read there alone.
    """
    tensors = graph.edges[:, 0]
    num_bytes = graph.tensor_bytes[tensors].astype(np.float64)
    read = np.bincount(graph.edge_consumers[~crosses], num_bytes[~crosses], minlength=graph.num_ops)
    stays = np.zeros(graph.num_tensors, np.bool_)
    stays[tensors[~crosses]] = True
    stays[tensors[crosses]] = False
    stays[graph.held_tensors] = False
    written = np.bincount(
        graph.tensor_producer[stays],
        graph.tensor_bytes[stays].astype(np.float64),
        minlength=graph.num_ops,
    )
    # An op that reads a part of a tensor accesses fewer bytes than the tensor has.
    inside: NDArray[np.float64] = np.minimum(read + written, graph.bytes_accessed)
    return inside


def _common_scopes(
    scopes: Sequence[str], kernel_of_op: NDArray[np.int64], num_kernels: int
) -> tuple[str, ...]:
    """Return the longest path of modules that all ops of each kernel are in."""
    paths_of_kernel: list[list[list[str]]] = [[] for _ in range(num_kernels)]
    for scope, kernel in zip(scopes, kernel_of_op.tolist(), strict=True):
        paths_of_kernel[kernel].append(scope.split("."))
    # Of lists it compares whole names.
    return tuple(".".join(commonprefix(paths)) for paths in paths_of_kernel)  # noqa: RUF071


def _colocation(
    ids: NDArray[np.int32], kernel_of_op: NDArray[np.int64], num_kernels: int
) -> NDArray[np.int32]:
    """Return int32[K], ids of kernels: equal where ops of them had to share a device."""
    from networkx.utils import UnionFind  # noqa: PLC0415

    together = UnionFind(range(num_kernels))
    first_kernel: dict[int, int] = {}
    tied = np.flatnonzero(ids != FREE)
    for op in tied.tolist():
        kernel = int(kernel_of_op[op])
        together.union(first_kernel.setdefault(int(ids[op]), kernel), kernel)
    colocation = np.full(num_kernels, FREE, np.int32)
    for kernel in np.unique(kernel_of_op[tied]).tolist():
        colocation[kernel] = together[kernel]
    return colocation


def _first_rows(rows: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return different rows in the order in which they come first."""
    _, first = np.unique(rows, axis=0, return_index=True)
    ordered: NDArray[np.int32] = rows[np.sort(first)].astype(np.int32)
    return ordered
