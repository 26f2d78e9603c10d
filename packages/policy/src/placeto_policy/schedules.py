"""Simulated schedules of groups as features, from a `SchedulingEvaluator`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Evaluator, ScheduleBatch, SchedulingEvaluator
from placeto_policy.earliest import MIN_SECONDS
from placeto_policy.errors import PolicyError, check_field

SCHEDULE_FEATURES = 3


class GroupSchedules:
    """Queries an evaluator for the schedules of placements, and keeps the last ones."""

    def __init__(self, evaluator: Evaluator) -> None:
        if not isinstance(evaluator, SchedulingEvaluator):
            raise PolicyError(
                "evaluator: expected one that returns schedules (a SchedulingEvaluator) for "
                f"node_features 'costs-times-and-schedule', got {type(evaluator).__name__}; "
                "'costs-and-times' needs none"
            )
        self._evaluator = evaluator
        self._limits = evaluator.problem.cluster.memory_bytes
        self._forget((0, evaluator.problem.num_groups))

    def features(self, placements: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return float32[B, G, 3] for placements int32[B, G].

        The first two are the start of a group's first op and the end of its last one, as fractions
        of the runtime. The third is the peak memory of its device, as a fraction of its capacity.
        """
        if placements.shape != self._placements.shape:
            self._forget(placements.shape)
        # About half of the steps of an episode leave their group where it was.
        changed = (placements != self._placements).any(axis=1)
        if changed.any():
            self._features[changed] = self._scheduled(placements[changed])
            self._placements[changed] = placements[changed]
        return self._features.copy()

    def _forget(self, shape: tuple[int, ...]) -> None:
        self._placements = np.full(shape, -1, np.int32)
        self._features = np.empty((*shape, SCHEDULE_FEATURES), np.float32)

    def _scheduled(self, placements: NDArray[np.int32]) -> NDArray[np.float32]:
        schedule = self._evaluator.schedule(placements)
        start = _checked("start", schedule, placements.shape)
        end = _checked("end", schedule, placements.shape)
        memory = _checked("peak_memory", schedule, (len(placements), len(self._limits)))
        runtime = _checked("runtime", schedule, (len(placements),))[:, None]
        used_memory = np.take_along_axis(memory / self._limits, placements.astype(np.int64), axis=1)
        seconds = np.maximum(runtime, MIN_SECONDS)
        features = np.stack([start / seconds, end / seconds, used_memory], axis=2)
        return features.astype(np.float32)


def _checked(name: str, schedule: ScheduleBatch, shape: tuple[int, ...]) -> NDArray[Any]:
    times_or_bytes = check_field(schedule, name, shape)
    if not np.isfinite(times_or_bytes).all():
        raise PolicyError(f"evaluator: expected a schedule of finite numbers, got others in {name}")
    return times_or_bytes
