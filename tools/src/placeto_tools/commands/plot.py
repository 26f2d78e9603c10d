"""``placeto plot``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from placeto.outputs import VARYING, Picture, save_picture
from placeto.texts import seconds_text
from placeto.trials.tables import read_curves
from placeto_simulator import Simulator, Timeline
from placeto_tools.groups import Group
from placeto_tools.options import Command, decorated, output_option, overwrite_option
from placeto_tools.plots.steps import curves_figure, placement_figure, timeline_figure
from placeto_tools.problem_options import PlacementArguments, placed_options


@click.group(cls=Group)
def plot() -> None:
    """Draw a placement, a simulated step or learning curves.

    \b
    placeto plot placement problem.json.gz placement.json -o placement.png
    """


picture_options = (
    output_option("Picture to write: .png, .pdf or .svg.", *VARYING),
    click.option(
        "--title", help="Title of the picture.  [default: its sources, or none for curves]"
    ),
    overwrite_option,
)
Drawing = Callable[[Timeline, NDArray[np.int32], str], Picture]


def _step_command(name: str, draw: Drawing, text: str) -> None:
    """Add a command that draws a simulated step."""

    def command(arguments: PlacementArguments, output: Path, title: str | None) -> None:
        problem, placement = arguments.read()
        timeline = Simulator(problem, num_threads=1).timeline(placement)
        title = (
            title or f"{arguments.problem}, {arguments.placement}: {seconds_text(timeline.runtime)}"
        )
        save_picture(draw(timeline, placement, title), output)
        click.echo(output)

    add = plot.command(name, cls=Command, help=text)
    decorated(command, [add, placed_options, *picture_options])


_step_command(
    "placement",
    lambda timeline, placement, title: placement_figure(timeline.problem, placement, title),
    """Draw the graph of groups in layers, with a colour for each device.

    The area of a node is the compute time of a group, and the width of an edge its bytes. Dark
    edges connect two devices. PROBLEM and PLACEMENT are as in `placeto simulate`.

    \b
    placeto plot placement problem.json.gz placement.json -o placement.png
    """,
)
_step_command(
    "timeline",
    lambda timeline, _, title: timeline_figure(timeline, title),
    """Draw the timeline of each device and link, and the memory below.

    PROBLEM and PLACEMENT are as in `placeto simulate`. A dashed line is the memory of a device.

    \b
    placeto plot timeline problem.json.gz placement.json -o timeline.png
    """,
)


@plot.command("curves", cls=Command)
@click.argument(
    "sources", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@partial(decorated, decorators=picture_options)
def plot_curves(sources: tuple[Path, ...], output: Path, title: str | None) -> None:
    """Draw learning curves: the best runtime so far by number of evaluations.

    FOLDERs are those of `placeto train` or `placeto compare`.

    \b
    placeto plot curves run -o curves.png
    placeto plot curves results -o curves.png
    """
    save_picture(curves_figure(read_curves(sources), {}, title or ""), output)
    click.echo(output)
