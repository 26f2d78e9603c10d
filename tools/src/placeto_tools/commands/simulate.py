"""``placeto simulate``."""

from pathlib import Path
from typing import Any

import click

from placeto.errors import writing
from placeto.placing.costs import DOES_NOT_FIT, MAY_NOT_FIT
from placeto.placing.reports import rate_text, speed_of_kind, timeline_report
from placeto.texts import TextTable, bytes_text, counted, seconds_text
from placeto_simulator import Simulator
from placeto_tools.options import (
    Command,
    Positive,
    json_option,
    number_option,
    overwrite_option,
    trace_option,
)
from placeto_tools.problem_options import PlacementArguments, placed_options
from placeto_tools.screen import recorded_warnings, show_report, table_of

NUM_LINKS = 15
VERDICTS = {DOES_NOT_FIT: "out of memory", MAY_NOT_FIT: "may not fit"}  # the worst first


@click.command(cls=Command)
@trace_option
@number_option(
    "--longest",
    minimum=0,
    default=10,
    help="Number of ops and transfers of the critical path to show, the longest first.",
)
@click.option(
    "--measured",
    type=Positive(),
    metavar="STEPS",
    help="Measured rate of the model on the device that PLACEMENT names, in steps per second; with "
    "it, the speed of its kind is printed for a cluster file.  [default: none]",
)
@placed_options
@json_option
@overwrite_option
def simulate(
    trace: Path | None,
    longest: int,
    measured: float | None,
    arguments: PlacementArguments,
    as_json: bool,
) -> None:
    """Simulate a step: runtime, memory, busy devices, critical path.

    PROBLEM is a problem file, or any other MODEL of `placeto build` with its options. PLACEMENT is
    a placement file, a device that gets all ops (k80:0), or a placer that trains no policy.

    \b
    placeto simulate problem.json.gz placement.json --trace trace.json
    placeto simulate problem.json.gz k80:0
    placeto simulate problem.json.gz heft --json
    placeto simulate problem.json.gz rtx3090:0 --measured 18.5
    """
    with recorded_warnings() as messages:
        problem, placement = arguments.read()
    timeline = Simulator(problem, num_threads=1).timeline(placement)
    report = timeline_report(problem, placement, timeline, longest)
    speed = ""
    if measured is not None:
        report["speed"] = speed_of_kind(problem, placement, timeline.runtime, measured)
        ((kind, value),) = report["speed"].items()
        speed = f"\n[kinds.{kind}]\nspeed = {value:.3g}"
    if trace:
        with writing(trace):
            timeline.to_chrome_trace(trace)
    rate = rate_text(problem, placement, timeline.runtime, is_doubtful=bool(messages))
    tables = _tables(report, rate)
    show_report(report, *tables, *report["busy_receivers"], speed, as_json=as_json)


def _tables(report: dict[str, Any], rate: str) -> list[TextTable]:
    path, used = report["critical_path"], [row for row in report["links"] if row["transfers"]]
    busiest = sorted(used, key=lambda row: -row["busy"])[:NUM_LINKS]
    hidden = f"; the busiest {NUM_LINKS} of {len(used)} in use" if len(used) > NUM_LINKS else ""
    verdicts = [row["verdict"] for row in report["devices"]]
    worst = next((text for name, text in VERDICTS.items() if name in verdicts), "")
    return [
        table_of(
            f"One step: {seconds_text(report['runtime'])}{rate}{worst and f', {worst}'}; "
            f"{counted(report['transfers'], 'transfer')} of "
            f"{bytes_text(report['transferred_bytes'])}",
            [row | {"fits": VERDICTS.get(row["verdict"], "")} for row in report["devices"]],
            "device | >groups | >ops | >busy | >peak memory: peak_memory | >of: memory_bytes | "
            ": fits",
        ),
        table_of(
            f"Links{hidden}",
            [row for row in used if row in busiest],
            "link | >transfers | >sent: transferred_bytes | >busy",
        ),
        table_of(
            f"Critical path of {counted(path['ops'], 'op')} and "
            f"{counted(path['transfers'], 'transfer')}: "
            f"{seconds_text(path['op_seconds'])} ops, "
            f"{seconds_text(path['transfer_seconds'])} transfers, "
            f"{seconds_text(path['waiting_seconds'])} overheads; the longest",
            path["longest"],
            ": kind | name | on: where | >start | >duration: seconds",
        ),
    ]
