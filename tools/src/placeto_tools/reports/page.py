"""A page of a report, which fetches nothing: a problem at each level, the step of each placer."""

import html
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto.outputs import json_text
from placeto.placing.costs import cost_of_result, fits
from placeto_baselines import bound_parts
from placeto_graphs import Phase, PlacementProblem
from placeto_simulator import Simulator, Timeline
from placeto_tools import __version__
from placeto_tools.plots import COLOURS, colour, layered_positions

Report = dict[str, Any]
MOST_GROUPS = 4_096  # of a level that is drawn, unless there is no other
NAMED = 6  # op types or scopes of a group; the others are counted
CHUNKS = 1_000  # of a curve of memory that has more points than can be seen
COLOURS_OF_CURVES = tuple(hue for hue in COLOURS if hue != "#000000")  # seen on a dark page, too
DIGITS = 7  # of the runtime: what is below cannot be seen, and makes the file larger


@dataclass(frozen=True, eq=False)
class ReportedPlacement:
    """A placement in a report."""

    title: str
    problem: PlacementProblem  # at the level of the placement
    placement: NDArray[np.int32]  # [G], the device of each group
    # Of a search: rows of evaluations and the best runtime so far, and what it took in all.
    curve: Sequence[Sequence[float | None]] = field(default=())
    evaluations: int | None = None
    seconds: float | None = None


def report_page(title: str, problems: list[Report]) -> str:
    """Return the page of what `problem_report` returned for each problem."""
    from bokeh.resources import Resources  # noqa: PLC0415 (it takes a while)

    library = Resources(mode="inline", components=["bokeh", "bokeh-api"], log_level="error")
    made_by = f"placeto {__version__}: {shlex.join(['placeto', *sys.argv[1:]])}"
    replacements = {
        "TITLE": html.escape(title),
        "STYLE": _page_file("report.css"),
        "LIBRARY": library.render_js(),
        "DATA": embedded_json({"problems": problems, "made_by": made_by}),
        "GLUE": _page_file("report.js"),
    }
    pieces = _page_file("report.html").split("%%")  # in turn text, and the name of a replacement
    pieces[1::2] = [replacements[name] for name in pieces[1::2]]
    return "".join(pieces)


def embedded_json(value: Any) -> str:
    """Return JSON that a script element may hold: nothing in it ends the element or opens one."""
    text = json_text(value, indent=-1)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _page_file(name: str) -> str:
    return resources.files("placeto_tools.reports").joinpath(name).read_text("utf-8")


def problem_report(
    title: str, problem: PlacementProblem, placements: Sequence[ReportedPlacement]
) -> Report:
    """Return the report of one problem for a page: plain values in SI units.

    Its bounds are those of the finest groups of a placement that it shows.
    """
    levels = drawn_levels(problem)
    coarser_levels: list[PlacementProblem | None] = [None, *levels[:-1]]
    simulators: dict[int, Simulator] = {}  # by the id of the problem, which most placements share
    for placement in placements:
        if id(placement.problem) not in simulators:
            simulators[id(placement.problem)] = Simulator(placement.problem, num_threads=1)
    graph, cluster = problem.graph, problem.cluster
    groupings = [placement.problem.grouping for placement in placements]
    finest = max(groupings, key=lambda grouping: grouping.num_groups)
    return {
        "title": title,
        "bounds": bound_parts(replace(problem, grouping=finest, hierarchy=None)),
        "bounded_groups": finest.num_groups,
        "devices": [
            {"name": device.name, "memory_bytes": device.memory_bytes, "colour": colour(index)}
            for index, device in enumerate(cluster.devices)
        ],
        "links": list(cluster.link_names),
        "kinds": [*(phase.name.lower() for phase in Phase), "transfer"],
        "kind_colours": [colour(index) for index in range(len(Phase) + 1)],
        "curve_colours": list(COLOURS_OF_CURVES),
        "op_names": list(graph.op_names),
        "op_types": list(graph.op_types),
        "op_phases": graph.phases,
        "tensor_producers": graph.tensor_producer,
        "tensor_bytes": graph.tensor_bytes,
        "levels": [level_report(*pair) for pair in zip(levels, coarser_levels, strict=True)],
        "placers": [
            _placer_report(placement, levels, simulators[id(placement.problem)])
            for placement in placements
        ],
    }


def _placer_report(
    reported: ReportedPlacement, levels: list[PlacementProblem], simulator: Simulator
) -> Report:
    timeline = simulator.timeline(reported.placement)
    return {
        "title": reported.title,
        "runtime": timeline.runtime,
        "cost": cost_of_result(reported.problem, timeline),
        "fits": fits(reported.problem, timeline.peak_memory),
        "peak_memory": timeline.peak_memory,
        "busy": timeline.device_busy * timeline.runtime,
        "waiting": (1 - timeline.device_busy) * timeline.runtime,
        "sending": timeline.device_sending * timeline.runtime,
        "evaluations": reported.evaluations,
        "seconds": reported.seconds,
        "curve": [list(row) for row in reported.curve],
        "step": step_report(timeline, levels),
    }


def drawn_levels(problem: PlacementProblem) -> list[PlacementProblem]:
    """Return the problem at each level that is drawn, from coarse to fine."""
    sizes = [level.num_groups for level in problem.levels]
    few = [level for level, size in enumerate(sizes) if size <= MOST_GROUPS]
    return [problem.at_level(level) for level in few] or [problem]


def level_report(level: PlacementProblem, coarser: PlacementProblem | None) -> Report:
    """Return the groups of a level, which open from those of the level before, and their edges."""
    groups, graph = level.group_graph, level.graph
    positions = layered_positions(groups)
    order = np.argsort(level.grouping.group_of, kind="stable")
    sizes = np.bincount(level.grouping.group_of, minlength=level.num_groups)
    members = np.split(order, np.cumsum(sizes)[:-1])
    return {
        "names": list(level.grouping.group_names),
        "x": positions[:, 0],
        "y": positions[:, 1],
        "ops": [len(ops) for ops in members],
        "types": [most_common([graph.op_types[op] for op in ops]) for ops in members],
        "scopes": [most_common([graph.scopes[op] or "(none)" for op in ops]) for ops in members],
        "seconds": groups.compute_time,
        "output_bytes": groups.output_bytes,
        "parameter_bytes": groups.parameter_bytes,
        "edges": groups.edges,
        "edge_bytes": groups.edge_bytes,
        "parents": [0 if coarser is None else coarser.grouping.group_of[ops[0]] for ops in members],
    }


def most_common(words: list[str]) -> str:
    """Return words and how often each occurs, the most frequent first.

    Examples
    --------
    >>> most_common(["relu", "mm", "relu"])
    '2 relu, 1 mm'
    """
    counts = Counter(words).most_common()
    named = ", ".join(f"{count:,} {word}" for word, count in counts[:NAMED])
    hidden = len(counts) - NAMED
    return f"{named}, and {hidden:,} more" if hidden > 0 else named


def step_report(timeline: Timeline, levels: list[PlacementProblem]) -> Report:
    """Return what ran when in a simulated step, as columns, and the groups at each level drawn."""
    path = timeline.critical_path
    ops = np.array([step.index for step in path if step.kind == "op"], np.int64)
    transfers = [step for step in path if step.kind == "transfer"]
    seconds_on_path = np.zeros(timeline.problem.graph.num_ops)
    seconds_on_path[ops] = (timeline.op_end - timeline.op_start)[ops]
    return {
        "op_device": timeline.op_device,
        "op_start": _rounded(timeline.op_start, timeline.runtime),
        "op_end": _rounded(timeline.op_end, timeline.runtime),
        "transfer_tensor": timeline.transfer_tensor,
        "transfer_destination": timeline.transfer_destination,
        "transfer_link": timeline.transfer_link,
        "transfer_start": _rounded(timeline.transfer_start, timeline.runtime),
        "transfer_end": _rounded(timeline.transfer_sent, timeline.runtime),
        "memory": [_memory(timeline, index) for index in range(timeline.problem.num_devices)],
        "path_ops": ops,
        "path_transfers": [step.index for step in transfers],
        "path_transfer_seconds": [step.end - step.start for step in transfers],
        "group_devices": [level.placement_of_ops(timeline.op_device).tolist() for level in levels],
        "group_seconds_on_path": [
            np.bincount(level.grouping.group_of, seconds_on_path, level.num_groups).tolist()
            for level in levels
        ],
    }


def thinned(values: NDArray[np.int64], chunks: int = CHUNKS) -> NDArray[np.int64]:
    """Return which points of a long curve are drawn: the least and the most of each stretch.

    Examples
    --------
    >>> thinned(np.array([3, 9, 1, 4, 4, 8]), chunks=2).tolist()
    [1, 2, 3, 5]
    """
    if len(values) <= 2 * chunks:
        return np.arange(len(values))
    extremes = []
    for points in np.array_split(np.arange(len(values)), chunks):
        extremes += [points[values[points].argmin()], points[values[points].argmax()]]
    return np.unique(extremes)


def _memory(timeline: Timeline, device: int) -> Report:
    times, num_bytes = timeline.memory(device)
    drawn = thinned(num_bytes)
    return {"times": _rounded(times[drawn], timeline.runtime), "bytes": num_bytes[drawn]}


def _rounded(times: NDArray[np.float64], runtime: float) -> NDArray[np.float64]:
    decimals = DIGITS - int(np.ceil(np.log10(runtime))) if runtime > 0 else DIGITS
    return np.round(times, decimals)
