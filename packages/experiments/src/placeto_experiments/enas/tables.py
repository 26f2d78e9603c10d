"""Tables of trainings: rewards against uniform sampling, their cells, and families of them."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import networkx as nx
import numpy as np

from placeto import family_graph
from placeto.texts import TextTable
from placeto_capture import cost_model
from placeto_experiments.enas.checkpoint import train
from placeto_experiments.enas.search import Search, Settings
from placeto_experiments.enas.tasks import Task
from placeto_graphs import PlacementProblem, parse_cluster
from placeto_workloads import Family, FamilyMember, RecurrentCell, Trajectory
from placeto_workloads.families.search_spaces import Architecture
from placeto_workloads.models.cell_architecture import CURRENT

KIND = "k80"
NUM_ARCHITECTURES = 50
NUM_BATCHES = 4
REWARDS = (
    *("first round", "last round", "controller", "uniform, same weights", "uniform, own weights"),
)


class RewardRow(NamedTuple):
    """Mean rewards of one seed: of architectures of the controller, and of uniform ones.

    The first two are those of its training, the others those after it. The last one is by weights
    that were trained with uniform architectures alone.
    """

    seed: int
    first_round: float
    last_round: float
    controller: float
    uniform_same_weights: float
    uniform_own_weights: float

    @property
    def gain(self) -> float:
        """The controller's reward above the better one of uniform sampling."""
        better = max(self.uniform_same_weights, self.uniform_own_weights)
        return round(self.controller - better, 12)


def reward_row(
    make_task: Callable[[int], Task],
    settings: Settings,
    seed: int,
    folder: str | os.PathLike[str],
    report: Callable[[Search, float], None],
) -> RewardRow:
    """Train once with the controller and once with uniform sampling, and evaluate both."""

    def trained(name: str, settings: Settings) -> Search:
        own = Path(folder) / f"{name}-{seed}"
        return train(make_task(seed), settings, own, seed=seed, report=report)

    controlled = trained("controller", settings)
    uniform = trained("uniform", replace(settings, uniform=True))
    space, generator = controlled.task.space, np.random.default_rng(seed)
    chosen = [
        space.architecture(row.tolist()) for row in controlled.sample(NUM_ARCHITECTURES, generator)
    ]
    drawn = [space.uniform(generator) for _ in range(NUM_ARCHITECTURES)]
    means = controlled.trajectory.round_means()
    return RewardRow(
        seed,
        means[0],
        means[-1],
        float(controlled.evaluate(chosen, NUM_BATCHES).mean()),
        float(controlled.evaluate(drawn, NUM_BATCHES).mean()),
        float(uniform.evaluate(drawn, NUM_BATCHES).mean()),
    )


def reward_table(rows: Sequence[RewardRow]) -> str:
    """Return the rows and their means as a table in Markdown."""
    columns = ["seed", *(f">{name}" for name in REWARDS), ">gain"]
    gains = [row.gain for row in rows]
    deviation = f" ± {stdev(gains):.3f}" if len(gains) > 1 else ""
    means = [fmean(column) for column in zip(*(row[1:] for row in rows), strict=True)]
    lines = [[str(row.seed), *map(_reward, row[1:]), f"{row.gain:+.3f}"] for row in rows]
    lines.append(["mean", *map(_reward, means), f"{fmean(gains):+.3f}{deviation}"])
    return TextTable("", columns, lines).markdown()


def _reward(reward: float) -> str:
    return f"{reward:.3f}"


def cell_table(trajectory: Trajectory, seed: int = 0) -> str:
    """Return a table in Markdown of the cells of a training, which has at least one architecture.

    Its rows are as many uniform ones, drawn by the seed, then the first round, all and the last.
    """
    generator = np.random.default_rng(seed)
    rounds = trajectory.rounds.tolist()
    every = [trajectory.architecture(index) for index in range(len(trajectory))]

    def of_round(number: int) -> list[Architecture]:
        return [cells for cells, own in zip(every, rounds, strict=True) if own == number]

    columns = ("architectures", ">number", ">different", ">loose ends of a cell")
    rows = [
        _cell_row("uniform", [trajectory.space.uniform(generator) for _ in every]),
        _cell_row("first round", of_round(rounds[0])),
        _cell_row("all rounds", every),
        _cell_row("last round", of_round(rounds[-1])),
    ]
    return TextTable("", (*columns, ">depth of a cell", "operations"), rows).markdown()


def _cell_row(name: str, architectures: Sequence[Architecture]) -> list[str]:
    cells = [cell for architecture in architectures for cell in _cells_of(architecture)]
    counts = Counter(operation for cell in cells for operation in cell.operations)
    return [
        name,
        str(len(architectures)),
        str(len(set(architectures))),
        f"{fmean(cell.num_loose_ends for cell in cells):.2f}",
        f"{fmean(cell.depth for cell in cells):.2f}",
        ", ".join(f"{each} {counts[each] / counts.total():.0%}" for each in sorted(counts)),
    ]


class _Cell(NamedTuple):
    """What a cell is like; the depth is the number of nodes on its longest path."""

    num_loose_ends: int
    depth: int
    operations: list[str]


def _cells_of(architecture: Architecture) -> list[_Cell]:
    if isinstance(architecture, RecurrentCell):
        depths = [1]
        for earlier in architecture.inputs:
            depths.append(depths[earlier] + 1)
        names = [activation.value for activation in architecture.activations]
        return [_Cell(len(architecture.loose_ends), max(depths), names)]
    cells = []
    for cell in (architecture.normal, architecture.reduction):
        depths = [0] * (CURRENT + 1)
        names = []
        for block in cell.blocks:
            depths.append(max(depths[block.left], depths[block.right]) + 1)
            names += [block.left_operation.value, block.right_operation.value]
        cells.append(_Cell(len(cell.outputs), max(depths), names))
    return cells


def graph_numbers(member: FamilyMember, family: Family) -> dict[str, float]:
    """Return the numbers of a family graph, in the groups of its family.

    Seconds are those of all ops on a K80, one after the other. The widest level is the largest
    number of groups at equal distance from the first one, in edges. Parallel groups are the seconds
    of all groups over those of the longest path.
    """
    graph = family_graph(member)
    problem = PlacementProblem(
        graph=graph,
        cluster=parse_cluster(f"2x{KIND}"),
        compute_time=np.stack([cost_model(graph, KIND)] * 2, axis=1),
        grouping=family.grouping(graph),
    )
    groups = problem.group_graph
    seconds = groups.compute_time[:, 0]
    edges = nx.DiGraph(groups.edges.tolist())
    edges.add_nodes_from(range(len(seconds)))
    widest = max(map(len, nx.topological_generations(edges)))
    # A last node behind all others: the longest path to it is the longest that there is.
    edges.add_edges_from((group, len(seconds)) for group in range(len(seconds)))
    for group, _, attributes in edges.edges(data=True):
        attributes["weight"] = seconds[group]
    cells = _cells_of(member.architecture) if member.architecture else []
    return {
        "loose ends": fmean(cell.num_loose_ends for cell in cells) if cells else 0.0,
        "ops": graph.num_ops,
        "parameters, GB": float(graph.parameter_bytes.sum()) / 1e9,
        "seconds": float(seconds.sum()),
        "widest level": widest,
        "parallel groups": float(seconds.sum() / nx.dag_longest_path_length(edges)),
    }


def family_table(rows: Iterable[tuple[str, Sequence[Mapping[str, float]]]]) -> str:
    """Return mean, minimum and maximum of each number of families, by name, in Markdown."""
    lines, columns = [], ["family"]
    for name, members in rows:
        columns = ["family", *members[0]]
        ranges = [_range([member[column] for member in members]) for column in columns[1:]]
        lines.append([name, *ranges])
    return TextTable("", columns, lines).markdown()


def _range(values: Sequence[float]) -> str:
    return f"{_shown(fmean(values))} ({_shown(min(values))} to {_shown(max(values))})"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
