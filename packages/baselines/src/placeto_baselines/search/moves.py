"""What moves of single groups cost, with any evaluator."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import allowed_devices
from placeto_graphs import EvaluationBatch
from placeto_graphs import Evaluator
from placeto_graphs import IncrementalEvaluation
from placeto_graphs import IncrementalEvaluator


def start_moves(evaluator: Evaluator, placement: NDArray[np.int32]) -> IncrementalEvaluation:
    """Return an evaluation of single moves: the evaluator's own where it has one."""
    if isinstance(evaluator, IncrementalEvaluator):
        return evaluator.incremental(placement)
    return PlainMoves(evaluator, placement)


class PlainMoves:
    """An `IncrementalEvaluation` that evaluates every moved placement from scratch."""

    def __init__(self, evaluator: Evaluator, placement: NDArray[np.int32]) -> None:
        self._evaluator = evaluator
        self._allowed = allowed_devices(evaluator.problem)
        self._placement = placement.copy()
        self._tried: tuple[int, int] | None = None

    @property
    def placement(self) -> NDArray[np.int32]:
        """A copy of the placement int32[G] that moves start from."""
        return self._placement.copy()

    def try_move(self, group: int, device: int) -> EvaluationBatch:
        """Return what the placement costs with one group on another device."""
        self._tried = (group, device)
        return self._evaluator.evaluate(self._moved(group, np.array([device])))

    def moves(self, group: int) -> EvaluationBatch:
        """Return what the placement costs with one group on each of the D devices in turn."""
        devices = np.flatnonzero(self._allowed[group])
        found = self._evaluator.evaluate(self._moved(group, devices))
        num_devices = self._allowed.shape[1]
        runtime = np.full(num_devices, np.inf)
        runtime[devices] = found.runtime
        peak_memory = np.zeros((num_devices, num_devices), np.int64)
        peak_memory[devices] = found.peak_memory
        return EvaluationBatch(runtime=runtime, peak_memory=peak_memory)

    def commit(self) -> None:
        """Adopt the move that was tried last."""
        if self._tried is not None:
            group, device = self._tried
            self._placement[group] = device

    def _moved(self, group: int, devices: NDArray[np.intp]) -> NDArray[np.int32]:
        placements = np.tile(self._placement, (len(devices), 1))
        placements[:, group] = devices
        return placements
