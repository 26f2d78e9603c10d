"""Samplers of the architectures of families: uniform, or of what a training evaluated."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.search_spaces import ConvolutionalSpace, RecurrentSpace
from placeto_workloads.families.trajectory import Trajectory, load_trajectory
from placeto_workloads.models.cell_architecture import ConvolutionalArchitecture, RecurrentCell

_SHIPPED = Path(__file__).parent / "trajectories"


class ArchitectureSampler(Protocol):
    """Samples architectures of the ENAS search spaces, as an ENAS controller does."""

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a recurrent cell."""

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return a normal and a reduction cell."""


@dataclass(frozen=True)
class UniformSampler:
    """An `ArchitectureSampler` to which every choice of the search space is equally likely.

    By default cells have 12 nodes, or 5 blocks, as in Pham et al. (2018), sections 3.1 and 3.2.
    """

    num_nodes: int = 12
    num_blocks: int = 5

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        return RecurrentSpace(self.num_nodes).uniform(generator)

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        return ConvolutionalSpace(self.num_blocks).uniform(generator)


@dataclass(frozen=True)
class ControllerSampler:
    """An `ArchitectureSampler` of the architectures that trainings evaluated.

    As in Addanki et al. (2019): every architecture that a controller sampled for its updates is
    equally likely; one that it sampled often is sampled often.

    Attributes
    ----------
    convolutional, recurrent
        The trainings; by default those on shapes and on the small grammar that come with the
        package.

    Raises
    ------
    WorkloadError
        When a training is of the other space, or has no architectures.

    Examples
    --------
    >>> from placeto_workloads import family
    >>> ptb = family("ptb", sampler=ControllerSampler())
    >>> ptb.test[0].architecture.num_nodes
    12
    """

    convolutional: Trajectory | None = None
    recurrent: Trajectory | None = None

    def __post_init__(self) -> None:
        for space, trajectory in (
            (ConvolutionalSpace.name, self.convolutional),
            (RecurrentSpace.name, self.recurrent),
        ):
            if trajectory is not None and trajectory.space.name != space:
                raise WorkloadError(
                    f"{space}: expected architectures of this space, got {trajectory.space.name}"
                )
            if trajectory is not None and not len(trajectory):
                raise WorkloadError(f"{space}: expected architectures, got none")

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        cell = (self.recurrent or shipped_trajectory(RecurrentSpace.name)).sample(generator)
        assert isinstance(cell, RecurrentCell)  # noqa: S101
        return cell

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        trajectory = self.convolutional or shipped_trajectory(ConvolutionalSpace.name)
        cells = trajectory.sample(generator)
        assert isinstance(cells, ConvolutionalArchitecture)  # noqa: S101
        return cells


@cache
def shipped_trajectory(space: str) -> Trajectory:
    """Return the architectures of a space that come with the package."""
    return load_trajectory(_SHIPPED / f"{space}.json.gz")
