"""A timeline in the Trace Event format (Google, "Trace Event Format", 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeto_graphs.timeline.step_timeline import StepTimeline

MICROSECONDS = 1e6
PROCESS = 1


def chrome_trace(timeline: StepTimeline) -> dict[str, Any]:
    """Return the JSON object of a trace; times are in microseconds, as the format wants them."""
    graph, cluster = timeline.problem.graph, timeline.problem.cluster
    events: list[dict[str, Any]] = []
    for device, name in enumerate(cluster.device_names):
        events += _track(1 + device, name)
        for time, held in zip(*timeline.memory(device), strict=True):
            events.append(_counter(f"{name} memory", float(time), int(held)))
    first_link_track = 1 + cluster.num_devices
    for link, name in enumerate(cluster.link_names):
        events += _track(first_link_track + link, name)
    for op, name in enumerate(graph.op_names):
        track = 1 + int(timeline.op_device[op])
        times = float(timeline.op_start[op]), float(timeline.op_end[op])
        details: dict[str, Any] = {"type": graph.op_types[op], "scope": graph.scopes[op]}
        events.append(_slice(name, "op", track, times, details))
    for transfer, tensor in enumerate(timeline.transfer_tensor.tolist()):
        track = first_link_track + int(timeline.transfer_link[transfer])
        times = float(timeline.transfer_start[transfer]), float(timeline.transfer_end[transfer])
        details = {"bytes": int(graph.tensor_bytes[tensor])}
        events.append(_slice(timeline.transfer_name(transfer), "transfer", track, times, details))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _track(track: int, name: str) -> list[dict[str, Any]]:
    common = {"ph": "M", "pid": PROCESS, "tid": track, "ts": 0}
    return [
        {"name": "thread_name", "args": {"name": name}, **common},
        {"name": "thread_sort_index", "args": {"sort_index": track}, **common},
    ]


def _counter(name: str, time: float, held: int) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "C",
        "pid": PROCESS,
        "tid": 0,
        "ts": time * MICROSECONDS,
        "args": {"bytes": held},
    }


def _slice(
    name: str, category: str, track: int, times: tuple[float, float], details: dict[str, Any]
) -> dict[str, Any]:
    start, end = times[0] * MICROSECONDS, times[1] * MICROSECONDS
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": PROCESS,
        "tid": track,
        "ts": start,
        "dur": end - start,
        "args": details,
    }
