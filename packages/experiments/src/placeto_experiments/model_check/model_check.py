"""One model of ``placeto models --check``, in a process of its own: all numbers of its row."""

import json
import resource
import sys
import time
import warnings
from typing import Any

import numpy as np

from placeto.errors import one_line
from placeto.placing.placements import search_problem
from placeto.problems.making import make_problem
from placeto.problems.sources import LIBRARY, Source, parse_sizes
from placeto_baselines import MultilevelSearch
from placeto_graphs import DEFAULT_RULES, OpGraph, PlacementProblem, parse_cluster
from placeto_simulator import Simulator

CLUSTER = "4xv100"


def searched(problem: PlacementProblem, seconds: float) -> tuple[float, bool]:
    """Return the runtime of what a search from coarse to fine finds, and whether it fits."""
    finest = search_problem(problem)
    found = MultilevelSearch(seconds).place(finest, Simulator(finest), seed=0)
    return found.runtime, found.fits(problem.cluster)


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
    from placeto import capture_step  # noqa: PLC0415
    from placeto_workloads import MODELS, library_step, training_step  # noqa: PLC0415

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
