"""``placeto inspect``."""

from collections.abc import Callable
from math import isinf
from typing import Any

import click

from placeto.placing.costs import bound_text
from placeto.placing.evaluators import evaluator_spec
from placeto.problems.inspection import inspect_problem
from placeto.problems.making import problem_of, read_source
from placeto.problems.options import ProblemOptions
from placeto.texts import TextTable, bytes_text, cost_text, counted, flops_text, seconds_text
from placeto_tools.options import Command, evaluator_option, json_option
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json

NUM_SCOPES = 15
NUM_LINKS = 15
NUM_NAMES = 3
SUM_COLUMNS = [">ops", ">FLOPs", ">read, written", ">parameters", ">outputs", ">time"]


@click.command(cls=Command)
@click.argument("problem")
@click.option(
    "--scope-depth",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Number of parts of a scope by which ops are added up.",
)
@evaluator_option
@problem_options
@json_option
def inspect(
    problem: str, scope_depth: int, objective: str | None, asked: ProblemOptions, as_json: bool
) -> None:
    """Show the ops, bytes, groups, memory and lower bound of a problem.

    PROBLEM is a problem file, or any other SOURCE of `placeto build` with its options. The time of
    an op is that on its fastest device. No placement has a simulated runtime below the lower bound.
    If no placement fits the memory, a line says so.

    \b
    placeto inspect problem.json.gz
    placeto inspect problem.json.gz --scope-depth 3 --json
    """
    with showing_progress(problem) as progress:
        source = read_source(problem, asked)
        priced_by = evaluator_spec(objective or source.evaluator)
        read = problem_of(source, asked)
        progress.update(f"{problem}: lower bound, compiled once ...")
        report = inspect_problem(read, scope_depth, priced_by)
    if as_json:
        show_json(report)
    else:
        show(*_tables(report))
        if report["lower_bound"]:
            click.echo(f"\n{bound_text(report['lower_bound'], report['least_excess'])}")


def _tables(report: dict[str, Any]) -> list[TextTable]:
    groups, scopes = report["groups"], report["scopes"]
    title = ", ".join(counted(report[f"{each}s"], each) for each in ("op", "tensor", "edge"))
    hidden = len(scopes) - NUM_SCOPES
    more = f" (the longest; {hidden} more)" if hidden > 0 else ""
    phases = [[row["phase"], *_sums(row)] for row in report["phases"]]
    largest = [
        [
            row["group"],
            f"{row['ops']:,}",
            seconds_text(row["compute_time"]),
            bytes_text(row["output_bytes"]),
            bytes_text(row["parameter_bytes"]),
        ]
        for row in groups["largest"]
    ]
    return [
        TextTable(title, ["phase", *SUM_COLUMNS], [*phases, ["all", *_sums(report)]]),
        TextTable(
            f"Scopes{more}",
            ["scope", *SUM_COLUMNS],
            [[row["scope"] or "(none)", *_sums(row)] for row in scopes[:NUM_SCOPES]],
        ),
        TextTable(
            f"{counted(groups['count'], 'group')}, "
            f"{counted(groups['edges'], 'edge')} between them with "
            f"{bytes_text(groups['edge_bytes'])}; {_levels(groups['levels'])}; the longest",
            ["group", ">ops", ">time", ">outputs", ">parameters"],
            largest,
        ),
        TextTable(
            "All on one device",
            ["device", "kind", f">{report['objective']}", ">peak memory", ">memory", ""],
            [_device_row(row, report["unit"]) for row in report["devices"]],
        ),
        _link_table(report["links"]),
    ]


def _levels(sizes: list[int]) -> str:
    return "levels of " + ", ".join(f"{size:,}" for size in sizes)


def _link_table(links: list[dict[str, Any]]) -> TextTable:
    hidden = len(links) - NUM_LINKS
    return TextTable(
        f"Links (the first; {hidden:,} more)" if hidden > 0 else "Links",
        ["link", "from", "to", ">per second", ">latency"],
        [
            [
                row["link"],
                _names(row["sources"]),
                _names(row["destinations"]),
                _range(row["bandwidth"], bytes_text),
                _range(row["latency"], seconds_text),
            ]
            for row in links[:NUM_LINKS]
        ],
    )


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NUM_NAMES:,} more" if len(names) > NUM_NAMES else ""
    return ", ".join(names[:NUM_NAMES]) + more


def _range(ends: list[float], text: Callable[[float], str]) -> str:
    shown = dict.fromkeys("any number" if isinf(end) else text(end) for end in ends)
    return " to ".join(shown)


def _sums(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['op_count']:,}",
        flops_text(row["flops"]),
        bytes_text(row["bytes_accessed"]),
        bytes_text(row["parameter_bytes"]),
        bytes_text(row["output_bytes"]),
        seconds_text(row["compute_time"]),
    ]


def _device_row(row: dict[str, Any], unit: str) -> list[str]:
    verdict = "fits" if row["fits"] else "does not fit"
    if row["too_large_groups"]:
        large = counted(len(row["too_large_groups"]), "group")
        verdict += f"; the parameters of {large} alone are too large"
    runtime, peak = "cannot run all", ""
    if row["runtime"] is not None:
        runtime, peak = cost_text(row["runtime"], unit), bytes_text(row["peak_memory"])
    return [row["device"], row["kind"], runtime, peak, bytes_text(row["memory_bytes"]), verdict]
