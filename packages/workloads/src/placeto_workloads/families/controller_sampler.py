"""Architectures for families that a training of a controller evaluated."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.search_spaces import ConvolutionalSpace, RecurrentSpace
from placeto_workloads.families.trajectory import Trajectory, load_trajectory
from placeto_workloads.models.cell_architecture import ConvolutionalArchitecture, RecurrentCell

_SHIPPED = Path(__file__).parent / "trajectories"


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
        _check(self.convolutional, ConvolutionalSpace.name)
        _check(self.recurrent, RecurrentSpace.name)

    @classmethod
    def load(cls, *paths: str | os.PathLike[str]) -> "ControllerSampler":
        """Return the sampler of trainings that were kept in files.

        Parameters
        ----------
        *paths
            Files that `save_trajectory` wrote, at most one of each space.

        Raises
        ------
        WorkloadError
            When a file is none, or there are two of one space.
        """
        given: dict[str, Trajectory] = {}
        for path in paths:
            trajectory = load_trajectory(path)
            if trajectory.space.name in given:
                raise WorkloadError(
                    f"{path}: expected one file of {trajectory.space.name} architectures, got two"
                )
            given[trajectory.space.name] = trajectory
        return cls(given.get(ConvolutionalSpace.name), given.get(RecurrentSpace.name))

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a recurrent cell."""
        trajectory = self.recurrent or shipped_trajectory(RecurrentSpace.name)
        cell = trajectory.architecture(int(generator.integers(len(trajectory))))
        assert isinstance(cell, RecurrentCell)  # noqa: S101
        return cell

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return a normal and a reduction cell."""
        trajectory = self.convolutional or shipped_trajectory(ConvolutionalSpace.name)
        cells = trajectory.architecture(int(generator.integers(len(trajectory))))
        assert isinstance(cells, ConvolutionalArchitecture)  # noqa: S101
        return cells


def _check(trajectory: Trajectory | None, space: str) -> None:
    if trajectory is None:
        return
    if trajectory.space.name != space:
        raise WorkloadError(
            f"{space}: expected architectures of this space, got {trajectory.space.name}"
        )
    if not len(trajectory):
        raise WorkloadError(f"{space}: expected architectures, got none")


@cache
def shipped_trajectory(space: str) -> Trajectory:
    """Return the architectures that come with the package.

    Examples
    --------
    >>> shipped_trajectory("recurrent").space
    RecurrentSpace(num_nodes=12)
    """
    return load_trajectory(_SHIPPED / f"{space}.json.gz")
