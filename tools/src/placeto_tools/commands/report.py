"""``placeto report``."""

from collections import Counter
from pathlib import Path

import click

from placeto.outputs import write_text
from placeto.problems.making import problem_of, read_source
from placeto.problems.options import ProblemOptions
from placeto.texts import counted
from placeto_tools.options import Command, output_option, overwrite_option
from placeto_tools.problem_options import (
    problem_options,
    resolved,
    schedule_option,
    with_copies_of,
)
from placeto_tools.reports.page import ReportedPlacement, problem_report, report_page
from placeto_tools.screen import showing_progress


@click.command(cls=Command)
@click.argument("problem_name", metavar="PROBLEM")
@click.argument("placements", nargs=-1, required=True, metavar="PLACEMENT...")
@schedule_option
@problem_options
@output_option("Page to write: .html.", ".html")
@overwrite_option
def report(
    problem_name: str,
    placements: tuple[str, ...],
    schedule: str | None,
    options: ProblemOptions,
    output: Path,
) -> None:
    """Write a web page that shows placements.

    PROBLEM and each PLACEMENT are as in `placeto simulate`. The page is one file, which any browser
    opens; it fetches nothing from a network.

    \b
    placeto report problem.json.gz placement.json k80:0 -o report.html
    """
    with showing_progress(problem_name) as progress:
        options = with_copies_of(options, problem_name, placements[0])
        problem = problem_of(read_source(problem_name, options), options)
        reported = []
        for text, title in zip(placements, _titles(placements), strict=True):
            resolved_problem, placement = resolved(text, problem, schedule, progress)
            reported.append(ReportedPlacement(title, resolved_problem, placement))
        progress.update(f"{output} ...")
        name = Path(problem_name).name
        page = report_page(f"Placements of {name}", [problem_report(name, problem, reported)])
    write_text(output, page)
    click.echo(f"{output}: {counted(len(reported), 'placement')}, {len(page) / 1e6:.1f} MB")


def _titles(placements: tuple[str, ...]) -> list[str]:
    """Return short names: of a file its stem, where no other has the same one."""
    stems = [Path(text).stem if text.endswith(".json") else text for text in placements]
    often = Counter(stems)
    return [
        stem if often[stem] == 1 else text for stem, text in zip(stems, placements, strict=True)
    ]
