"""The groups of every level as sets of the finest groups, which moves take as one."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import DeviceChoices, allowed_devices
from placeto_graphs import PlacementProblem


@dataclass(frozen=True)
class MoveSets:
    """The groups of L levels, from coarse to fine: S sets of the groups of the finest one."""

    sizes: tuple[int, ...]  # number of groups of each level
    first_set: NDArray[np.int64]  # [L + 1], of each level
    first_member: NDArray[np.int32]  # [S + 1], start of each set in the members: see `Moves`
    members: NDArray[np.int32]
    allowed: NDArray[np.bool_]  # [S, D], where all groups of a set can run

    @property
    def num_levels(self) -> int:
        return len(self.sizes)

    def draw(
        self, levels: NDArray[np.int64], generator: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return a set of each of some levels and a device for it, all equally likely."""
        set_of = generator.integers(self.first_set[levels], self.first_set[levels + 1])
        return set_of.astype(np.int32), self._choices.draw(set_of, generator)

    def random_placement(self, level: int, generator: np.random.Generator) -> NDArray[np.int32]:
        """Return int32[G]: each set of a level on a device that can run it, all equally likely."""
        first, end = self.first_set[level], self.first_set[level + 1]
        device = self._choices.draw(np.arange(first, end), generator)
        placement = np.empty(self.sizes[-1], np.int32)
        start, stop = self.first_member[first], self.first_member[end]
        lengths = np.diff(self.first_member[first : end + 1])
        placement[self.members[start:stop]] = np.repeat(device, lengths)
        return placement

    @cached_property
    def set_with(self) -> NDArray[np.int32]:
        """int32[L, G], the set of each level with each group of the finest one."""
        sets = np.repeat(np.arange(len(self.allowed), dtype=np.int32), np.diff(self.first_member))
        result = np.empty((self.num_levels, self.sizes[-1]), np.int32)
        rows = np.repeat(np.arange(self.num_levels), self.sizes[-1])
        result[rows, self.members] = sets
        return result

    @cached_property
    def _choices(self) -> DeviceChoices:
        return DeviceChoices(self.allowed)


def move_sets(problem: PlacementProblem, coarsest: int = 1) -> MoveSets:
    """Return the sets of the levels of a problem, from a coarse one to its own.

    Coarse levels of fewer groups than ``coarsest`` are left out.
    """
    levels = [
        level
        for number, level in enumerate(problem.levels[: problem.level + 1])
        if number == problem.level or level.num_groups >= coarsest
    ]
    own = problem.grouping
    _, first_op = np.unique(own.group_of, return_index=True)
    first_member = [np.zeros(1, np.int64)]
    members = []
    for level in levels:
        set_of_group = level.group_of[first_op]
        members.append(np.argsort(set_of_group, kind="stable"))
        ends = np.cumsum(np.bincount(set_of_group, minlength=level.num_groups))
        first_member.append(first_member[-1][-1] + ends)
    starts = np.concatenate(first_member)
    every = np.concatenate(members)
    can_run = allowed_devices(problem)
    return MoveSets(
        sizes=tuple(level.num_groups for level in levels),
        first_set=np.cumsum([0, *(level.num_groups for level in levels)]),
        first_member=starts.astype(np.int32),
        members=every.astype(np.int32),
        allowed=np.logical_and.reduceat(can_run[every], starts[:-1], axis=0),
    )
