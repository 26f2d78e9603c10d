"""Evaluators by name, which return the costs of placements, and those of users."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.own import EVALUATOR_PLUGINS, checked_evaluator, is_own, own_class, own_object
from placeto.problems.sources import OF_A_PIPELINE, OF_A_STEP
from placeto.texts import SECONDS, cost_text
from placeto_baselines import lower_bound
from placeto_baselines.search.chains import MOST_EVALUATIONS
from placeto_graphs import SCHEDULES, EvaluationBatch, Evaluator, PlacementProblem, scheduled
from placeto_graphs.errors import not_among

ONE_F_ONE_B = SCHEDULES[1]  # whose waits depend on the stages
# With the waits of each, which take up to twenty times as long as its evaluation: five seconds.
MOST_SCHEDULED_CHAINS, OPS_OF_SCHEDULED_CHAINS = 400, 1_250_000


@dataclass(frozen=True)
class EvaluatorSpec:
    """An evaluator that has a name in the command."""

    name: str
    objective: str  # what it prices, as the head of a column
    # Of a problem, and the number of threads that it may use; None for one on each core
    make: Callable[[PlacementProblem, int | None], Evaluator]
    unit: str = SECONDS
    modules: tuple[str, ...] = ()  # of one of a user's own: modules whose files decide what it does
    simulates: bool = False  # a step; for that there are bounds and policies
    schedule: str | None = None  # of micro-batches: its waits are those of a placement's stages

    def text(self, cost: float) -> str:
        """Return a cost with its unit."""
        return cost_text(cost, self.unit)

    def scheduled(
        self, problem: PlacementProblem, placement: NDArray[np.int32]
    ) -> PlacementProblem:
        """Return the problem with the waits of the schedule, if there is one."""
        return scheduled(problem, self.schedule, placement) if self.schedule else problem

    def costs(self, problem: PlacementProblem, placement: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of one placement, int32[G], with the waits of its own stages."""
        evaluator = self.make(self.scheduled(problem, placement), 1)
        return evaluator.evaluate(placement[None])

    def of_stages(self, problem: PlacementProblem) -> Evaluator:
        """Return an evaluator of placements, each with the waits of its own stages."""
        if self.schedule == ONE_F_ONE_B:
            return ScheduledEvaluator(problem, self)
        anywhere = np.zeros(problem.num_groups, np.int32)  # all placements have the same waits
        return self.make(self.scheduled(problem, anywhere), None)

    def num_chains(self, problem: PlacementProblem) -> int:
        """Return the number of chains of layers that a search may evaluate with their waits."""
        if self.schedule != ONE_F_ONE_B:
            return MOST_EVALUATIONS
        return min(MOST_SCHEDULED_CHAINS, OPS_OF_SCHEDULED_CHAINS // problem.graph.num_ops)

    def lower_bound(self, problem: PlacementProblem) -> float:
        """Return a lower bound of the costs of all placements; 0 if none is known."""
        return lower_bound(problem) if self.simulates else 0.0


class ScheduledEvaluator:
    """Returns the costs of placements, each with the waits of its own stages."""

    def __init__(self, problem: PlacementProblem, spec: EvaluatorSpec) -> None:
        self.problem, self.spec = problem, spec

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the runtime and memory of each placement."""
        costs = [self.spec.costs(self.problem, placement) for placement in placements]
        return EvaluationBatch(
            runtime=np.concatenate([batch.runtime for batch in costs]),
            peak_memory=np.concatenate([batch.peak_memory for batch in costs]),
        )


def _simulator(problem: PlacementProblem, num_threads: int | None) -> Evaluator:
    from placeto_simulator import Simulator  # noqa: PLC0415 (Numba takes a second to import)

    return Simulator(problem, num_threads)


def _throughput(problem: PlacementProblem, _num_threads: int | None) -> Evaluator:
    from placeto_simulator import ThroughputEvaluator  # noqa: PLC0415

    return ThroughputEvaluator(problem)


STEP = EvaluatorSpec(OF_A_STEP, "runtime", _simulator, simulates=True)
THROUGHPUT = EvaluatorSpec(OF_A_PIPELINE, "time per sample", _throughput)
EVALUATORS = {spec.name: spec for spec in (STEP, THROUGHPUT)}

# A step by 1F1B, in which each placement has the waits of its own stages
_STEP_BY_1F1B = replace(STEP, schedule=ONE_F_ONE_B)
STEP_OF_STAGES = replace(
    _STEP_BY_1F1B,
    name=f"{STEP.name}-{ONE_F_ONE_B}",
    objective=f"{STEP.objective}, {ONE_F_ONE_B}",
    make=lambda problem, _threads: ScheduledEvaluator(problem, _STEP_BY_1F1B),
)


def evaluator_spec(evaluator: str | Callable[[PlacementProblem], Evaluator]) -> EvaluatorSpec:
    """Return an evaluator of `EVALUATORS`, or one of the user: a class, or a name of one."""
    if not isinstance(evaluator, str):
        user_class = own_object(evaluator)
    elif evaluator in EVALUATORS:
        return EVALUATORS[evaluator]
    elif evaluator == STEP_OF_STAGES.name:
        return STEP_OF_STAGES
    elif is_own(evaluator, EVALUATOR_PLUGINS):
        user_class = own_class(evaluator, EVALUATOR_PLUGINS)
    else:
        expected = not_among(evaluator, list(EVALUATORS))
        raise InputError(f"objective: {expected}; one of your own is package.module:Class")

    def make(problem: PlacementProblem, _threads: int | None) -> Evaluator:
        return checked_evaluator(user_class.text, user_class.make(problem), problem)

    objective = getattr(user_class.factory, "objective", None)
    unit = getattr(user_class.factory, "unit", None)
    return EvaluatorSpec(
        name=user_class.text,
        objective=objective if isinstance(objective, str) else user_class.text,
        make=make,
        unit=unit if isinstance(unit, str) else SECONDS,
        modules=user_class.modules,
    )
