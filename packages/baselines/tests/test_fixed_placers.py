import re
from dataclasses import replace

import numpy as np
import pytest

from baseline_problems import cluster, gpus, two_chains
from placeto_baselines import BaselineError, CpuOnly, RandomPlacer, SingleDevice
from plain_evaluator import PlainEvaluator


@pytest.mark.parametrize("cpu", ["cpu", "cpu-ddr5-2ch"])
def test_the_single_device_is_the_fastest_gpu(cpu: str) -> None:
    compute_time = np.tile([0.1, 0.5, 0.4, 0.6], (4, 1))
    problem = two_chains(cluster=cluster([cpu, "k80", "v100", "k80"]), compute_time=compute_time)
    result = SingleDevice().place(problem, PlainEvaluator(problem))
    assert result.placement.tolist() == [2, 2, 2, 2]
    assert result.runtime == pytest.approx(1.6)
    assert result.evaluations == 3


def test_the_single_device_is_one_that_holds_the_model_if_there_is_one() -> None:
    problem = gpus([[0.1, 0.5]] * 2, [(0, 1)], parameter_bytes=[10**9 // 2] * 2)
    small = replace(problem.cluster.devices[0], memory_bytes=5)
    on = replace(problem.cluster, devices=(small, problem.cluster.devices[1]))
    problem = replace(problem, cluster=on)
    result = SingleDevice().place(problem, PlainEvaluator(problem))
    assert result.placement.tolist() == [1, 1]
    assert result.fits(problem.cluster)


def test_cpu_only_takes_the_fastest_cpu() -> None:
    compute_time = np.tile([3.0, 2.0, 0.1], (4, 1))
    compute_time[3, :2] = np.inf
    problem = two_chains(cluster=cluster(["cpu", "cpu-ddr4-8ch", "k80"]), compute_time=compute_time)
    assert CpuOnly().place(problem, PlainEvaluator(problem)).placement.tolist() == [1, 1, 1, 2]


def test_cpu_only_needs_a_cpu() -> None:
    problem = two_chains(cluster=cluster(["k80", "v100", "k80"]))
    message = "cluster: expected a device of the kind 'cpu', got 'k80', 'v100'"
    with pytest.raises(BaselineError, match=re.escape(message)):
        CpuOnly().place(problem, PlainEvaluator(problem))


def test_random_placements_are_uniform_over_the_devices_that_can_run_a_group() -> None:
    compute_time = np.ones((4, 3))
    compute_time[0, 1] = np.inf
    problem = two_chains(compute_time=compute_time)
    drawn: list[list[int]] = []

    class Recorder(PlainEvaluator):
        def look_up(self, placement: tuple[int, ...]) -> tuple[float, list[int]]:
            drawn.append(list(placement))
            return super().look_up(placement)

    result = RandomPlacer(samples=3000).place(problem, Recorder(problem))
    assert result.evaluations == len(drawn) == 3000
    counts = np.array([np.bincount(column, minlength=3) for column in np.array(drawn).T])
    assert counts[0, 1] == 0
    assert counts[0, [0, 2]] == pytest.approx(1500, abs=120)  # four standard deviations
    assert counts[1:] == pytest.approx(1000, abs=110)
    assert result.runtime == 2.0


def test_random_placement_needs_a_sample() -> None:
    with pytest.raises(BaselineError, match="samples: expected at least 1, got 0"):
        RandomPlacer(samples=0)
