"""Reports of a problem and of a simulated step: plain values in SI units."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.cost_texts import MOST_SHOWN
from placeto.placing.costs import DOES_NOT_FIT, cost_of_result, fits, verdict_of_memory
from placeto.placing.evaluators import EvaluatorSpec
from placeto.problems.making import METAL, backends, is_served
from placeto.texts import bytes_text, counted, seconds_text, share_text
from placeto_baselines import least_excess
from placeto_graphs import Cluster, OpGraph, Phase, PlacementProblem, sums_by_key
from placeto_simulator import PathStep, Timeline

Report = dict[str, Any]
NUM_LARGEST = 10
MOST_OF_A_STEP = 0.5  # from which on a link may be called the bottleneck
# How far simulated tokens per second are from published ones, by devices and bits of a weight
# (lab/decode.py, docs/fidelity.md): the least and the largest difference, in percent.
PUBLISHED_RATES: Mapping[tuple[str, int], tuple[int, int]] = {
    ("GPUs", 4): (-19, 42),
    ("GPUs", 16): (-14, 21),
    ("Macs", 4): (-8, 47),
    ("Macs", 16): (-9, 64),
    ("CPUs", 4): (2, 61),
    ("CPUs and GPUs", 4): (41, 66),
}
EXPERTS = "aten._grouped_mm"
PRODUCTS_OF_WEIGHTS = ("aten.mm", "aten.addmm")
NAME_OF_BACKEND = {"cuda": "GPUs", METAL: "Macs"}


def timeline_report(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    timeline: Timeline,
    num_longest: int,
) -> Report:
    """Return the report of a simulated step, with the longest parts of its critical path."""
    peak, path = timeline.peak_memory, timeline.critical_path
    sizes = problem.graph.tensor_bytes[timeline.transfer_tensor]
    links = problem.cluster.link_names
    transfers = np.bincount(timeline.transfer_link, minlength=len(links))
    sent = sums_by_key(timeline.transfer_link, sizes, len(links))
    op_seconds, transfer_seconds = (
        [step.end - step.start for step in path if step.kind == kind] for kind in ("op", "transfer")
    )
    busy = sum(op_seconds), sum(transfer_seconds)
    longest = sorted(path, key=lambda step: step.start - step.end)[:num_longest]
    return {
        "runtime": timeline.runtime,
        "inference": not problem.graph.phases.any(),
        "tokens": problem.graph.tokens,
        "penalised_runtime": cost_of_result(problem, timeline),
        "fits": fits(problem, peak),
        "transfers": len(timeline.transfer_start),
        "transferred_bytes": int(sizes.sum()),
        "devices": [
            {
                "device": device.name,
                "groups": int((placement == index).sum()),
                "ops": int((timeline.op_device == index).sum()),
                "busy": float(timeline.device_busy[index]),
                "peak_memory": int(peak[index]),
                "memory_bytes": device.memory_bytes,
                "fits": bool(peak[index] <= device.memory_bytes),
                "verdict": verdict_of_memory(device, peak[index]),
            }
            for index, device in enumerate(problem.cluster.devices)
        ],
        "links": [
            {
                "link": name,
                "transfers": int(transfers[index]),
                "transferred_bytes": int(sent[index]),
                "busy": float(timeline.link_busy[index]),
            }
            for index, name in enumerate(links)
        ],
        "busy_receivers": busy_receivers(timeline),
        "critical_path": {
            "ops": len(op_seconds),
            "transfers": len(transfer_seconds),
            "op_seconds": busy[0],
            "transfer_seconds": busy[1],
            "waiting_seconds": max(0.0, timeline.runtime - busy[0] - busy[1]),
            "longest": [_path_step(timeline, step) for step in longest],
        },
    }


def busy_receivers(timeline: Timeline) -> list[str]:
    """Name devices that get, over several links, more than their fastest takes in half a step."""
    problem, ends = timeline.problem, (timeline.transfer_destination, timeline.transfer_link)
    sizes = problem.graph.tensor_bytes[timeline.transfer_tensor]
    received = sums_by_key(ends[0], sizes, problem.num_devices)
    links = np.bincount(np.unique(np.stack(ends), axis=1)[0], minlength=problem.num_devices)
    fastest = np.where(problem.cluster.link < 0, 0.0, problem.cluster.bandwidth).max(axis=0)
    seconds = received / np.maximum(fastest, 1e-300)
    return [
        f"{device.name} receives {bytes_text(received[d])} over {links[d]} links, for which one "
        f"takes {seconds_text(seconds[d])}: what a device receives is not limited"
        for d, device in enumerate(problem.cluster.devices)
        if links[d] > 1 and seconds[d] > timeline.runtime / 2
    ]


def bottleneck_text(timeline: Timeline) -> str:
    """Name a link that is busy for most of the step, and longer than any device; else nothing."""
    cluster, busy = timeline.problem.cluster, timeline.link_busy
    if busy.max(initial=0.0) <= max(MOST_OF_A_STEP, timeline.device_busy.max()):
        return ""
    link = int(busy.argmax())
    used = np.unique(timeline.transfer_destination[timeline.transfer_link == link]).tolist()
    targets = ", ".join(cluster.device_names[device] for device in used)
    targets = targets if len(used) <= MOST_SHOWN else counted(len(used), "device")
    return (
        f"the link {cluster.link_names[link]} to {targets} is the bottleneck: busy "
        f"{share_text(busy[link])} of the step, and no device more than "
        f"{share_text(timeline.device_busy.max())}"
    )


def _path_step(timeline: Timeline, step: PathStep) -> Report:
    graph, cluster = timeline.problem.graph, timeline.problem.cluster
    if step.kind == "op":
        name = graph.op_names[step.index]
        where = cluster.device_names[timeline.op_device[step.index]]
    else:
        name = timeline.transfer_name(step.index)
        where = cluster.link_names[timeline.transfer_link[step.index]]
    seconds = step.end - step.start
    named = {"kind": step.kind, "name": name, "where": where}
    return {**named, "start": step.start, "seconds": seconds}


def precision_text(graph: OpGraph) -> str:
    """Return the precision of most FLOPs, and their share; nothing if it is not known."""
    flops = Counter[str]()
    for dtype, count in zip(graph.dtype, graph.flops.tolist(), strict=True):
        flops[dtype] += count
    main_dtype = max(flops, key=lambda dtype: flops[dtype])
    is_known = main_dtype and flops[main_dtype]
    return (
        f"{share_text(flops[main_dtype] / flops.total())} of FLOPs in {main_dtype}"
        if is_known
        else ""
    )


def rate_text(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    seconds: float,
    *,
    is_doubtful: bool = False,
) -> str:
    """Return the steps or tokens per second of a step of inference, in brackets.

    Tokens have the difference from published rates of such devices and weights, unless there are
    none, or a warning makes the costs doubtful.
    """
    graph = problem.graph
    if graph.phases.any() or not seconds:
        return ""
    rate = f"{(graph.tokens or 1) / seconds:,.4g}"
    if not graph.tokens:
        return f" ({rate} steps/s)"
    differences = None if is_doubtful else _published_differences(problem, placement)
    if differences is None:
        return f" ({rate} tokens/s)"
    least, most = differences
    return f" ({rate} tokens/s; {least:+d} to {most:+d} % from published rates)"


def _published_differences(
    problem: PlacementProblem, placement: NDArray[np.int32]
) -> tuple[int, int] | None:
    """Return how far rates of one sequence are off, in percent; None if none are published.

    That is so for devices that a user describes, for ops that a host issues one by one, and for
    mixtures of experts.
    """
    graph, cluster = problem.graph, problem.cluster
    op_devices = problem.expand(placement)
    is_busy = problem.compute_time[np.arange(graph.num_ops), op_devices] > 0
    busy_devices = np.unique(op_devices[is_busy]).tolist()
    devices, backend_of = [cluster.devices[device] for device in busy_devices], backends(cluster)
    described = {kind.name for kind in cluster.kinds} | graph.measured_time.keys()
    names = {
        "CPUs" if device.is_cpu else NAME_OF_BACKEND.get(backend_of[index], "")
        for index, device in zip(busy_devices, devices, strict=True)
    }
    if graph.tokens != 1 or described & {device.kind for device in devices} or "" in names:
        return None
    if EXPERTS in graph.op_types or not is_served(graph):
        return None
    bits = _bits_of_weights(graph)
    return PUBLISHED_RATES.get(
        (" and ".join(sorted(names)), min((4, 8, 16), key=lambda count: abs(bits - count)))
    )


def _bits_of_weights(graph: OpGraph) -> float:
    """Return about how many bits a weight has, by what products read for one token."""
    is_product = np.isin(graph.op_types, PRODUCTS_OF_WEIGHTS)
    weights = graph.flops[is_product].sum() / 2
    return float(8 * graph.bytes_accessed[is_product].sum() / weights) if weights else 0.0


def speed_of_kind(
    problem: PlacementProblem, placement: NDArray[np.int32], runtime: float, measured: float
) -> dict[str, float]:
    """Return the speed of the only kind of device of a placement, from measured steps/s."""
    used = [problem.cluster.devices[device] for device in np.unique(placement)]
    if len(used) > 1:
        names = ", ".join(device.name for device in used)
        raise InputError(f"--measured: expected everything on one device, got {names}")
    (device,) = used
    speed = {kind.name: kind.speed for kind in problem.cluster.kinds}.get(device.kind, 1.0)
    if device.kind in problem.graph.measured_time:
        raise InputError(
            f"--measured: expected a kind whose times are modelled, got {device.kind}, whose ops "
            "were measured"
        )
    return {device.kind: speed * measured * runtime}


def inspect_problem(
    problem: PlacementProblem,
    searched: PlacementProblem,
    scope_depth: int,
    evaluator: EvaluatorSpec,
) -> Report:
    """Return the report of a problem; ops are added up by the first parts of their scopes.

    The bounds are those of the problem at the level that is ``searched``.
    """
    graph, groups = problem.graph, problem.group_graph
    ops_of: dict[str, list[int]] = defaultdict(list)
    for op, scope in enumerate(graph.scopes):
        ops_of[".".join(scope.split(".")[:scope_depth])].append(op)
    scopes = [{"scope": scope, **_totals(problem, ops)} for scope, ops in ops_of.items()]
    seconds = groups.compute_time.min(axis=1)
    sizes = np.bincount(problem.grouping.group_of, minlength=problem.num_groups)
    return {
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "edges": graph.num_edges,
        **_totals(problem, range(graph.num_ops)),
        "phases": [
            {"phase": phase.name.lower(), **_totals(problem, np.flatnonzero(graph.phases == phase))}
            for phase in Phase
        ],
        "scopes": sorted(scopes, key=lambda row: -row["compute_time"]),
        "groups": {
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
                for group in np.argsort(-seconds, kind="stable")[:NUM_LARGEST].tolist()
            ],
        },
        "devices": _devices(problem, evaluator),
        "links": _links(problem.cluster),
        "objective": evaluator.objective,
        "unit": evaluator.unit,
        "lower_bound": evaluator.lower_bound(searched),
        "least_excess": least_excess(searched) if evaluator.simulates else 0,
        "searched_groups": searched.num_groups,
    }


def _totals(problem: PlacementProblem, ops: Sequence[int] | NDArray[np.intp]) -> Report:
    graph = problem.graph
    chosen = np.zeros(graph.num_ops, np.bool_)
    chosen[ops] = True
    return {
        "op_count": int(chosen.sum()),
        "flops": float(graph.flops[chosen].sum()),
        "bytes_accessed": float(graph.bytes_accessed[chosen].sum()),
        "parameter_bytes": int(graph.parameter_bytes[chosen].sum()),
        "output_bytes": int(graph.tensor_bytes[chosen[graph.tensor_producer]].sum()),
        "compute_time": float(problem.compute_time.min(axis=1)[chosen].sum()),
    }


def _links(cluster: Cluster) -> list[Report]:
    """Return what each link carries, and how fast: the least and the most of its pairs."""
    names = cluster.device_names
    overheads = np.array([device.transfer_overhead for device in cluster.devices])
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
                "overhead": [overheads[pairs[:, 0]].min(), overheads[pairs[:, 0]].max()],
            }
        )
    return reports


def _devices(problem: PlacementProblem, evaluator: EvaluatorSpec) -> list[Report]:
    """Return what each device is, and what becomes of the whole step on it alone."""
    able = np.flatnonzero(np.isfinite(problem.group_graph.compute_time).all(axis=0))
    alone = np.repeat(able[:, None].astype(np.int32), problem.num_groups, axis=1)
    batch = evaluator.make(problem, None).evaluate(alone)
    peaks = batch.peak_memory[np.arange(len(able)), able]
    rows = zip(able.tolist(), batch.runtime.tolist(), peaks.tolist(), strict=True)
    costs_of_device = {device: (runtime, peak) for device, runtime, peak in rows}
    reports = []
    for index, device in enumerate(problem.cluster.devices):
        runtime, peak = costs_of_device.get(index, (None, None))
        too_large = problem.group_graph.parameter_bytes > device.memory_bytes
        reports.append(
            {
                "device": device.name,
                "kind": device.kind,
                "memory_bytes": device.memory_bytes,
                "runtime": runtime,
                "peak_memory": peak,
                "fits": peak is not None and peak <= device.memory_bytes,
                "verdict": DOES_NOT_FIT if peak is None else verdict_of_memory(device, peak),
                "too_large_groups": [
                    problem.grouping.group_names[group]
                    for group in np.flatnonzero(too_large).tolist()
                ],
            }
        )
    return reports
