"""What fits the memory comes before all that does not, also where that would cost less."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from placeto_graphs import MEMORY_PENALTY, EvaluationBatch, ScheduleBatch
from placeto_policy import (
    PlacementEnvironment,
    PlacementPolicy,
    PlacetoPlacer,
    Settings,
    Trainer,
    resume_training,
    save_training,
)
from placeto_policy.environment import Best
from placeto_policy.placer import descend
from scheduled_problems import K80_BYTES, QUICK, Given, problem_of

LACKS = 10**8  # bytes of the first device with both groups on it: a reward counts 0.2 s
COST = 1 + MEMORY_PENALTY * LACKS / K80_BYTES  # of both on it, where placements are ranked


class TightMemory:
    """Both groups on the first device take 1 s, and lack memory; apart they take 3 s, and fit."""

    def __init__(self, *, lacks_everywhere: bool = False) -> None:
        self.problem = problem_of(nx.empty_graph(2, create_using=nx.DiGraph))
        self._otherwise = K80_BYTES + 2 * LACKS if lacks_everywhere else 0

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        together = (placements == 0).all(axis=1)
        peak_memory = np.full((len(placements), 2), self._otherwise, np.int64)
        peak_memory[together, 0] = K80_BYTES + LACKS
        return EvaluationBatch(runtime=np.where(together, 1.0, 3.0), peak_memory=peak_memory)

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        batch, times = self.evaluate(placements), np.zeros(placements.shape)
        return ScheduleBatch(
            runtime=batch.runtime, peak_memory=batch.peak_memory, start=times, end=times + 1.0
        )


@pytest.mark.parametrize("starts", [[(0, 0), (0, 1)], [(0, 1), (0, 0)]])
@pytest.mark.parametrize("lacks_everywhere", [False, True])
def test_of_what_others_place_that_is_kept_which_fits_and_then_the_cheapest(
    starts: list[tuple[int, int]], lacks_everywhere: bool
) -> None:
    evaluator = TightMemory(lacks_everywhere=lacks_everywhere)
    placer = PlacetoPlacer(
        policy=PlacementPolicy(2, QUICK),
        starts=[Given(np.array(placement, np.int32)) for placement in starts],
    )
    result = placer.place(evaluator.problem, evaluator)
    assert result.fits(evaluator.problem.cluster) == (not lacks_everywhere)
    assert (result.placement == 0).all() == lacks_everywhere
    if not lacks_everywhere:
        assert (result.runtime, result.curve[1, 1]) == (3.0, 3.0)
        assert result.curve[0, 1] == pytest.approx(COST if starts[0] == (0, 0) else 3.0)


def test_a_round_of_descent_into_too_little_memory_is_not_kept() -> None:
    evaluator = TightMemory()
    placer = PlacetoPlacer(
        policy=PlacementPolicy(2, QUICK),
        starts=[Given(np.array([0, 1], np.int32))],
        refinement_rounds=3,
    )
    result = placer.place(evaluator.problem, evaluator)
    # A round from there goes where the cost is least, which is where memory lacks.
    environment = PlacementEnvironment(evaluator)
    environment.reset(num_episodes=1, start=np.array([0, 1]))
    descend(environment)
    assert environment.placement.tolist() == [[0, 0]]
    # Rewards are those of the paper, in seconds for each byte.
    assert environment.costs_of(environment.placement).tolist() == pytest.approx([1.2])
    assert (result.runtime, environment.best.cost) == (3.0, 3.0)
    assert result.fits(evaluator.problem.cluster)


@pytest.mark.parametrize("reward", ["intermediate", "terminal", "counterfactual"])
def test_a_training_keeps_what_fits(reward: str) -> None:
    evaluator = TightMemory()
    settings = Settings(reward=reward, updates=3, message_rounds=1, hidden_units=8)  # type: ignore[arg-type]
    trainer = Trainer([evaluator], settings)
    for _ in range(3):
        trainer.update()
    best = trainer.best[0]
    assert best is not None
    assert (best.lacks_memory, best.cost) == (False, 3.0)
    placed = PlacetoPlacer(max_evaluations=200, settings=settings, num_rollouts=8)
    result = placed.place(evaluator.problem, evaluator)
    assert result.runtime == 3.0
    assert result.fits(evaluator.problem.cluster)


def test_a_resumed_training_has_not_forgotten_that_its_best_placement_lacks_memory(
    tmp_path: Path,
) -> None:
    first = Trainer([TightMemory(lacks_everywhere=True)], QUICK)
    first.update()
    save_training(first, tmp_path / "training.safetensors")
    again = resume_training(tmp_path / "training.safetensors", [TightMemory()])
    assert again.best[0] is not None
    assert again.best[0].lacks_memory
    assert again.best[0].cost == pytest.approx(1 + 2 * (COST - 1))
    again.update()  # now there is room if groups are apart
    assert again.best[0] is not None
    assert (again.best[0].lacks_memory, again.best[0].cost) == (False, 3.0)


class NothingRuns(TightMemory):
    """Nothing fits, and on the first device nothing runs, which counts as 20 s."""

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        runtime = np.where((placements == 0).all(axis=1), np.inf, 3.0)
        peak_memory = np.full((len(placements), 2), K80_BYTES + 500 * LACKS, np.int64)
        return EvaluationBatch(runtime=runtime, peak_memory=peak_memory)


def test_what_cannot_run_is_last(tmp_path: Path) -> None:
    evaluator = NothingRuns()
    environment = PlacementEnvironment(evaluator)
    assert environment.costs_of(np.array([[0, 0]], np.int32)).tolist() == [20.0]
    assert environment.best.placement.tolist() == [0, 0]
    assert environment.costs_of(np.array([[0, 1]], np.int32)).tolist() == [103.0]
    assert environment.best.placement.tolist() == [0, 1]
    trainer = Trainer([evaluator], QUICK)
    trainer.best = [Best(True, np.inf, np.zeros(2, np.int32))]
    save_training(trainer, tmp_path / "training.safetensors")
    assert resume_training(tmp_path / "training.safetensors", [evaluator]).best == [None]
