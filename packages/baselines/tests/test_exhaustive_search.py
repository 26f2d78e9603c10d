import re

import numpy as np
import pytest

from baseline_problems import cluster, op_graph, problem_of, two_chains
from placeto_baselines import BaselineError, exhaustive_search
from plain_evaluator import PlainEvaluator


def test_every_placement_that_can_run_is_tried_once() -> None:
    compute_time = np.ones((4, 3))
    compute_time[0, 1] = np.inf
    problem = two_chains(compute_time=compute_time)
    evaluator = PlainEvaluator(problem)
    result = exhaustive_search(problem, evaluator)
    assert result.evaluations == evaluator.evaluated == len(evaluator.known) == 2 * 3**3
    assert result.runtime == min(runtime for runtime, _ in evaluator.known.values())


def test_a_placement_that_fits_is_better_than_a_faster_one_that_does_not() -> None:
    graph = op_graph(2, [], parameter_bytes=np.full(2, 10**9))
    on = cluster(["k80", "k80"], memory=10**9)
    problem = problem_of(graph, on, np.array([[0.1, 1.0], [0.1, 1.0]]))
    result = exhaustive_search(problem, PlainEvaluator(problem))
    assert sorted(result.placement.tolist()) == [0, 1]
    assert result.fits(on)


def test_too_many_placements_are_refused() -> None:
    problem = two_chains()
    assert exhaustive_search(problem, PlainEvaluator(problem), max_placements=81).runtime == 1.0
    message = "expected at most 80 placements to try, got 81 (4 groups on 3 devices)"
    with pytest.raises(BaselineError, match=re.escape(message)):
        exhaustive_search(problem, PlainEvaluator(problem), max_placements=80)
    huge = problem_of(op_graph(20_000, []), cluster(["k80"] * 2), np.ones((20_000, 2)))
    with pytest.raises(BaselineError, match=r"got 10\^6021 \(20000 groups on 2 devices\)$"):
        exhaustive_search(huge, PlainEvaluator(huge))
