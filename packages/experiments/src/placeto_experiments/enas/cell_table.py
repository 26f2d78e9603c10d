"""What the cells of a training are like, beside evenly drawn ones."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from placeto_workloads.families.search_spaces import Architecture
from placeto_workloads.families.trajectory import Trajectory
from placeto_workloads.models.cell_architecture import CURRENT, ConvolutionalCell, RecurrentCell

Cell = RecurrentCell | ConvolutionalCell


def cells_of(architecture: Architecture) -> tuple[Cell, ...]:
    """Return the cells of an architecture."""
    if isinstance(architecture, RecurrentCell):
        return (architecture,)
    return (architecture.normal, architecture.reduction)


def num_loose_ends(cell: Cell) -> int:
    """Return how many states the output of a cell is made of."""
    return len(cell.loose_ends) if isinstance(cell, RecurrentCell) else len(cell.outputs)


def depth(cell: Cell) -> int:
    """Return how many nodes follow each other on the longest way through a cell.

    Examples
    --------
    >>> from placeto_workloads import Activation
    >>> depth(RecurrentCell((Activation.TANH,) * 4, inputs=(0, 1, 0)))
    3
    """
    if isinstance(cell, RecurrentCell):
        depths = [1]
        for earlier in cell.inputs:
            depths.append(depths[earlier] + 1)
    else:
        depths = [0] * (CURRENT + 1)
        for block in cell.blocks:
            depths.append(max(depths[block.left], depths[block.right]) + 1)
    return max(depths)


def operations(cell: Cell) -> list[str]:
    """Return the names of all operations of a cell."""
    if isinstance(cell, RecurrentCell):
        return [activation.value for activation in cell.activations]
    return [
        operation.value
        for block in cell.blocks
        for operation in (block.left_operation, block.right_operation)
    ]


def cell_table(trajectory: Trajectory, seed: int = 0) -> str:
    """Return a table in Markdown: even draws, the first round, all rounds, the last round.

    Parameters
    ----------
    trajectory
        The training, with at least one architecture.
    seed
        Of the even draws, of which there are as many as architectures in the training.
    """
    generator = np.random.default_rng(seed)
    count = len(trajectory)
    every = [trajectory.architecture(index) for index in range(count)]
    rounds = trajectory.rounds.tolist()
    groups = {
        "even draws": [trajectory.space.uniform(generator) for _ in range(count)],
        "first round": [every[index] for index in range(count) if rounds[index] == rounds[0]],
        "all rounds": every,
        "last round": [every[index] for index in range(count) if rounds[index] == rounds[-1]],
    }
    lines = [
        "| architectures | how many | different | loose ends of a cell | depth of a cell "
        "| operations |",
        "|---|---:|---:|---:|---:|---|",
    ]
    return "\n".join([*lines, *(_line(name, chosen) for name, chosen in groups.items())])


def _line(name: str, architectures: Sequence[Architecture]) -> str:
    cells = [cell for architecture in architectures for cell in cells_of(architecture)]
    counts = Counter(operation for cell in cells for operation in operations(cell))
    shares = ", ".join(
        f"{operation} {counts[operation] / counts.total():.0%}" for operation in sorted(counts)
    )
    return (
        f"| {name} | {len(architectures)} | {len(set(architectures))} "
        f"| {fmean(num_loose_ends(cell) for cell in cells):.2f} "
        f"| {fmean(depth(cell) for cell in cells):.2f} | {shares} |"
    )
