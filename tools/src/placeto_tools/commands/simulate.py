"""``placeto simulate``."""

from pathlib import Path
from typing import Any

import click

from placeto.errors import writing
from placeto.outputs import check_file
from placeto.placing.placements import resolve_placement
from placeto.placing.simulation import speed_of_kind, timeline_report
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto.texts import TextTable, bytes_text, counted, rate_text, seconds_text, share_text
from placeto_simulator import Simulator
from placeto_tools.options import (
    Command,
    check_force,
    force_option,
    json_option,
    trace_option,
)
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json

NUM_LINKS = 15


@click.command(cls=Command)
@click.argument("problem")
@click.argument("placement")
@trace_option
@click.option(
    "--longest",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Number of ops and transfers of the critical path to show, the longest first.",
)
@click.option(
    "--measured",
    type=click.FloatRange(min=0, min_open=True),
    metavar="STEPS",
    help="Measured rate of the model on the device that PLACEMENT names, in steps per second; with "
    "it, the speed of its kind is printed for a cluster file.  [default: none]",
)
@problem_options
@json_option
@force_option
def simulate(
    problem: str,
    placement: str,
    trace: Path | None,
    longest: int,
    measured: float | None,
    asked: ProblemOptions,
    as_json: bool,
    force: bool,
) -> None:
    """Simulate a step: runtime, memory, busy devices, critical path.

    PROBLEM is a problem file, or any other SOURCE of `placeto build` with its options. PLACEMENT is
    a placement file, a device that gets all ops (k80:0), or a placer that trains no policy.

    \b
    placeto simulate problem.json.gz placement.json --trace trace.json
    placeto simulate problem.json.gz k80:0
    placeto simulate problem.json.gz heft --json
    placeto simulate problem.json.gz rtx3090:0 --measured 18.5
    """
    check_force("--trace", trace, force=force)
    if trace:
        check_file(trace, force=force, suffixes=(".json", ".json.gz"))
    with showing_progress(problem) as progress:
        read = read_problem(problem, asked)
        read, found = resolve_placement(placement, read, progress)
    timeline = Simulator(read, num_threads=1).timeline(found)
    report = timeline_report(read, found, timeline, longest)
    if measured is not None:
        report["speed"] = speed_of_kind(read, found, timeline.runtime, measured)
    if trace:
        with writing(trace):
            timeline.to_chrome_trace(trace)
    if as_json:
        show_json(report)
    else:
        show(*_tables(report))
        if measured is not None:
            (kind,) = report["speed"]
            click.echo(f"\n[kinds.{kind}]\nspeed = {report['speed'][kind]:.3g}")


def _link_table(links: list[dict[str, Any]]) -> TextTable:
    """Return the links in use; if there are many, the busiest."""
    used = [row for row in links if row["transfers"]]
    busiest = sorted(used, key=lambda row: -row["busy"])[:NUM_LINKS]
    hidden = f"; the busiest {NUM_LINKS} of {len(used)} in use" if len(used) > NUM_LINKS else ""
    return TextTable(
        f"Links{hidden}",
        ["link", ">transfers", ">sent", ">busy"],
        [
            [
                row["link"],
                f"{row['transfers']:,}",
                bytes_text(row["transferred_bytes"]),
                share_text(row["busy"]),
            ]
            for row in used
            if row in busiest
        ],
    )


def _tables(report: dict[str, Any]) -> list[TextTable]:
    path = report["critical_path"]
    verdict = "" if report["fits"] else ", out of memory"
    rate = rate_text(report["runtime"]) if report["inference"] else ""
    return [
        TextTable(
            f"One step: {seconds_text(report['runtime'])}{rate}{verdict}; "
            f"{counted(report['transfers'], 'transfer')} of "
            f"{bytes_text(report['transferred_bytes'])}",
            ["device", ">groups", ">ops", ">busy", ">peak memory", ">of", ""],
            [
                [
                    row["device"],
                    f"{row['groups']:,}",
                    f"{row['ops']:,}",
                    share_text(row["busy"]),
                    bytes_text(row["peak_memory"]),
                    bytes_text(row["memory_bytes"]),
                    "" if row["fits"] else "out of memory",
                ]
                for row in report["devices"]
            ],
        ),
        _link_table(report["links"]),
        TextTable(
            f"Critical path of {counted(path['ops'], 'op')} and "
            f"{counted(path['transfers'], 'transfer')}: "
            f"{seconds_text(path['op_seconds'])} ops, "
            f"{seconds_text(path['transfer_seconds'])} transfers, "
            f"{seconds_text(path['waiting_seconds'])} overheads; the longest",
            ["", "name", "on", ">start", ">duration"],
            [
                [
                    row["kind"],
                    row["name"],
                    row["where"],
                    seconds_text(row["start"]),
                    seconds_text(row["seconds"]),
                ]
                for row in path["longest"]
            ],
        ),
    ]
