"""Report of a problem: plain values in SI units."""

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_baselines import least_excess
from placeto_graphs import Cluster, Phase, PlacementProblem

Report = dict[str, Any]
NUM_LARGEST = 10


def inspect_problem(
    problem: PlacementProblem, scope_depth: int = 2, evaluator: EvaluatorSpec = STEP
) -> Report:
    """Return the report of a problem; ops are added up by the first parts of their scopes."""
    graph = problem.graph
    return {
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "edges": graph.num_edges,
        **_totals(problem, np.ones(graph.num_ops, np.bool_)),
        "phases": [
            {"phase": phase.name.lower(), **_totals(problem, np.asarray(graph.phases == phase))}
            for phase in Phase
        ],
        "scopes": _scopes(problem, scope_depth),
        "groups": _groups(problem),
        "devices": _devices(problem, evaluator),
        "links": _links(problem.cluster),
        "objective": evaluator.objective,
        "unit": evaluator.unit,
        "lower_bound": evaluator.lower_bound(problem),
        "least_excess": least_excess(problem) if evaluator.simulates else 0,
    }


def _totals(problem: PlacementProblem, chosen: NDArray[np.bool_]) -> Report:
    graph = problem.graph
    fastest = problem.compute_time.min(axis=1)
    return {
        "op_count": int(chosen.sum()),
        "flops": float(graph.flops[chosen].sum()),
        "bytes_accessed": float(graph.bytes_accessed[chosen].sum()),
        "parameter_bytes": int(graph.parameter_bytes[chosen].sum()),
        "output_bytes": int(graph.tensor_bytes[chosen[graph.tensor_producer]].sum()),
        "compute_time": float(fastest[chosen].sum()),
    }


def _scopes(problem: PlacementProblem, depth: int) -> list[Report]:
    ops_of: dict[str, list[int]] = defaultdict(list)
    for op, scope in enumerate(problem.graph.scopes):
        ops_of[".".join(scope.split(".")[:depth])].append(op)
    rows = []
    for scope, ops in ops_of.items():
        chosen = np.zeros(problem.graph.num_ops, np.bool_)
        chosen[ops] = True
        rows.append({"scope": scope, **_totals(problem, chosen)})
    return sorted(rows, key=lambda row: -row["compute_time"])


def _groups(problem: PlacementProblem) -> Report:
    groups = problem.group_graph
    seconds = groups.compute_time.min(axis=1)
    sizes = np.bincount(problem.grouping.group_of, minlength=problem.num_groups)
    largest = np.argsort(-seconds, kind="stable")[:NUM_LARGEST].tolist()
    return {
        "count": problem.num_groups,
        "edges": groups.num_edges,
        "edge_bytes": int(groups.edge_bytes.sum()),
        "levels": [level.num_groups for level in problem.levels],
        "largest": [
            {
                "group": problem.grouping.group_names[group],
                "ops": int(sizes[group]),
                "compute_time": float(seconds[group]),
                "output_bytes": int(groups.output_bytes[group]),
                "parameter_bytes": int(groups.parameter_bytes[group]),
            }
            for group in largest
        ],
    }


def _links(cluster: Cluster) -> list[Report]:
    """Return what each link carries, and how fast: the least and the most of its pairs."""
    names = cluster.device_names
    reports = []
    for name, pairs in zip(cluster.link_names, cluster.link_pairs, strict=True):
        bandwidth, latency = cluster.bandwidth[tuple(pairs.T)], cluster.latency[tuple(pairs.T)]
        reports.append(
            {
                "link": name,
                "pairs": len(pairs),
                "sources": [names[device] for device in np.unique(pairs[:, 0]).tolist()],
                "destinations": [names[device] for device in np.unique(pairs[:, 1]).tolist()],
                "bandwidth": [bandwidth.min(), bandwidth.max()],
                "latency": [float(latency.min()), float(latency.max())],
            }
        )
    return reports


def _devices(problem: PlacementProblem, evaluator: EvaluatorSpec) -> list[Report]:
    """Return what each device is, and what becomes of the whole step on it alone."""
    runs_all = np.isfinite(problem.group_graph.compute_time).all(axis=0)
    able = np.flatnonzero(runs_all).astype(np.int32)
    alone = np.repeat(able[:, None], problem.num_groups, axis=1)
    found = evaluator.make(problem, None).evaluate(alone)
    row_of = {device: row for row, device in enumerate(able.tolist())}
    reports = []
    for index, device in enumerate(problem.cluster.devices):
        row = row_of.get(index)
        peak = None if row is None else int(found.peak_memory[row, index])
        too_large = problem.group_graph.parameter_bytes > device.memory_bytes
        reports.append(
            {
                "device": device.name,
                "kind": device.kind,
                "memory_bytes": device.memory_bytes,
                "runtime": None if row is None else float(found.runtime[row]),
                "peak_memory": peak,
                "fits": peak is not None and peak <= device.memory_bytes,
                "too_large_groups": [
                    problem.grouping.group_names[group]
                    for group in np.flatnonzero(too_large).tolist()
                ],
            }
        )
    return reports
