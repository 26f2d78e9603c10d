"""An evaluator that counts changes no search; and what a process does once is done before."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from placeto.placing import place_problem as place_problem_module
from placeto.placing.evaluators import STEP
from placeto.placing.place_problem import PlaceSettings, place_problem, run_placer
from placeto.placing.placers import make_placer, placer_spec
from placeto.progress import PlainProgress
from placeto.texts import seconds_text
from placeto_baselines import (
    BaselineError,
    CriticalPathPlacer,
    Limits,
    LocalSearch,
    MultilevelSearch,
    PortfolioSearch,
    RandomPlacer,
    SingleDevice,
    StoppedSearchError,
    placement_trials,
)
from placeto_baselines.placement_trials import SpentError, WatchedEvaluator, evaluated
from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    PlacementProblem,
    PlacementResult,
    Placer,
    SchedulingEvaluator,
    from_networkx,
    parse_cluster,
)
from placeto_policy.example import two_chains
from placeto_simulator import Simulator


class FullThenRoomy:
    """Takes 1 s on a device that is an eighth too small, 9 s on the other, where it fits."""

    def __init__(self) -> None:
        problem = ladder()
        small = replace(problem.cluster.devices[0], memory_bytes=8 * 10**9)
        devices = (small, *problem.cluster.devices[1:])
        self.problem = replace(problem, cluster=replace(problem.cluster, devices=devices))

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        elsewhere = placements.any(axis=1)
        peaks = np.zeros((len(placements), self.problem.num_devices), np.int64)
        peaks[~elsewhere, 0] = 9 * 10**9
        return EvaluationBatch(runtime=np.where(elsewhere, 9.0, 1.0), peak_memory=peaks)


def test_the_best_until_a_limit_is_one_that_fits_whatever_it_costs() -> None:
    evaluator = FullThenRoomy()
    watched = WatchedEvaluator(evaluator, lambda _best: None, Limits(max_evaluations=3))
    both = np.zeros((4, evaluator.problem.num_groups), np.int32)
    both[1] = 1
    with pytest.raises(SpentError):
        watched.evaluate(both)
    result = watched.result()
    assert (result.runtime, result.evaluations) == (9.0, 3)
    assert result.placement.tolist() == both[1].tolist()
    assert result.curve[-1].tolist() == [3.0, 9.0]


def test_a_curve_ends_with_what_a_placer_returns_if_it_alone_fits() -> None:
    evaluator = FullThenRoomy()
    watched = WatchedEvaluator(evaluator, lambda _best: None)
    rows = np.array([[0], [1]], np.int32).repeat(watched.problem.num_groups, axis=1)
    watched.evaluate(rows[:1])
    curve = watched.counted(evaluated(evaluator, rows[1])).curve
    assert curve.tolist() == [[1.0, 4.75], [1.0, 9.0]]


def test_what_comes_first_is_evaluated_however_short_the_time() -> None:
    problem = ladder()
    simulator = Simulator(problem, num_threads=1)
    watched = WatchedEvaluator(simulator, lambda _best: None, Limits(seconds=1e-9))
    rows = np.zeros((2, problem.num_groups), np.int32)
    runtime = watched.evaluate(rows).runtime[0]
    with pytest.raises(SpentError):
        watched.evaluate(rows)
    assert (watched.result().runtime, watched.result().evaluations) == (runtime, 2)


@pytest.mark.parametrize(
    "placer",
    [MultilevelSearch(max_evaluations=300), LocalSearch(max_evaluations=300), RandomPlacer(300)],
)
def test_a_curve_has_the_evaluations_that_the_search_itself_counts(placer: Placer) -> None:
    """So that a search that is stopped tells after how many it had found its best."""
    watched = WatchedEvaluator(Simulator(ladder()), lambda _best: None)
    result = placer.place(watched.problem, watched, seed=1)
    alone = placer.place(watched.problem, Simulator(watched.problem), seed=1)
    assert result.placement.tolist() == alone.placement.tolist()
    best = watched.result()
    assert (best.evaluations, best.runtime) == (result.evaluations, result.runtime)
    assert 1 < result.curve[-2, 0] < 300
    assert best.curve.tolist() == result.curve.tolist()


def ladder() -> PlacementProblem:
    grid = nx.grid_2d_graph(3, 6, create_using=nx.DiGraph)
    edges = [(a, b) for a, b in grid.edges if a < b]
    graph = from_networkx(nx.relabel_nodes(nx.DiGraph(edges), {n: f"op{n}" for n in grid}))
    seconds = np.linspace(0.01, 0.02, graph.num_ops)
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.stack([seconds, seconds], axis=1),
    )


def test_an_evaluator_that_fails_ends_every_part_of_the_search_alike() -> None:
    """Each call is the last one once: on devices alone, in the chain, in a start, and after it."""
    simulator = Simulator(ladder(), num_threads=1)
    for last in range(30):
        calls = iter(range(last))

        def evaluate(placements: NDArray[np.int32], calls: Any = calls) -> EvaluationBatch:
            if next(calls, None) is None:
                raise BaselineError("the device is gone")
            return simulator.evaluate(placements)

        evaluator = SimpleNamespace(problem=simulator.problem, evaluate=evaluate)
        with pytest.raises(BaselineError, match=r"^(evaluator: )?the device is gone") as caught:
            PortfolioSearch(max_evaluations=50_000).place(evaluator.problem, evaluator)
        assert isinstance(caught.value, StoppedSearchError) == (last > 0)
        if isinstance(caught.value, StoppedSearchError):
            result = caught.value.result
            assert str(caught.value).endswith(f" gone, after {result.evaluations} placements")
            assert simulator.evaluate(result.placement[None]).runtime[0] == result.runtime


def test_schedules_are_passed_on_and_counted() -> None:
    problem = ladder()
    watched = WatchedEvaluator(Simulator(problem), lambda _best: None)
    assert isinstance(watched, SchedulingEvaluator)
    alone = SimpleNamespace(problem=problem, evaluate=Simulator(problem).evaluate)
    assert not isinstance(WatchedEvaluator(alone, print), SchedulingEvaluator)
    placements = np.zeros((2, problem.num_groups), np.int32)
    assert watched.schedule(placements) == Simulator(problem).schedule(placements)
    assert watched.evaluations == 2


def test_reports_come_now_and_then(monkeypatch: object) -> None:
    problem = ladder()
    reports: list[tuple[int, float]] = []
    now = [0.0]
    monkeypatch.setattr(placement_trials.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    watched = WatchedEvaluator(
        Simulator(problem), lambda best: reports.append((best.evaluations, best.runtime))
    )
    for _ in range(10):
        now[0] += 0.09
        watched.evaluate(np.zeros((2, problem.num_groups), np.int32))
    runtime = Simulator(problem).runtimes(np.zeros((1, problem.num_groups), np.int32))[0]
    assert reports == [(6, runtime), (12, runtime), (18, runtime)]


def test_a_training_tells_how_many_updates_are_left(monkeypatch: object) -> None:
    lines: list[str] = []
    monkeypatch.setattr(placement_trials, "SECONDS_BETWEEN_REPORTS", 0.0)  # type: ignore[attr-defined]
    problem = ladder()
    budget = 4 * 8 * (1 + 2 * problem.num_groups) + 1 + problem.num_groups  # and a validation
    limits = Limits(budget, strict=False)
    result = run_placer(placer_spec("placeto"), problem, lines.append, limits=limits)
    reports = [line for line in lines if "evaluated" in line]
    assert f"of at most {budget:,}" in reports[0]
    counts = [re.search(r"update (\d) of 4, [\d:]+ left", line) for line in lines]
    assert sorted({match[1] for match in counts if match}) == ["1", "2", "3", "4"]
    assert f"best {seconds_text(result.runtime)}, evaluated" in reports[-1]


class Interrupted:
    """Evaluates everything on each of some devices; then comes Ctrl-C."""

    name = "interrupted"

    def __init__(self, *devices: int) -> None:
        self.devices = devices

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        for device in self.devices:
            evaluator.evaluate(np.full((1, problem.num_groups), device, np.int32))
        raise KeyboardInterrupt


def test_an_interrupt_leaves_the_best_that_a_placer_evaluated() -> None:
    problem, progress = ladder(), PlainProgress(None)
    settings = PlaceSettings(placer=Interrupted(1, 0))
    placed = place_problem(problem, settings, progress)
    assert placed.result.evaluations == 2
    assert placed.result.placement.tolist() == [1] * problem.num_groups  # the first of equal ones
    with pytest.raises(KeyboardInterrupt):  # nothing was evaluated
        place_problem(problem, replace(settings, placer=Interrupted()), progress)
    with pytest.raises(KeyboardInterrupt):  # a trial that was stopped has no result
        run_placer(placer_spec(Interrupted(1)), problem, lambda _: None)


@pytest.mark.parametrize("placer", [None, "single"])
def test_progress_tells_the_runtime_that_the_result_has(
    placer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no placement fits: its cost, with a penalty for memory, is another number."""
    problem, lines = ladder(), list[str]()
    devices = tuple(replace(device, memory_bytes=1) for device in problem.cluster.devices)
    large = np.full(problem.graph.num_ops, 10**9)
    tight = replace(
        problem,
        cluster=replace(problem.cluster, devices=devices),
        graph=replace(problem.graph, parameter_bytes=large),
    )
    monkeypatch.setattr(placement_trials, "SECONDS_BETWEEN_REPORTS", 0.0)
    progress = PlainProgress(None)
    monkeypatch.setattr(progress, "update", lines.append)
    result = place_problem(
        tight, PlaceSettings(placer=placer, max_evaluations=100), progress
    ).result
    last = [line for line in lines if "evaluated" in line][-1]
    assert f"best {seconds_text(result.runtime)}, out of memory, evaluated" in last


def test_the_search_is_the_same_by_its_name_as_without_one() -> None:
    problem, progress = ladder(), PlainProgress(None)
    without_bound = replace(STEP, simulates=False)  # which ends the search where it is reached
    usual = PlaceSettings(max_evaluations=500, seed=3, evaluator=without_bound)
    named = replace(usual, placer="multilevel")
    results = [place_problem(problem, settings, progress).result for settings in (usual, named)]
    spec, limits = placer_spec("multilevel"), Limits(500)
    results.append(run_placer(spec, problem, progress.update, seed=3, limits=limits))
    assert len({result.evaluations for result in results}) == 1
    assert len({tuple(result.placement.tolist()) for result in results}) == 1


@pytest.mark.parametrize(
    "name", ["LocalSearch", "MultilevelSearch", "PortfolioSearch", "RandomPlacer", "RnnPlacer"]
)
def test_a_limit_reaches_classes_of_the_baselines_that_are_named(name: str) -> None:
    spec = placer_spec(f"placeto_baselines:{name}")
    placer = spec.make(ladder(), Limits(max_evaluations=40), None)
    evaluator = Simulator(ladder())
    result = placer.place(evaluator.problem, evaluator, seed=1)
    assert 30 <= result.evaluations <= 40


# Placed by each placer after it was warmed up: nothing may be imported or compiled any more.
PLACE_WARM = """
import sys
from numba.core.event import install_recorder
from placeto_policy.example import two_chains
from placeto_simulator import Simulator
from placeto.placing.placers import make_placer
from placeto.placing.placers import warm_up

problem = two_chains(5, 3)
for name in sys.argv[1:]:
    warm_up(name)
    placer, evaluator = make_placer(name, problem, 400), Simulator(problem)
    before = set(sys.modules)
    with install_recorder("numba:compile") as compiled:
        placer.place(problem, evaluator)
    print(name, sorted(set(sys.modules) - before), len(compiled.buffer))
"""


@pytest.mark.slow
def test_nothing_is_left_to_import_or_compile() -> None:
    names = ["single", "scotch", "metis", "m-sct", "local-search", "multilevel", "rnn", "placeto"]
    command = [sys.executable, "-c", PLACE_WARM, *names]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"{name} [] 0" for name in names]


def test_placers_and_evaluators_are_warmed_up_before_seconds_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def noted(name: str, placer: type[Any]) -> None:
        place = placer.place

        def noting(self: Any, *arguments: Any, **options: Any) -> PlacementResult:
            happened.append(f"{name} with seed {options['seed']}")
            result: PlacementResult = place(self, *arguments, **options)
            return result

        monkeypatch.setattr(placer, "place", noting)

    noted("places", SingleDevice)
    noted("searches", MultilevelSearch)
    monkeypatch.setattr(
        place_problem_module, "warm_up", lambda name, _: happened.append(f"warms {name}")
    )
    monkeypatch.setattr(
        place_problem_module, "warm_up_evaluator", lambda _: happened.append("warms")
    )
    run_placer(placer_spec("single"), two_chains(), lambda _: None, seed=3)
    assert happened == ["warms single", "places with seed 3"]
    for num_devices in (1, 3):  # of three, a search on a pair comes first
        del happened[:]
        settings = PlaceSettings(max_evaluations=1000, seed=5)
        place_problem(two_chains(2, num_devices), settings, PlainProgress(None))
        assert happened == ["warms", *["searches with seed 5"] * (1 if num_devices == 1 else 2)]


@pytest.mark.parametrize("cpu_seconds", [0.05, 0.12])
def test_the_bundled_policy_is_never_slower_than_one_device(cpu_seconds: float) -> None:
    forks = nx.DiGraph()
    for arm in range(4):
        nx.add_path(forks, ["begin", f"{arm}-0", f"{arm}-1", f"{arm}-2", "end"])
    nx.set_edge_attributes(forks, 10**9, "bytes")  # slower to send than an op
    graph = from_networkx(forks)
    seconds = np.tile([cpu_seconds, 0.1, 0.1], (graph.num_ops, 1))
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("1xcpu+2xk80"), compute_time=seconds
    )
    simulator = Simulator(problem, 1)
    alone = np.repeat(np.arange(3, dtype=np.int32)[:, None], problem.num_groups, axis=1)
    result = make_placer("pretrained", problem).place(problem, simulator)
    assert result.runtime <= simulator.runtimes(alone).min()
    assert result.runtime <= CriticalPathPlacer().place(problem, simulator).runtime
