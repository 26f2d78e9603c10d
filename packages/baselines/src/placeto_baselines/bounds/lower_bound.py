"""A lower bound of the runtime: begin to read here."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.bounds.memory import HeldTensors
from placeto_baselines.bounds.work import Paths, WorkProgramme, longest_paths, work_programme
from placeto_baselines.errors import BaselineError
from placeto_graphs import SECONDS_PER_BYTE, PlacementProblem

MOST_OPS_OF_FORK_JOIN = 20_000  # its time grows with the square of the ops
ROUNDING = 1e-9  # in parts of the bound: more than sums of a million float64 can be off


def lower_bound(problem: PlacementProblem, *, scale: float = SECONDS_PER_BYTE) -> float:
    """Return seconds that no placement beats, as the simulated step of the design counts them.

    It bounds the memory-penalised runtime, which is the runtime of a placement that fits the
    memory. The bare runtime of a placement that does not fit may be lower. A scale of 0 bounds
    that, and also the runtime without contention of links. The bound is the largest of

    - the longest path of ops, each on the device of its group where that path is shortest,
      transfers between groups, waits and overheads included (`longest_paths`);
    - the work of all groups over the devices, as a linear programme over devices of different
      speed and memory, with the paths through each group (`WorkProgramme`);
    - the fork-join bound (`fork_join_bound`): parallel ops between two dependent ones, for which
      there are too few devices, with transfers there and back; and energetic reasoning in windows
      of time. It takes seconds, and is left out of graphs of more than 20,000 ops;
    - for each connected part of the graph, the lesser of two costs (`split_bound`): its work on one
      device with the penalty of the memory that it lacks, and the shortest path with a transfer in
      it.

    Where nothing fits, the penalty of `least_excess` is in each of them. Each is proven where it is
    computed, and lowered by a billionth against rounding.

    Parameters
    ----------
    problem
        Problem to place.
    scale
        Seconds that each byte over the memory of a device costs.

    Raises
    ------
    BaselineError
        When the scale is not a number >= 0.

    Examples
    --------
    >>> lower_bound(problem) <= exhaustive_search(problem, evaluator).runtime
    True
    >>> round(lower_bound(problem), 6)
    1.0
    """
    return max(bound_parts(problem, scale=scale).values())


def bound_parts(problem: PlacementProblem, *, scale: float = SECONDS_PER_BYTE) -> dict[str, float]:
    """Return the bounds of which `lower_bound` is the largest: path, work, split and fork-join.

    Parameters
    ----------
    problem
        Problem to place.
    scale
        Seconds that each byte over the memory of a device costs.

    Raises
    ------
    BaselineError
        If the scale is not a number >= 0.

    Examples
    --------
    >>> parts = bound_parts(problem)
    >>> sorted(parts), max(parts.values()) == lower_bound(problem)
    (['fork-join', 'path', 'split', 'work'], True)
    """
    return dict(bounds_in_turn(problem, scale=scale))


def bounds_in_turn(
    problem: PlacementProblem, *, scale: float = SECONDS_PER_BYTE
) -> Iterator[tuple[str, float]]:
    """Yield the bounds of `bound_parts`, each when it is known; fork-join, the slowest, is last.

    Parameters
    ----------
    problem
        Problem to place.
    scale
        Seconds that each byte over the memory of a device costs.

    Raises
    ------
    BaselineError
        If the scale is not a number >= 0.

    Examples
    --------
    >>> [name for name, _ in bounds_in_turn(problem)]
    ['path', 'work', 'split', 'fork-join']
    """
    if not 0 <= scale < float("inf"):
        raise BaselineError(f"scale: expected a number >= 0, got {scale}")

    def lowered(name: str, bound: float) -> tuple[str, float]:
        return name, max(0.0, bound) * (1 - ROUNDING)

    paths = longest_paths(problem)
    programme = work_programme(problem, paths, scale)
    penalty = scale * programme.memory_needs.least_excess
    yield lowered("path", float(programme.path.min(axis=1).max()) + penalty)
    yield lowered("work", programme.solve())
    yield lowered("split", split_bound(problem, paths, programme))
    if problem.graph.num_ops <= MOST_OPS_OF_FORK_JOIN:
        # Numba takes half a second to import.
        from placeto_baselines.bounds.fork_join import fork_join_bound  # noqa: PLC0415

        yield lowered("fork-join", fork_join_bound(problem, paths) + penalty)
    else:
        yield "fork-join", 0.0


def split_bound(problem: PlacementProblem, paths: Paths, programme: WorkProgramme) -> float:
    """Return a lower bound on the memory-penalised runtime from the connected parts of the graph.

    Proof. Take a connected part of the graph of groups, where tensors connect, and waits do not.
    Either all of it runs on one device. That device then does all its work and holds all its bytes,
    so that the penalty of its memory is due. Or two of its groups that share a tensor are on
    different devices, and that tensor is transferred. The step then lasts no less than the path to
    its producer, the transfer, and the path from its reader. The lesser of the two bounds every
    placement; the greatest over all parts counts. Either way the penalty of the least excess of all
    placements is due.
    """
    # scipy takes half a second to import.
    from scipy.sparse import csr_array  # noqa: PLC0415
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    groups = problem.group_graph
    joined = csr_array(
        (np.ones(groups.num_edges), (groups.edges[:, 0], groups.edges[:, 1])),
        shape=(groups.num_groups, groups.num_groups),
    )
    num_parts, part_of = connected_components(joined, directed=False)
    together = _on_one_device(problem, programme, part_of).min(axis=1)
    apart = _least_transfers(problem, paths, part_of, num_parts)
    apart += programme.scale * programme.memory_needs.least_excess
    return float(np.minimum(together, apart).max())


def _on_one_device(
    problem: PlacementProblem, programme: WorkProgramme, part_of: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return float64[P, D], what each part costs on each device alone."""
    graph, programme_of_parts = problem.graph, programme.of_sets(part_of)
    part_needs, running = programme_of_parts.memory_needs, programme_of_parts.memory_needs.running
    if part_needs.held_tensors is not None:
        part_of_op = part_of[problem.grouping.group_of]
        running_part = part_of_op[part_needs.held_tensors.op]
        of_part = part_needs.held_tensors.tensors & (
            part_of_op[graph.tensor_producer] == running_part
        )
        held_bytes = HeldTensors(part_needs.held_tensors.op, of_part).num_bytes(graph)
        running[running_part] = np.maximum(running[running_part], held_bytes)
    least_excess = programme.memory_needs.least_excess
    excess = np.maximum(part_needs.resident[:, None] + running - part_needs.memory, least_excess)
    costs: NDArray[np.float64] = np.maximum(
        programme_of_parts.work - programme_of_parts.overhead, programme_of_parts.path
    )
    costs += programme.scale * excess
    return costs


def _least_transfers(
    problem: PlacementProblem, paths: Paths, part_of: NDArray[np.int32], num_parts: int
) -> NDArray[np.float64]:
    """Return float64[P], the shortest path of each part with a transfer between groups in it."""
    graph, cluster = problem.graph, problem.cluster
    group_of = problem.grouping.group_of
    shortest_in_part = np.full(num_parts, np.inf)
    maker, reader = graph.edge_producers, graph.edge_consumers
    size, remaining = graph.tensor_bytes[graph.edges[:, 0]], paths.seconds + paths.tail
    shortest = np.full(graph.num_edges, np.inf)
    for source, target in paths.pairs.tolist():
        transfer = cluster.latency[source, target] + size / cluster.bandwidth[source, target]
        length = paths.end[maker, source] + transfer + remaining[reader, target]
        shortest = np.minimum(shortest, length)
    sent = group_of[maker] != group_of[reader]
    np.minimum.at(shortest_in_part, part_of[group_of[reader[sent]]], shortest[sent])
    return shortest_in_part
