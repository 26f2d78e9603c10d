"""``placeto inspect``."""

from collections.abc import Callable
from math import isinf
from typing import Any

import click

from placeto.placing.cost_texts import bound_text
from placeto.placing.evaluators import evaluator_spec
from placeto.placing.place_problem import search_problem
from placeto.placing.reports import inspect_problem
from placeto.problems.making import problem_of, read_source
from placeto.problems.options import ProblemOptions
from placeto.texts import TextTable, bytes_text, cost_text, counted, seconds_text
from placeto_tools.options import Command, evaluator_option, json_option, number_option
from placeto_tools.problem_options import problem_options
from placeto_tools.screen import show_report, showing_progress, table_of

NUM_SCOPES = 15
NUM_LINKS = 15
NUM_NAMES = 3
SUMS = (
    ">ops: op_count | >FLOPs: flops | >read, written: bytes_accessed | >parameters: parameter_bytes"
    " | >outputs: output_bytes | >time: compute_time"
)


@click.command(cls=Command)
@click.argument("problem_name", metavar="PROBLEM")
@number_option(
    "--scope-depth", default=2, help="Number of parts of a scope by which ops are added up."
)
@evaluator_option
@problem_options
@json_option
def inspect(
    problem_name: str,
    scope_depth: int,
    objective: str | None,
    options: ProblemOptions,
    as_json: bool,
) -> None:
    """Show the ops, bytes, groups, memory and lower bound of a problem.

    PROBLEM is a problem file, or any other MODEL of `placeto build` with its options. The time of
    an op is that on its fastest device. No placement of the groups that `placeto place` searches
    has a simulated runtime below the lower bound. If none of them fits the memory, a line says so.

    \b
    placeto inspect problem.json.gz
    placeto inspect problem.json.gz --scope-depth 3 --json
    """
    with showing_progress(problem_name) as progress:
        source = read_source(problem_name, options)
        priced_by = evaluator_spec(objective or source.evaluator)
        problem = problem_of(source, options)
        progress.update(f"{problem_name}: lower bound, compiled once ...")
        searched = problem if options.grouping.fixes_num_groups else search_problem(problem)
        report = inspect_problem(problem, searched, scope_depth, priced_by)
    bound = report["lower_bound"]
    text = bound_text(bound, report["least_excess"], searched.num_groups)
    line = f"\n{text}" if bound else ""
    show_report(report, *_tables(report), line, as_json=as_json)


def _tables(report: dict[str, Any]) -> list[TextTable]:
    groups, scopes, links = report["groups"], report["scopes"], report["links"]
    title = ", ".join(counted(report[f"{thing}s"], thing) for thing in ("op", "tensor", "edge"))
    hidden, hidden_links = len(scopes) - NUM_SCOPES, len(links) - NUM_LINKS
    hidden_text = f" (the longest; {hidden} more)" if hidden > 0 else ""
    return [
        table_of(title, [*report["phases"], {**report, "phase": "all"}], f"phase | {SUMS}"),
        table_of(
            f"Scopes{hidden_text}",
            [{**row, "scope": row["scope"] or "(none)"} for row in scopes[:NUM_SCOPES]],
            f"scope | {SUMS}",
        ),
        table_of(
            f"{counted(groups['count'], 'group')}, "
            f"{counted(groups['edges'], 'edge')} between them with "
            f"{bytes_text(groups['edge_bytes'])}; "
            f"levels of {', '.join(f'{size:,}' for size in groups['levels'])}; the longest",
            groups["largest"],
            "group | >ops | >time: compute_time | >outputs: output_bytes | "
            ">parameters: parameter_bytes",
        ),
        TextTable(
            "All on one device",
            ["device", "kind", f">{report['objective']}", ">peak memory", ">memory", ""],
            [_device_row(row, report["unit"]) for row in report["devices"]],
        ),
        TextTable(
            f"Links (the first; {hidden_links:,} more)" if hidden_links > 0 else "Links",
            ["link", "from", "to", ">per second", ">latency", ">overhead"],
            [_link_row(row) for row in links[:NUM_LINKS]],
        ),
    ]


def _link_row(row: dict[str, Any]) -> list[str]:
    ends = _names(row["sources"]), _names(row["destinations"])
    times = _range(row["latency"]), _range(row["overhead"])
    return [row["link"], *ends, _range(row["bandwidth"], bytes_text), *times]


def _names(names: list[str]) -> str:
    hidden_text = f" and {len(names) - NUM_NAMES:,} more" if len(names) > NUM_NAMES else ""
    return ", ".join(names[:NUM_NAMES]) + hidden_text


def _range(ends: list[float], text: Callable[[float], str] = seconds_text) -> str:
    texts = dict.fromkeys("any number" if isinf(end) else text(end) for end in ends)
    return " to ".join(texts)


def _device_row(row: dict[str, Any], unit: str) -> list[str]:
    verdict = row["verdict"]
    if row["too_large_groups"]:
        large = counted(len(row["too_large_groups"]), "group")
        verdict += f"; the parameters of {large} alone are too large"
    runtime, peak = "cannot run all", ""
    if row["runtime"] is not None:
        runtime, peak = cost_text(row["runtime"], unit), bytes_text(row["peak_memory"])
    return [row["device"], row["kind"], runtime, peak, bytes_text(row["memory_bytes"]), verdict]
