"""One model of ``placeto models --check``, in a process of its own: all numbers of its row."""

import json
import resource
import sys
import time
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_baselines import LocalSearch
from placeto_graphs import DEFAULT_RULES
from placeto_graphs import EvaluationBatch
from placeto_graphs import OpGraph
from placeto_graphs import PlacementProblem
from placeto_graphs import ScheduleBatch
from placeto_graphs import memory_penalised_runtime
from placeto_graphs import parse_cluster
from placeto_simulator import Simulator
from placeto_tools.errors import one_line
from placeto_tools.problems import make_problem
from placeto_tools.sources import LIBRARY
from placeto_tools.sources import Source
from placeto_tools.sources import parse_sizes
from placeto_tools.watching import WatchedEvaluator

CLUSTER = "4xv100"
MOST_EVALUATIONS = 10**7


class _TimeIsUp(Exception):  # noqa: N818 (it is no error)
    """A search had its time."""


class TimedEvaluator(WatchedEvaluator):
    """Ends a search after some seconds.

    Parameters
    ----------
    evaluator
        The one that is asked.
    seconds
        How long.

    Attributes
    ----------
    runtime : float
        Seconds of a step of the best placement so far, of which `best` is the cost: that is more
        if its memory does not suffice.
    """

    def __init__(self, evaluator: Simulator, seconds: float) -> None:
        super().__init__(evaluator, lambda _evaluations, _best: None)
        self._end = time.monotonic() + seconds
        self.runtime = np.inf

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return what each placement costs, while there is time."""
        self._check()
        return super().evaluate(placements)

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        """Return what each placement costs, and when groups are at work, while there is time."""
        self._check()
        return super().schedule(placements)

    def seen(self, batch: EvaluationBatch) -> EvaluationBatch:
        """Remember the runtime of the best placement."""
        before = self.best
        super().seen(batch)
        if self.best < before:
            costs = memory_penalised_runtime(batch, self._limits)
            self.runtime = float(batch.runtime[costs.argmin()])
        return batch

    def _check(self) -> None:
        if self.evaluations and time.monotonic() > self._end:
            raise _TimeIsUp


def searched(problem: PlacementProblem, seconds: float) -> tuple[float, bool]:
    """Return the runtime of what local search finds in some seconds, and whether it fits."""
    evaluator = TimedEvaluator(Simulator(problem), seconds)
    with suppress(_TimeIsUp):
        LocalSearch(MOST_EVALUATIONS).place(problem, evaluator, seed=0)
    return evaluator.runtime, evaluator.runtime == evaluator.best


def check(source: str, settings: list[list[str]], seconds: float) -> dict[str, Any]:
    """Return the numbers of a model.

    Parameters
    ----------
    source
        As for ``placeto build``: a registered model, or one of a library.
    settings
        Names and values, as for its ``--set``.
    seconds
        How long is searched.
    """
    from placeto_workloads import MODELS  # noqa: PLC0415 (torch takes seconds to import)
    from placeto_workloads import capture_step  # noqa: PLC0415
    from placeto_workloads import library_step  # noqa: PLC0415
    from placeto_workloads import training_step  # noqa: PLC0415

    of_library = LIBRARY.fullmatch(source) is not None
    make = library_step if of_library else training_step
    step = make(source, **parse_sizes([(name, value) for name, value in settings]))
    rules = DEFAULT_RULES if of_library else MODELS[source].colocation_rules
    began = time.monotonic()
    graph = capture_step(step)
    taken = time.monotonic() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    weights = list(step.model.parameters())
    report = {
        "ops": graph.num_ops,
        "parameters": sum(weight.numel() for weight in weights),
        "flops": float(graph.flops.sum()),
        "seconds": taken,
        "memory": memory,
        "weight_bytes": sum(weight.nbytes for weight in weights),
        "captured_weight_bytes": _weight_bytes(graph),
    }
    problem = make_problem(Source(source, graph, rules=rules), parse_cluster(CLUSTER))
    alone = Simulator(problem).evaluate(np.zeros((1, problem.num_groups), np.int32))
    runtime, fits = searched(problem, seconds)
    return report | {
        "groups": problem.num_groups,
        "one_device": float(alone.runtime[0]),
        "one_device_fits": int(alone.peak_memory[0, 0]) <= problem.cluster.devices[0].memory_bytes,
        "searched": runtime,
        "searched_fits": fits,
    }


def _weight_bytes(graph: OpGraph) -> int:
    """Return the bytes of the weights of a graph, without what the optimizer keeps."""
    is_weight = np.array([op_type == "parameter" for op_type in graph.op_types])
    return int(graph.tensor_bytes[is_weight[graph.tensor_producer]].sum())


def main() -> None:
    """Check the model that standard input names; print its numbers, or what went wrong."""
    source, settings, seconds = json.load(sys.stdin)
    warnings.simplefilter("ignore")  # of costs that are not known: the table is of models
    try:
        report = check(source, settings, seconds)
    except Exception as error:
        report = {"error": one_line(error)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
