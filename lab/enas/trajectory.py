"""The architectures that a training evaluates, in memory and as a file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import write_atomically
from placeto_workloads import SearchSpace

FORMAT = {"format": "placeto-architectures", "version": 1}


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

    def __len__(self) -> int:
        """Return how many architectures there are."""
        return len(self.rounds)


def save_trajectory(trajectory: Trajectory, path: Path) -> None:
    """Write architectures to a JSON file, which is replaced at once; ``.gz`` packs it."""
    content = {
        **FORMAT,
        "space": trajectory.space.name,
        "num_nodes": trajectory.space.num_nodes,
        "task": dict(trajectory.task),
        "rounds": trajectory.rounds.tolist(),
        "choices": trajectory.choices.tolist(),
        "rewards": trajectory.rewards.tolist(),
    }
    write_atomically(path, json.dumps(content, separators=(",", ":")).encode() + b"\n")
