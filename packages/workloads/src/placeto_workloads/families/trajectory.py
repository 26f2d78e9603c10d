"""The architectures that a training evaluates: in memory, as a file, and sampled again."""

import gzip
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto_graphs import write_atomically
from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.search_spaces import (
    Architecture,
    ConvolutionalSpace,
    RecurrentSpace,
    SearchSpace,
)
from placeto_workloads.models.cell_architecture import ConvolutionalArchitecture, RecurrentCell

FORMAT = "placeto-architectures"
VERSION = 1
LARGEST_FILE = 2**28  # bytes, after unpacking
_SHIPPED = Path(__file__).parent / "trajectories"
SPACES = {"convolutional": ConvolutionalSpace, "recurrent": RecurrentSpace}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Architectures that a controller sampled while it was trained, in order.

    Attributes
    ----------
    space
        Search space of the architectures.
    rounds, rewards
        int32[N] and float64[N]: the round of each, from 0, and its reward.
    choices
        int16[N, decisions]: the architectures.
    task
        Task of the training.
    """

    space: SearchSpace
    rounds: NDArray[np.int32]
    choices: NDArray[np.int16]
    rewards: NDArray[np.float64]
    task: Mapping[str, str | int | float]

    def __post_init__(self) -> None:
        count, num_choices = len(self.rounds), len(self.space.counts)
        if self.choices.shape != (count, num_choices) or self.rewards.shape != (count,):
            raise WorkloadError(
                f"choices, rewards: expected {count} of {num_choices} choices each, "
                f"got {self.choices.shape} and {self.rewards.shape}"
            )
        self.space.check(self.choices)

    def __len__(self) -> int:
        """Return how many architectures there are."""
        return len(self.rounds)

    def architecture(self, index: int) -> Architecture:
        """Return one architecture."""
        return self.space.architecture(self.choices[index].tolist())

    def sample(self, generator: np.random.Generator) -> Architecture:
        """Return one of the architectures, all equally likely."""
        return self.architecture(int(generator.integers(len(self))))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    space: str
    num_nodes: int
    task: dict[str, str | int | float]
    rounds: list[int]
    choices: list[list[int]]
    rewards: list[float]


def save_trajectory(trajectory: Trajectory, path: str | os.PathLike[str]) -> None:
    """Write architectures to a JSON file, which is replaced at once; ``.gz`` packs it."""
    content = _File(
        FORMAT,
        VERSION,
        trajectory.space.name,
        trajectory.space.num_nodes,
        dict(trajectory.task),
        trajectory.rounds.tolist(),
        trajectory.choices.tolist(),
        trajectory.rewards.tolist(),
    )
    write_atomically(path, msgspec.json.encode(content) + b"\n")


def load_trajectory(path: str | os.PathLike[str]) -> Trajectory:
    """Return the architectures of a file that `save_trajectory` wrote."""
    try:
        return _decoded(_content(Path(path)))
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or 'expected a packed file'}") from None
    except (EOFError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: expected a {FORMAT} file: {error}") from None
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from None
    except (ValueError, OverflowError):
        raise WorkloadError(
            f"{path}: choices: expected as many small numbers for each architecture as there "
            f"are decisions"
        ) from None


def _decoded(content: bytes) -> Trajectory:
    file = msgspec.json.decode(content, type=_File)
    if (file.format, file.version) != (FORMAT, VERSION):
        raise WorkloadError(
            f"expected format {FORMAT!r}, version {VERSION}, got {file.format!r}, {file.version}"
        )
    if file.space not in SPACES:
        raise WorkloadError(f"space: expected {' or '.join(SPACES)}, got {file.space!r}")
    space = SPACES[file.space](file.num_nodes)
    shape = len(file.choices), len(space.counts)
    choices = np.array(file.choices, dtype=np.int16).reshape(shape)
    rounds, rewards = np.array(file.rounds, np.int32), np.array(file.rewards)
    return Trajectory(space, rounds, choices, rewards, file.task)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        unpacked = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        content = unpacked.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise WorkloadError(f"expected at most {LARGEST_FILE} bytes")
    return content


@dataclass(frozen=True)
class ControllerSampler:
    """An `ArchitectureSampler` of the architectures that trainings evaluated.

    As in Addanki et al. (2019): every architecture that a controller sampled for its updates is
    equally likely; one that it sampled often is sampled often. By default the trainings are those
    on shapes and on the small grammar that come with the package.
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
