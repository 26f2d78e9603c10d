"""Report of one simulated placement: plain values in SI units."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.costs import cost_of_result, fits
from placeto_graphs import OpGraph, PlacementProblem, sums_by_key
from placeto_simulator import PathStep, Timeline

Report = dict[str, Any]


def timeline_report(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    timeline: Timeline,
    num_longest: int = 10,
) -> Report:
    """Return the report of a simulated step, with the longest parts of its critical path."""
    peak = timeline.peak_memory
    path = timeline.critical_path
    return {
        "runtime": timeline.runtime,
        "inference": is_inference(problem.graph),
        "penalised_runtime": cost_of_result(problem, timeline),
        "fits": fits(problem, peak),
        "transfers": len(timeline.transfer_start),
        "transferred_bytes": int(problem.graph.tensor_bytes[timeline.transfer_tensor].sum()),
        "devices": [
            {
                "device": device.name,
                "groups": int((placement == index).sum()),
                "ops": int((timeline.op_device == index).sum()),
                "busy": float(timeline.device_busy[index]),
                "peak_memory": int(peak[index]),
                "memory_bytes": device.memory_bytes,
                "fits": bool(peak[index] <= device.memory_bytes),
            }
            for index, device in enumerate(problem.cluster.devices)
        ],
        "links": _link_reports(timeline),
        "critical_path": _path_report(timeline, path, num_longest),
    }


def is_inference(graph: OpGraph) -> bool:
    """Return True if a step has neither a backward pass nor updates."""
    return not graph.phases.any()


def speed_of_kind(
    problem: PlacementProblem, placement: NDArray[np.int32], runtime: float, measured: float
) -> dict[str, float]:
    """Return the speed of the only kind of device of a placement, from measured steps/s."""
    used = [problem.cluster.devices[device] for device in np.unique(placement)]
    if len(used) > 1:
        names = ", ".join(device.name for device in used)
        raise InputError(f"--measured: expected everything on one device, got {names}")
    (device,) = used
    if device.kind in problem.graph.measured_time:
        raise InputError(
            f"--measured: expected a kind whose times are modelled, got {device.kind}, whose ops "
            "were measured"
        )
    return {device.kind: measured * runtime}


def _link_reports(timeline: Timeline) -> list[Report]:
    names = timeline.problem.cluster.link_names
    sizes = timeline.problem.graph.tensor_bytes[timeline.transfer_tensor]
    sent = sums_by_key(timeline.transfer_link, sizes, len(names))
    transfers = np.bincount(timeline.transfer_link, minlength=len(names))
    return [
        {
            "link": name,
            "transfers": int(transfers[index]),
            "transferred_bytes": int(sent[index]),
            "busy": float(timeline.link_busy[index]),
        }
        for index, name in enumerate(names)
    ]


def _path_report(timeline: Timeline, path: Sequence[PathStep], num_longest: int) -> Report:
    ops, transfers = (
        [step.end - step.start for step in path if step.kind == kind] for kind in ("op", "transfer")
    )
    longest = sorted(path, key=lambda step: step.start - step.end)[:num_longest]
    return {
        "ops": len(ops),
        "transfers": len(transfers),
        "op_seconds": sum(ops),
        "transfer_seconds": sum(transfers),
        "waiting_seconds": max(0.0, timeline.runtime - sum(ops) - sum(transfers)),
        "longest": [_path_step(timeline, step) for step in longest],
    }


def _path_step(timeline: Timeline, step: PathStep) -> Report:
    graph, names = timeline.problem.graph, timeline.problem.cluster.device_names
    if step.kind == "op":
        name, where = graph.op_names[step.index], names[timeline.op_device[step.index]]
    else:
        name = timeline.transfer_name(step.index)
        where = timeline.problem.cluster.link_names[timeline.transfer_link[step.index]]
    return {
        "kind": step.kind,
        "name": name,
        "where": where,
        "start": step.start,
        "seconds": step.end - step.start,
    }
