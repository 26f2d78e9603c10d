"""Kernels of several ops: which ops they are of, and what they read, write and keep."""

from typing import Any

import networkx as nx
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from placeto_capture import capture, cost_model, fused
from placeto_graphs import DEVICE_KINDS, OpGraph, TokenCache, from_networkx

TYPES = ("aten.mul", "aten.sum", "aten.copy_", "aten._softmax", "aten.mm", "own.kernel", "buffer")
FUSIBLE = TYPES[:4]
LAYERS = ("layers.0", "layers.0.mlp", "layers.1", "head", "")


@st.composite
def steps(draw: st.DrawFn) -> nx.DiGraph:
    """Draw a graph in which the FLOPs of an op are a power of 2 of its own."""
    count = draw(st.integers(1, 9))
    ops = nx.DiGraph()
    for op in range(count):
        ops.add_node(
            op,
            op_type=draw(st.sampled_from(TYPES)),
            scope=draw(st.sampled_from(LAYERS)),
            flops=2.0**op,
            bytes_accessed=float(draw(st.integers(0, 100))),
            waits_for=draw(st.lists(st.integers(0, op - 1), unique=True, max_size=1)) if op else [],
        )
        for earlier in (
            draw(st.lists(st.integers(0, op - 1), unique=True, max_size=3)) if op else []
        ):
            ops.add_edge(earlier, op, bytes=8)
    return ops


def layer_of(scope: str) -> str:
    return scope[:8] if scope.startswith("layers") else ""


@given(steps())
def test_ops_share_a_kernel_if_no_product_or_other_layer_is_between_them(ops: nx.DiGraph) -> None:
    """Their depth, the most borders on a way to them, is the same, and they are connected.

    What is there when the step begins comes before the first border.
    """
    order = nx.DiGraph(ops.edges)
    order.add_nodes_from(ops)
    order.add_edges_from((earlier, op) for op, waits in ops.nodes("waits_for") for earlier in waits)

    def joins(earlier: int, later: int) -> bool:
        first, second = ops.nodes[earlier], ops.nodes[later]
        are_fusible = first["op_type"] in FUSIBLE and second["op_type"] in FUSIBLE
        return are_fusible and layer_of(first["scope"]) == layer_of(second["scope"])

    depth = {}
    for op in ops:
        ways = nx.DiGraph()
        for first in ops:
            is_resident = ops.nodes[first]["op_type"] == "buffer" and not order.pred[first]
            ways.add_edge("start", first, borders=-1 if is_resident else 0)
        before = order.subgraph({op} | nx.ancestors(order, op))
        ways.add_edges_from(
            (earlier, later, {"borders": 0 if joins(earlier, later) else 1})
            for earlier, later in before.edges
        )
        of_way = {
            node: -path
            for node, path in nx.single_source_bellman_ford_path_length(
                ways, "start", weight=lambda _first, _last, way: -way["borders"]
            ).items()
        }
        depth[op] = of_way[op]
    same = nx.Graph()
    same.add_nodes_from(ops)
    same.add_edges_from(
        edge for edge in order.edges if joins(*edge) and depth[edge[0]] == depth[edge[1]]
    )
    kernels = {sum(2.0**op for op in kernel) for kernel in nx.connected_components(same)}
    graph = fused(from_networkx(ops))
    assert {*graph.flops.tolist()} == kernels
    # Each kernel comes after those that it reads.
    assert (graph.precedences[:, 0] < graph.precedences[:, 1]).all()


class Gated(nn.Module):
    """Two products, the second of which reads what several ops made of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 16, bias=False)])
        self.head = nn.Linear(8, 2, bias=False)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        gate, value = self.layers[0](features).chunk(2, dim=1)
        gated = nn.functional.silu(gate) * value
        return self.head(torch.tanh(gated)), gated


def test_a_kernel_accesses_what_enters_and_leaves_it() -> None:
    """silu, mul and tanh of 3 x 8 numbers: the first two read 16, and one result is an output."""
    whole = capture(Gated(), torch.ones(3, 4), mode="inference")
    graph = fused(whole)
    (kernel,) = (op for op, kind in enumerate(graph.op_types) if kind in ("aten.mul", "aten.tanh"))
    numbers = 3 * 8 * 4  # bytes
    assert "aten.silu" not in graph.op_types
    assert graph.num_ops == whole.num_ops - 2
    assert graph.flops[kernel] == 3 * 24
    assert graph.bytes_accessed[kernel] == 2 * numbers + 2 * numbers
    assert graph.tensor_bytes[graph.tensors_of_op[kernel]].tolist() == [numbers, numbers]
    products = [op for op, kind in enumerate(graph.op_types) if kind == "aten.mm"]
    assert graph.bytes_accessed[products].tolist() == [
        4 * (3 * 4 + 16 * 4 + 3 * 16),
        4 * (3 * 8 + 8 * 2 + 3 * 2),
    ]
    assert graph.parameter_bytes.sum() == whole.parameter_bytes.sum()


def test_a_kernel_has_the_place_scope_and_memory_of_its_ops() -> None:
    ops = nx.DiGraph()
    plain: dict[str, Any] = {"op_type": "aten.mul", "bytes_accessed": 8.0}
    ops.add_node("cache", op_type="buffer", colocation=3, parameter_bytes=64)
    ops.add_node("norm", scope="h.3.norm", **plain | {"op_type": "aten.mean", "colocation": 5})
    ops.add_node("scale", scope="h.3.norm", workspace_bytes=7, **plain | {"colocation": 3})
    ops.add_node("add", scope="h.3", **plain | {"bytes_accessed": 90.0, "colocation": 9})
    ops.add_node("next", scope="h.4", **plain | {"colocation": 5})
    ops.add_edge("norm", "scale", bytes=4)
    ops.add_edge("scale", "add", bytes=4)
    ops.add_edge("add", "next", bytes=4)
    ops.add_edge("cache", "scale", bytes=64)
    ops.graph.update(tokens=1, cache=TokenCache(context=8, sequences=1))
    graph = fused(from_networkx(ops))
    assert graph.op_names == ("cache", "add", "next")
    assert graph.scopes == ("", "h.3", "h.4")
    assert graph.workspace_bytes.tolist() == [0, 7, 0]
    assert len(np.unique(graph.colocation)) == 1
    assert (graph.tokens, graph.cache) == (1, TokenCache(context=8, sequences=1))
    # mean reads nothing of others, so that what is left is the 64 bytes of the cache and its own.
    assert graph.num_edges == 2


def test_a_kernel_is_launched_once() -> None:
    def seconds(graph: OpGraph) -> float:
        return float(cost_model(graph, "rtx3090").sum())

    model = nn.Sequential(nn.Sequential(*(nn.Tanh() for _ in range(50))))
    graph = capture(model, torch.ones(4), mode="inference")
    assert len(fused(graph).op_names) == 2
    assert seconds(graph) > 49 * seconds(fused(graph))
    assert seconds(fused(graph)) > DEVICE_KINDS["rtx3090"].launch_overhead
