"""Searches where few of all placements fit, against all placements, in two units."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from baseline_problems import gpus
from placeto_baselines import LocalSearch, MultilevelSearch
from placeto_graphs import EvaluationBatch, PlacementProblem, PlacementResult, Placer

NUM_OPS, NUM_DEVICES = 9, 3
ALL_PLACEMENTS = np.array(list(product(range(NUM_DEVICES), repeat=NUM_OPS)), np.int32)
SHARE_THAT_FITS = 0.005
SECONDS_AND_BYTES, MILLISECONDS_AND_MEGABYTES = (1.0, 10**6), (1000.0, 1)


class ScarceMemory:
    """The work of the busiest device and the transfers between ops, in some units."""

    def __init__(self, seed: int, time_unit: float, memory_unit: int) -> None:
        generator = np.random.default_rng(seed)
        self.work = time_unit * generator.integers(64, 640, (NUM_OPS, NUM_DEVICES)) / 64
        self.transfer = time_unit * generator.integers(1, 64, NUM_OPS - 1) / 64
        self.megabytes = generator.integers(100, 1000, NUM_OPS)
        self.memory_unit = memory_unit
        # The largest excess of each placement decides how much memory there is.
        shares = generator.dirichlet([20.0] * NUM_DEVICES)
        excess = (self.held(ALL_PLACEMENTS) / shares).max(axis=1)
        memory = np.quantile(excess, SHARE_THAT_FITS) * shares
        self.problem = self._problem(np.ceil(memory).astype(np.int64) * memory_unit)

    def _problem(self, memory: NDArray[np.int64]) -> PlacementProblem:
        problem = gpus(self.work, [(op, op + 1) for op in range(NUM_OPS - 1)])
        devices = tuple(
            replace(device, memory_bytes=int(size))
            for device, size in zip(problem.cluster.devices, memory, strict=True)
        )
        return replace(problem, cluster=replace(problem.cluster, devices=devices))

    def held(self, placements: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return int64[B, D], the megabytes on each device."""
        return np.stack(
            [((placements == d) * self.megabytes).sum(axis=1) for d in range(NUM_DEVICES)], axis=1
        )

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        busy = np.stack(
            [((placements == d) * self.work[:, d]).sum(axis=1) for d in range(NUM_DEVICES)], axis=1
        )
        is_cut = placements[:, 1:] != placements[:, :-1]
        return EvaluationBatch(
            runtime=busy.max(axis=1) + (is_cut * self.transfer).sum(axis=1),
            peak_memory=self.held(placements) * self.memory_unit,
        )


@cache
def best_that_fits(seed: int) -> float:
    """Return the seconds of the fastest placement that fits, of all placements."""
    evaluator = ScarceMemory(seed, *SECONDS_AND_BYTES)
    batch = evaluator.evaluate(ALL_PLACEMENTS)
    fits = (batch.peak_memory <= evaluator.problem.cluster.memory_bytes).all(axis=1)
    assert 0 < fits.mean() < 0.01
    assert batch.runtime.min() < batch.runtime[fits].min()  # the fastest one does not fit
    return float(batch.runtime[fits].min())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("placer", [MultilevelSearch(max_evaluations=10_000), LocalSearch(10_000)])
def test_a_search_finds_one_of_few_placements_that_fit_in_any_unit(
    placer: Placer, seed: int
) -> None:
    results: list[PlacementResult] = []
    for time_unit, memory_unit in (SECONDS_AND_BYTES, MILLISECONDS_AND_MEGABYTES):
        evaluator = ScarceMemory(seed, time_unit, memory_unit)
        result = placer.place(evaluator.problem, evaluator, seed=seed)
        assert result.evaluations <= 10_000 < len(ALL_PLACEMENTS)
        assert result.fits(evaluator.problem.cluster)
        assert best_that_fits(seed) <= result.runtime / time_unit <= 1.3 * best_that_fits(seed)
        results.append(result)
    assert results[0].placement.tolist() == results[1].placement.tolist()
