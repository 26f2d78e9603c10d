"""``placeto diff``."""

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from placeto.placing.attribution import moves_between
from placeto.placing.costs import costs
from placeto.placing.placements import resolve_placement
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto.texts import TextTable, change_text, seconds_text
from placeto_simulator import Simulator
from placeto_tools.options import Command, json_option, seed_option
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json

Report = dict[str, Any]
NUM_MOVES = 20


@click.command(cls=Command)
@click.argument("problem")
@click.argument("before")
@click.argument("after")
@click.option(
    "--orders",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Number of random orders of the moves for the column share; each also runs backwards.",
)
@problem_options
@seed_option
@json_option
def diff(
    problem: str,
    before: str,
    after: str,
    orders: int,
    asked: ProblemOptions,
    seed: int,
    as_json: bool,
) -> None:
    """Compare two placements, group by group.

    PROBLEM is as in `placeto simulate`, and BEFORE and AFTER are as PLACEMENT there. Placements of
    two levels are compared at the finer one. For each group that moves, you see the change of the
    runtime if it moves first and if it moves last. Its share is the average change over random
    orders of all moves; shares add up to the whole difference.

    \b
    placeto diff problem.json.gz expert placement.json
    placeto diff problem.json.gz k80:0 placement.json --json
    """
    with showing_progress(problem) as progress:
        read = read_problem(problem, asked)
        found = [resolve_placement(text, read, progress) for text in (before, after)]
        finest = max((at_level for at_level, _ in found), key=lambda each: each.num_groups)
        first, last = (
            finest.placement_of_ops(at_level.expand(placed)) for at_level, placed in found
        )
        progress.update("costs of the moves ...")
        report = difference(Simulator(finest), first, last, orders, np.random.default_rng(seed))
    if as_json:
        show_json(report)
    elif report["moves"]:
        show(_table(report))
    else:
        click.echo("the two placements are the same")


def difference(
    simulator: Simulator,
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    num_orders: int,
    generator: np.random.Generator,
) -> Report:
    """Return the moves between two placements and what each costs, the largest shares first."""
    problem = simulator.problem
    moves = moves_between(simulator, before, after, num_orders, generator)
    both = np.stack([before, after])
    names, devices = problem.grouping.group_names, problem.cluster.device_names
    return {
        "runtime": simulator.evaluate(both).runtime.tolist(),
        "cost": costs(simulator, both).tolist(),
        "moves": [
            {
                "group": names[move.group],
                "from": devices[before[move.group]],
                "to": devices[after[move.group]],
                "first": move.first,
                "last": move.last,
                "share": move.share,
            }
            for move in sorted(moves, key=lambda move: -abs(move.share))
        ],
    }


def _table(report: Report) -> TextTable:
    moves = report["moves"]
    before, after = report["cost"]
    shown = f"; the largest {NUM_MOVES}" if len(moves) > NUM_MOVES else ""
    return TextTable(
        f"{seconds_text(before)} before, {seconds_text(after)} after, which is "
        f"{change_text(after - before)} by {len(moves):,} moves{shown}",
        ["group", "from", "to", ">first", ">last", ">share"],
        [
            [
                move["group"],
                move["from"],
                move["to"],
                *(change_text(move[field]) for field in ("first", "last", "share")),
            ]
            for move in moves[:NUM_MOVES]
        ],
    )
