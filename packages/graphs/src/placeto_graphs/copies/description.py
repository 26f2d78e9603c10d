"""What the graph of copies says of them: whose each op is, and what they share."""

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.copies.collectives import BUCKET, GATHER, PASSES_OF_COPY, SHARD
from placeto_graphs.copies.steps import BUCKET_BYTES, FIRST_BUCKET_BYTES
from placeto_graphs.schema.op_graph import OpGraph, Phase

_OP_OF_COPY = re.compile(r"(.*)#([0-9]+)(@[0-9]+)?", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Copies:
    """The k copies of a step of V ops, from `copied` or `sharded`.

    Attributes
    ----------
    copy_of_op : int64[V]
        Number of the copy of each op.
    parts : int[k]
        The part of the batch of each copy, in relation to those of the others.
    layers : texts
        The layers whose weights the copies divide; none where each copy has all weights.
    keeps_weights : bool
        Whether gathered weights stay until the backward pass.
    within_machines : bool
        Whether each of several machines has all weights, divided among its copies.
    bucket_bytes : int or None
        Bytes from which on a bucket of gradients is full; None for those of PyTorch, 25 MiB and
        1 MiB for the first one.
    """

    copy_of_op: NDArray[np.int64]
    parts: tuple[int, ...]
    layers: tuple[str, ...]
    keeps_weights: bool
    within_machines: bool
    bucket_bytes: int | None

    @property
    def count(self) -> int:
        """Number of the copies."""
        return len(self.parts)


def copies_of(graph: OpGraph) -> Copies | None:
    """Return what a graph says of its copies; None if it has none that sum gradients.

    Examples
    --------
    >>> import networkx as nx
    >>> import numpy as np
    >>> from placeto_graphs import PlacementProblem, copied, copies_of, from_networkx, parse_cluster
    >>> step = nx.DiGraph([("images", "layer"), ("layer", "gradient"), ("weights", "layer")])
    >>> step.add_node("weights", parameter_bytes=64)
    >>> step.add_node("gradient", phase=1)
    >>> step.add_node("update", phase=2)
    >>> step.add_edge("gradient", "update", bytes=64)
    >>> problem = PlacementProblem(
    ...     graph=from_networkx(step), cluster=parse_cluster("2xk80"), compute_time=np.ones((5, 2))
    ... )
    >>> copies_of(copied([problem, problem]).graph).parts
    (1, 1)
    """
    matches = [_OP_OF_COPY.fullmatch(name) for name in graph.op_names]
    if BUCKET not in graph.op_types or not all(matches):
        return None
    copy_of_op = np.array([int(match[2]) for match in matches if match])
    names = [match[1] + (match[3] or "") for match in matches if match]
    shards = {phase: f"{SHARD}/{phase}/" for phase in ("forward", "backward")}
    gathered = {
        phase: tuple(
            dict.fromkeys(name.removeprefix(start) for name in names if name.startswith(start))
        )
        for phase, start in shards.items()
    }
    between_machines = [name for name in names if name.endswith("/machines")]
    gathers = [name for name in between_machines if name.startswith(f"{GATHER}/forward/")]
    is_sharded = bool(gathered["forward"])
    return Copies(
        copy_of_op=copy_of_op,
        parts=_parts(graph, copy_of_op, names),
        layers=gathered["forward"],
        keeps_weights=is_sharded and not gathered["backward"],
        within_machines=is_sharded and bool(between_machines) and not gathers,
        bucket_bytes=None if is_sharded else _bucket_bytes(graph, copy_of_op),
    )


def _parts(graph: OpGraph, copy_of_op: NDArray[np.int64], names: list[str]) -> tuple[int, ...]:
    """Return the parts that the bytes of an input tell, the first whose copies differ."""
    count = int(copy_of_op.max()) + 1
    is_input = (graph.parameter_bytes == 0) & (graph.phases == Phase.FORWARD)
    is_input[graph.edge_consumers] = False
    sizes_of_input: dict[str, list[int]] = {}
    for op in np.flatnonzero(is_input).tolist():
        sizes = sizes_of_input.setdefault(names[op], [0] * count)
        sizes[copy_of_op[op]] += int(graph.tensor_bytes[graph.tensors_of_op[op]].sum())
    sizes = next((sizes for sizes in sizes_of_input.values() if len({*sizes}) > 1), [1] * count)
    divisor = math.gcd(*sizes)
    return tuple(size // divisor for size in sizes)


def _bucket_bytes(graph: OpGraph, copy_of_op: NDArray[np.int64]) -> int | None:
    """Return a size that makes the same buckets, if the usual sizes do not."""
    is_bucket = np.array([kind == BUCKET for kind in graph.op_types])
    buckets = np.flatnonzero(is_bucket & (copy_of_op == 0))
    sizes = graph.bytes_accessed[buckets].astype(np.int64) // PASSES_OF_COPY
    last = np.array(
        [graph.tensor_bytes[graph.inputs_of_op[op][-1:]].sum() for op in buckets.tolist()]
    )
    caps = np.where(np.arange(len(buckets)), BUCKET_BYTES, FIRST_BUCKET_BYTES)
    is_usual = (sizes - last < caps).all() and (sizes[:-1] >= caps[:-1]).all()
    return None if is_usual else int(sizes[:-1].min(initial=sizes.max()))
