"""``placeto explain``."""

from dataclasses import asdict
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from placeto.placing.explanation import (
    costs_elsewhere,
    explain_group,
    group_number,
    seconds_on_path,
    waits,
)
from placeto.placing.reports import bottleneck_text, busy_receivers
from placeto.texts import TextTable, change_text, counted, seconds_text
from placeto_simulator import Simulator, Timeline
from placeto_tools.options import Command, json_option
from placeto_tools.problem_options import PlacementArguments, placed_options
from placeto_tools.screen import show_report, table_of

Report = dict[str, Any]
NUM_GROUPS = 15
NUM_WAITS = 10


@click.command(cls=Command)
@placed_options
@click.argument("group", required=False)
@json_option
def explain(arguments: PlacementArguments, group: str | None, as_json: bool) -> None:
    """Show the costs of groups on other devices, and their waits.

    PROBLEM and PLACEMENT are as in `placeto simulate`. A cost is a simulated runtime, plus 2 s for
    each GB by which the fullest device exceeds its memory. By default you see the groups that are
    longest on the critical path, each with its second best device. The longest waits, for tensors
    or for the order of ops, follow. With GROUP, you see the cost of that group on each device:
    alone, and together with all groups that share tensors with it.

    \b
    placeto explain problem.json.gz placement.json
    placeto explain problem.json.gz placement.json encoder/layer0
    """
    problem, placement = arguments.read()
    simulator = Simulator(problem)
    timeline = Simulator(problem, num_threads=1).timeline(placement)
    if group is None:
        report = _report_of_all(simulator, placement, timeline)
        tables = _tables_of_all(report)
    else:
        group_index = group_number(problem, group)
        report = asdict(explain_group(simulator, placement, timeline, group_index))
        tables = _tables_of_one(report)
    report["busy_receivers"] = busy_receivers(timeline)
    report["bottleneck"] = bottleneck_text(timeline)
    show_report(report, *tables, *report["busy_receivers"], report["bottleneck"], as_json=as_json)


def _report_of_all(
    simulator: Simulator, placement: NDArray[np.int32], timeline: Timeline
) -> Report:
    """Return what each group would cost elsewhere, and the longest waits."""
    problem = simulator.problem
    elsewhere = costs_elsewhere(simulator, placement)
    groups = np.arange(problem.num_groups)
    cost_here = elsewhere[groups, placement]
    elsewhere[groups, placement] = np.inf
    best = elsewhere.argmin(axis=1)
    cost = elsewhere[groups, best]
    on_path = seconds_on_path(timeline)
    names = problem.cluster.device_names
    return {
        "runtime": timeline.runtime,
        "cost": float(cost_here[0]),
        "groups": [
            {
                "group": problem.grouping.group_names[group],
                "device": names[placement[group]],
                "critical_seconds": float(on_path[group]),
                "best_elsewhere": names[best[group]] if np.isfinite(cost[group]) else None,
                "cost_elsewhere": float(cost[group]) if np.isfinite(cost[group]) else None,
            }
            for group in groups.tolist()
        ],
        "waits": [asdict(wait) for wait in waits(timeline)],
    }


def _tables_of_all(report: Report) -> list[TextTable]:
    groups = sorted(report["groups"], key=lambda row: -row["critical_seconds"])
    costs = [row["cost_elsewhere"] for row in groups if row["cost_elsewhere"] is not None]
    better = sum(cost < report["cost"] for cost in costs)
    verdict = (
        f"{better:,} would alone be better elsewhere" if better else "none is better elsewhere"
    )
    longest = [
        {
            **row,
            "best": row["best_elsewhere"] or "nowhere",
            "costs": _change(report, row["cost_elsewhere"]),
        }
        for row in groups[:NUM_GROUPS]
    ]
    return [
        table_of(
            f"One step: {_runtime(report)}; of {len(groups):,} groups {verdict}; "
            "the longest on the critical path",
            longest,
            "group | on: device | >on the critical path: critical_seconds | second best: best | "
            ">costs",
        ),
        _wait_table("Idle devices", report["waits"]),
    ]


def _tables_of_one(report: Report) -> list[TextTable]:
    devices = [
        {name: cost if name == "device" else _change(report, cost) for name, cost in row.items()}
        for row in report["devices"]
    ]
    return [
        table_of(
            f"{report['group']}: {counted(report['ops'], 'op')} on {report['device']}, "
            f"{seconds_text(report['critical_seconds'])} of {_runtime(report)} "
            "on the critical path",
            devices,
            "device | >alone | >with its neighbours: with_neighbours",
        ),
        _wait_table("Its device was idle", report["waits"]),
        _wait_table("Other devices were idle", report["waited_for"]),
    ]


def _wait_table(title: str, rows: list[Report]) -> TextTable:
    hidden = f"; the longest of {len(rows):,}" if len(rows) > NUM_WAITS else ""
    return table_of(
        f"{title} until tensors came or ops before were done{hidden if rows else ': never'}",
        rows[:NUM_WAITS],
        "group | waited for: for_group | >ops | >over a link: transferred | >in order: ordered | "
        ">idle",
    )


def _runtime(report: Report) -> str:
    text = seconds_text(report["runtime"])
    if report["cost"] == report["runtime"]:
        return text
    return f"{text} (out of memory, which costs {seconds_text(report['cost'])} in all)"


def _change(report: Report, cost: float | None) -> str:
    """Return the text of a cost in comparison with that of the placement."""
    return "cannot run it" if cost is None else change_text(cost - report["cost"])
