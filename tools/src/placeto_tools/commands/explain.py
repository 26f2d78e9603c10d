"""``placeto explain``."""

from dataclasses import asdict
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from placeto.placing.explanation import (
    Wait,
    costs_elsewhere,
    explain_group,
    group_number,
    seconds_on_path,
    waits,
)
from placeto.placing.placements import resolve_placement
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto.texts import TextTable, change_text, counted, seconds_text
from placeto_simulator import Simulator, Timeline
from placeto_tools.options import Command, json_option
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json

Report = dict[str, Any]
NUM_GROUPS = 15
NUM_WAITS = 10


@click.command(cls=Command)
@click.argument("problem")
@click.argument("placement")
@click.argument("group", required=False)
@problem_options
@json_option
def explain(
    problem: str, placement: str, group: str | None, asked: ProblemOptions, as_json: bool
) -> None:
    """Show the costs of groups on other devices, and their waits.

    PROBLEM and PLACEMENT are as in `placeto simulate`. A cost is a simulated runtime, plus 2 s for
    each GB by which the fullest device exceeds its memory. By default you see the groups that are
    longest on the critical path, each with its second best device, and the longest waits for
    tensors. With GROUP, you see the cost of that group on each device: alone, and together with all
    groups that share tensors with it.

    \b
    placeto explain problem.json.gz placement.json
    placeto explain problem.json.gz placement.json encoder/layer0
    """
    with showing_progress(problem) as progress:
        read = read_problem(problem, asked)
        read, found = resolve_placement(placement, read, progress)
    simulator = Simulator(read)
    timeline = Simulator(read, num_threads=1).timeline(found)
    if group is None:
        report = report_of_all(simulator, found, timeline)
        tables = _tables_of_all(report)
    else:
        number = group_number(read, group)
        report = asdict(explain_group(simulator, found, timeline, number))
        tables = _tables_of_one(report)
    if as_json:
        show_json(report)
    else:
        show(*tables)


def report_of_all(simulator: Simulator, placement: NDArray[np.int32], timeline: Timeline) -> Report:
    """Return what each group would cost elsewhere, and the longest waits."""
    problem = simulator.problem
    elsewhere = costs_elsewhere(simulator, placement)
    groups = np.arange(problem.num_groups)
    here = elsewhere[groups, placement]
    elsewhere[groups, placement] = np.inf
    best = elsewhere.argmin(axis=1)
    cost = elsewhere[groups, best]
    on_path = seconds_on_path(timeline)
    names = problem.cluster.device_names
    return {
        "runtime": timeline.runtime,
        "cost": float(here[0]),
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
    movable = [row for row in report["groups"] if row["cost_elsewhere"] is not None]
    better = sum(row["cost_elsewhere"] < report["cost"] for row in movable)
    verdict = (
        f"{better:,} would alone be better elsewhere" if better else "none is better elsewhere"
    )
    return [
        TextTable(
            f"One step: {_runtime(report)}; of {len(groups):,} groups {verdict}; "
            "the longest on the critical path",
            ["group", "on", ">on the critical path", "second best", ">costs"],
            [
                [
                    row["group"],
                    row["device"],
                    seconds_text(row["critical_seconds"]),
                    row["best_elsewhere"] or "nowhere",
                    _change(row["cost_elsewhere"], report["cost"]),
                ]
                for row in groups[:NUM_GROUPS]
            ],
        ),
        _wait_table("Idle devices", report["waits"]),
    ]


def _tables_of_one(report: Report) -> list[TextTable]:
    return [
        TextTable(
            f"{report['group']}: {counted(report['ops'], 'op')} on {report['device']}, "
            f"{seconds_text(report['critical_seconds'])} of {_runtime(report)} "
            "on the critical path",
            ["device", ">alone", ">with its neighbours"],
            [
                [
                    row["device"],
                    _change(row["alone"], report["cost"]),
                    _change(row["with_neighbours"], report["cost"]),
                ]
                for row in report["devices"]
            ],
        ),
        _wait_table("Its device was idle", report["waits"]),
        _wait_table("Other devices were idle", report["waited_for"]),
    ]


def _wait_table(title: str, rows: list[Report]) -> TextTable:
    longest = [Wait(**row) for row in rows[:NUM_WAITS]]
    hidden = f"; the longest of {len(rows):,}" if len(rows) > NUM_WAITS else ""
    return TextTable(
        f"{title} until tensors came{hidden}" if rows else f"{title} until tensors came: never",
        ["group", "waited for", ">ops", ">over a link", ">idle"],
        [
            [
                wait.group,
                wait.for_group,
                f"{wait.ops:,}",
                f"{wait.transferred:,}",
                seconds_text(wait.idle),
            ]
            for wait in longest
        ],
    )


def _runtime(report: Report) -> str:
    text = seconds_text(report["runtime"])
    if report["cost"] == report["runtime"]:
        return text
    return f"{text} (out of memory, which costs {seconds_text(report['cost'])} in all)"


def _change(cost: float | None, now: float) -> str:
    return "cannot run it" if cost is None else change_text(cost - now)
