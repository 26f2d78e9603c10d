"""``placeto plot``."""

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from placeto.outputs import check_file, save_png
from placeto.placing.placements import resolve_placement
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto.texts import seconds_text
from placeto.trials.curve_files import read_curves
from placeto_simulator import Simulator, Timeline
from placeto_tools.groups import Group
from placeto_tools.options import Command, force_option, output_option
from placeto_tools.plots.curves import curves_figure
from placeto_tools.plots.placement import placement_figure
from placeto_tools.plots.timeline import timeline_figure
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress

PNG = (".png",)


@click.group(cls=Group)
def plot() -> None:
    """Draw a placement, a simulated step or learning curves.

    \b
    placeto plot placement problem.json.gz placement.json -o placement.png
    """


picture_option = output_option("Picture to write: .png.")
title_option = click.option(
    "--title", help="Title of the picture.  [default: its sources, or none for curves]"
)


@plot.command("placement", cls=Command)
@click.argument("problem")
@click.argument("placement")
@problem_options
@picture_option
@title_option
@force_option
def plot_placement(
    problem: str,
    placement: str,
    asked: ProblemOptions,
    output: Path,
    title: str | None,
    force: bool,
) -> None:
    """Draw the graph of groups in layers, with a colour for each device.

    The area of a node is the compute time of a group, and the width of an edge its bytes. Dark
    edges connect two devices. PROBLEM and PLACEMENT are as in `placeto simulate`.

    \b
    placeto plot placement problem.json.gz placement.json -o placement.png
    """
    check_file(output, force=force, suffixes=PNG)
    timeline, found, above = _simulated(problem, placement, asked, title)
    save_png(placement_figure(timeline.problem, found, above), output)
    click.echo(output)


@plot.command("timeline", cls=Command)
@click.argument("problem")
@click.argument("placement")
@problem_options
@picture_option
@title_option
@force_option
def plot_timeline(
    problem: str,
    placement: str,
    asked: ProblemOptions,
    output: Path,
    title: str | None,
    force: bool,
) -> None:
    """Draw the timeline of each device and link, and the memory below.

    PROBLEM and PLACEMENT are as in `placeto simulate`. A dashed line is the memory of a device.

    \b
    placeto plot timeline problem.json.gz placement.json -o timeline.png
    """
    check_file(output, force=force, suffixes=PNG)
    timeline, _, above = _simulated(problem, placement, asked, title)
    save_png(timeline_figure(timeline, above), output)
    click.echo(output)


def _simulated(
    problem: str, placement: str, asked: ProblemOptions, title: str | None
) -> tuple[Timeline, NDArray[np.int32], str]:
    """Return the simulated step, the placement at the level of its problem, and the title."""
    with showing_progress(problem) as progress:
        read = read_problem(problem, asked)
        read, found = resolve_placement(placement, read, progress)
    timeline = Simulator(read, num_threads=1).timeline(found)
    return timeline, found, title or f"{problem}, {placement}: {seconds_text(timeline.runtime)}"


@plot.command("curves", cls=Command)
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@picture_option
@title_option
@force_option
def plot_curves(sources: tuple[Path, ...], output: Path, title: str | None, force: bool) -> None:
    """Draw learning curves: the best runtime so far by number of evaluations.

    SOURCES are folders of `placeto train` or `placeto compare`.

    \b
    placeto plot curves run -o curves.png
    placeto plot curves results -o curves.png
    """
    check_file(output, force=force, suffixes=PNG)
    save_png(curves_figure(read_curves(sources), {}, title or ""), output)
    click.echo(output)
