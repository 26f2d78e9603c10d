"""Multilevel search: what it evaluates, when it ends, what it keeps."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from baseline_problems import cluster, gpus, random_problem, random_problems
from placeto_baselines import BaselineError, MultilevelSearch, StoppedSearchError, lower_bound
from placeto_baselines.search import multilevel_search
from placeto_baselines.search.multilevel_search import move_sets
from placeto_baselines.trials import Trials
from placeto_graphs import (
    EvaluationBatch,
    Moves,
    PlacementProblem,
    Walks,
    memory_penalised_runtime,
    plain_walk,
)
from plain_evaluator import PlainEvaluator


def ladder(num_rungs: int) -> PlacementProblem:
    """Return two chains with rungs between them, on two devices, each op a group."""
    edges = [(op, op + 2) for op in range(2 * num_rungs - 2)]
    edges += [(op, op + 1) for op in range(0, 2 * num_rungs, 2)]
    return gpus([1] * 2 * num_rungs, edges)


class BusiestDevice:
    """The groups of the fullest device, as seconds, and some more."""

    def __init__(
        self,
        problem: PlacementProblem,
        more: float = 10.0,
        before: Callable[[int], None] = lambda _evaluated: None,
    ) -> None:
        self.problem, self.more, self.before = problem, more, before
        self.seen: list[list[int]] = []

    def busy(self, placements: NDArray[np.int32]) -> NDArray[np.int64]:
        devices = range(self.problem.num_devices)
        return np.stack([(placements == device).sum(axis=1) for device in devices], axis=1)

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        self.before(len(self.seen))
        self.seen += placements.tolist()
        busy = self.busy(placements)
        return EvaluationBatch(
            runtime=busy.max(axis=1) + self.more, peak_memory=np.zeros_like(busy)
        )


class FullestDevice(BusiestDevice):
    """The same, with its groups as the critical ones."""

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        is_critical: NDArray[np.bool_] = placements == self.busy(placements).argmax(1)[:, None]
        return is_critical


class Round(NamedTuple):
    """A call of `walk`: the placements evaluated before it, its arguments, and its result."""

    evaluated: int
    placements: NDArray[np.int32]
    moves: Moves
    walks: Walks


class Walking(BusiestDevice):
    """The same, with walks in one call, which it keeps."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rounds: list[Round] = []

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        before, start = len(self.seen), placements.copy()
        walks = plain_walk(self, placements, moves)
        self.rounds.append(Round(before, start, moves, walks))
        return walks


class WalkingFullest(Walking, FullestDevice):
    """Both."""


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), evaluations=st.integers(1, 300))
def test_no_more_placements_are_evaluated_than_allowed(seed: int, evaluations: int) -> None:
    problem = random_problem(np.random.default_rng(seed), max_groups=20)
    evaluator = PlainEvaluator(problem)
    result = MultilevelSearch(evaluations=evaluations).place(problem, evaluator, seed=seed)
    assert result.evaluations == evaluator.evaluated <= evaluations
    batch = evaluator.evaluate(result.placement[None])
    assert batch.runtime[0] == result.runtime
    cost = memory_penalised_runtime(batch, problem.cluster.memory_bytes)[0]
    assert result.curve[-1].tolist() == [result.evaluations, cost]


def test_of_few_placements_all_are_evaluated_unless_a_bound_ends_it() -> None:
    for problem in random_problems(20, max_groups=4):
        evaluator = PlainEvaluator(problem)
        MultilevelSearch(evaluations=5000).place(problem, evaluator)
        runs = np.isfinite(problem.group_graph.compute_time)
        assert len(evaluator.known) == runs.sum(axis=1).prod()
    few, many = Walking(gpus([1] * 12), more=0.0), Walking(gpus([1] * 13))
    assert MultilevelSearch(evaluations=9000).place(few.problem, few).evaluations == 4098
    bounded = MultilevelSearch(evaluations=9000, bound=6.0)
    assert bounded.place(few.problem, few).evaluations == 2 + 1024
    MultilevelSearch(evaluations=9000).place(many.problem, many)
    assert many.rounds
    assert not few.rounds


def test_a_search_does_not_end_at_the_bound_with_what_does_not_fit() -> None:
    # 2 s and 4 s for the 2 GB that one device lacks, or 12 s on both
    slow = cluster(["k80"] * 2, memory=10**10, bandwidth=1e9)
    slow = replace(slow, latency=np.full((2, 2), 10.0))
    problem = replace(gpus([1, 1], [(0, 1)], parameter_bytes=[6 * 10**9] * 2), cluster=slow)
    assert lower_bound(problem) == pytest.approx(6.0)
    placer = MultilevelSearch(evaluations=100, bound=lower_bound(problem))
    result = placer.place(problem, PlainEvaluator(problem))
    assert result.fits(problem.cluster)
    assert result.runtime == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("plain", "walking"), [(BusiestDevice, Walking), (FullestDevice, WalkingFullest)]
)
def test_an_evaluator_that_walks_decides_what_any_other_one_decides(
    plain: type[BusiestDevice], walking: type[Walking]
) -> None:
    evaluators = plain(ladder(40)), walking(ladder(40))
    placer = MultilevelSearch(evaluations=1000)
    found = [placer.place(each.problem, each, seed=3) for each in evaluators]
    assert found[0].placement.tolist() == found[1].placement.tolist()
    np.testing.assert_array_equal(found[0].curve, found[1].curve)
    assert evaluators[1].rounds


@pytest.mark.parametrize(("evaluator", "share"), [(Walking, 0.0), (WalkingFullest, 0.6)])
def test_most_moves_are_critical_ones_if_the_evaluator_knows_critical_groups(
    evaluator: type[Walking], share: float
) -> None:
    listening = evaluator(ladder(150))
    MultilevelSearch(evaluations=1000).place(listening.problem, listening)
    is_critical = [each.moves.is_critical.ravel() for each in listening.rounds]
    assert np.concatenate(is_critical).mean() == pytest.approx(share, abs=0.05)
    edges = set(map(tuple, listening.problem.group_graph.edges.tolist()))
    both = edges | {(end, start) for start, end in edges}
    assert set(map(tuple, listening.rounds[0].moves.neighbours.tolist())) == both


def test_coarse_moves_take_the_groups_of_a_level_together() -> None:
    problem = ladder(60)
    compute_time = np.ones((120, 2))
    compute_time[7, 1] = np.inf
    problem = replace(problem, compute_time=compute_time)
    sets = move_sets(problem, coarsest=32)
    assert sets.sizes == (32, 64, 120)
    assert move_sets(problem.at_level(1)).sizes == (32, 64)
    for level, (size, first) in enumerate(zip(sets.sizes, sets.first_set.tolist(), strict=False)):
        for group in range(size):
            start, end = sets.first_member[first + group : first + group + 2]
            ops = np.flatnonzero(problem.levels[level].group_of == group).tolist()
            assert sets.members[start:end].tolist() == ops
            assert (sets.set_with[level][ops] == first + group).all()
            assert sets.allowed[first + group].tolist() == [True, 7 not in ops]
    search = multilevel_search._Search(
        MultilevelSearch(evaluations=9), Trials(problem, BusiestDevice(problem)), seed=0
    )
    placement = search.random_placement(0)
    coarse = problem.at_level(0)
    assert coarse.expand(coarse.placement_of_ops(placement)).tolist() == placement.tolist()
    assert set(placement.tolist()) == {0, 1}


def test_groups_of_a_layer_that_no_device_can_run_whole_move_alone() -> None:
    problem = ladder(60)
    compute_time = np.ones((120, 2))
    compute_time[[7, 8], [1, 0]] = np.inf
    problem = replace(problem, compute_time=compute_time)
    sets = move_sets(problem, coarsest=120, layers=np.arange(120) // 40)
    assert np.diff(sets.first_set).tolist() == [120, 2 + 40]
    assert sets.allowed.any(axis=1).all()


SIZES = (128, 256, 300)  # of the levels that a search of 300 groups passes through
ENDS = (0.5, 0.75, 1.0)  # of the budget


@cache
def rounds_by_level() -> tuple[Round, list[list[Round]]]:
    """Return the first round of a search, in which all is accepted, and those of each level."""
    evaluator = Walking(ladder(150))
    assert move_sets(evaluator.problem, coarsest=32).sizes == (32, 64, *SIZES)
    MultilevelSearch(evaluations=6000).place(evaluator.problem, evaluator, seed=1)
    by_level: list[list[Round]] = [[] for _ in SIZES]
    for each in evaluator.rounds[1:]:
        by_level[int((each.evaluated >= np.multiply(ENDS, 6000)).sum())].append(each)
    return evaluator.rounds[0], by_level


def uphill(each: Round) -> float:
    """Return what moves uphill cost on average, in parts of the cost, where all are accepted."""
    assert np.isinf(each.moves.allowance).all()
    costs = each.walks.cost[0]
    costs = costs[~np.isnan(costs)]
    steps = np.diff(costs)
    return float(steps[steps > 0].mean() / costs.mean())


def temperature(each: Round, chain: int = 0) -> float:
    """Return about how much more a move may cost, in parts of the best cost so far."""
    return float(each.moves.allowance[chain].mean() / 160.0)


def is_about(temperature: float) -> Any:
    return pytest.approx(temperature, rel=0.5)  # of 64 random allowances


def test_the_search_passes_through_the_levels_and_cools_on_the_first() -> None:
    measured, by_level = rounds_by_level()
    first_set, unit = np.cumsum([0, 32, 64, *SIZES]), uphill(measured)
    for level, rounds in enumerate(by_level):
        assert len(rounds) > 5
        sets = np.concatenate([each.moves.set_of.ravel() for each in rounds])
        level_of = np.searchsorted(first_set, sets, side="right") - 1
        parts = np.bincount(level_of, minlength=5) / len(sets)
        expected = np.zeros(5)
        expected[level : level + 3] = 0.15, 0.15, 0.7
        assert parts == pytest.approx(expected, abs=0.05)
        assert temperature(rounds[0]) == is_about((0.03 if level else 3) * unit)
        assert temperature(rounds[-1]) < (0.01 if level else 0.2) * unit


def test_a_small_budget_affords_coarse_levels_only_and_no_random_chain_beside_a_start() -> None:
    """Of 1,500 evaluations 30 for each group where chains begin, and 4 for each of the finest."""
    start, layers = (np.arange(600) >= 300).astype(np.int32), np.arange(600) // 60
    for starts, expected in ((None, 3), (start[None], 0.1)):
        evaluator = Walking(ladder(300))
        search = MultilevelSearch(evaluations=1500)
        search.place(evaluator.problem, evaluator, starts=starts, layers=layers)
        measured, first, *_ = evaluator.rounds
        used = np.concatenate([each.moves.set_of.ravel() for each in evaluator.rounds[1:]])
        first_set = np.cumsum([0, 32, 64, 128, 256, 512, 600])
        parts = np.histogram(used, [*first_set, first_set[-1] + 10])[0] / len(used)
        assert (parts[:4] > 0.02).all()
        assert parts[4:].tolist() == pytest.approx([0, 0, 0.3], abs=0.05)
        level = np.searchsorted(first_set, first.moves.set_of, side="right") - 1
        assert set(level.ravel().tolist()) == {0, 6}
        more = float(first.moves.allowance.mean() / 310.0)
        assert more == is_about(expected * uphill(measured))


@pytest.mark.parametrize("start", [None, (np.arange(300) >= 150).astype(np.int32)])
def test_several_chains_begin_apart_and_go_on_from_the_best_of_all(
    start: NDArray[np.int32] | None,
) -> None:
    evaluator = Walking(ladder(150))
    search = MultilevelSearch(evaluations=6000, chains=3)
    starts = None if start is None else start[None]
    search.place(evaluator.problem, evaluator, starts=starts)
    measured, first, *others = evaluator.rounds
    for chain, expected in enumerate((3, 3, 3 if start is None else 0.3)):
        assert temperature(first, chain) == is_about(expected * uphill(measured))
    assert len({tuple(row) for row in first.placements.tolist()}) == 3
    finer = next(each for each in others if each.evaluated >= 3000)
    before = evaluator.rounds[: evaluator.rounds.index(finer)]
    found = [each.walks.best_runtime.min() for each in before]
    if start is not None:
        assert first.placements[2].tolist() == start.tolist()
        found += evaluator.evaluate(start[None]).runtime.tolist()
    assert len(finer.placements) == 3
    assert finer.placements[0].tolist() == finer.placements[1].tolist()
    assert evaluator.evaluate(finer.placements[:1]).runtime[0] == min(found)
    # They try moves of their own.
    assert (finer.moves.set_of[0] != finer.moves.set_of[1]).any()


def test_a_placement_that_fits_is_found_where_faster_ones_do_not() -> None:
    class Scarce(BusiestDevice):
        """Each group on device 0 saves a second, and takes a byte; half of them fit."""

        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            here = (placements == 0).sum(axis=1)
            memory = np.stack([here, np.zeros_like(here)], axis=1) * 10**6
            return EvaluationBatch(runtime=200.0 - here, peak_memory=memory)

    problem = gpus([1] * 100, memory=50 * 10**6)
    result = MultilevelSearch(evaluations=4000).place(problem, Scarce(problem))
    assert result.fits(problem.cluster)
    assert result.runtime == 150


def test_the_penalty_for_memory_rises_while_nothing_fits() -> None:
    class Heavy(Walking):
        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            memory = np.full((len(placements), 2), 2**40)
            return replace(super().evaluate(placements), peak_memory=memory)

    evaluator = Heavy(ladder(150))
    result = MultilevelSearch(evaluations=6000).place(evaluator.problem, evaluator)
    assert not result.fits(evaluator.problem.cluster)
    paid = [each.moves.seconds_per_byte for each in evaluator.rounds]
    assert sorted(set(paid)) == [2e-9, 4e-9, 8e-9]
    assert paid == sorted(paid)


def test_everything_on_one_device_comes_first() -> None:
    evaluator = BusiestDevice(ladder(40))
    MultilevelSearch(evaluations=2).place(evaluator.problem, evaluator)
    assert evaluator.seen == [[0] * 80, [1] * 80]


def test_rounds_are_as_long_as_a_person_waits_for_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multilevel_search, "MOST_MOVES_OF_ROUND", 256)
    now, step = 0.0, 1e-6

    def clock() -> float:
        nonlocal now
        now += step
        return now

    class Slower(Walking):
        def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
            nonlocal step
            step = 1e-6 if len(self.rounds) < 4 else 0.2
            return super().walk(placements, moves)

    evaluator = Slower(ladder(40))
    MultilevelSearch(seconds=10.0, clock=clock).place(evaluator.problem, evaluator)
    lengths = [each.moves.num_moves for each in evaluator.rounds]
    assert lengths[:9] == [64, 64, 128, 256, 256, 128, 64, 32, 16]


def test_seconds_end_a_search() -> None:
    now = iter(np.arange(0, 1e4, 0.1).tolist())
    placer = MultilevelSearch(seconds=30.0, clock=lambda: float(next(now)))
    assert placer.place(ladder(40), BusiestDevice(ladder(40))).evaluations > 100
    assert next(now) == pytest.approx(30.0, abs=1.0)


@pytest.mark.parametrize(
    ("after", "error"),
    [(2, KeyboardInterrupt), (200, KeyboardInterrupt), (100, RuntimeError), (0, RuntimeError)],
)
def test_what_was_found_is_kept_at_ctrl_c_and_when_the_evaluator_fails(
    after: int, error: type[BaseException]
) -> None:
    def fail(evaluated: int) -> None:
        if evaluated >= after:
            raise error("the device is gone")

    evaluator = BusiestDevice(ladder(40), before=fail)
    search = MultilevelSearch(seconds=1000)
    if after == 0:
        with pytest.raises(RuntimeError, match=r"^the device is gone$"):
            search.place(evaluator.problem, evaluator)
        return
    if error is KeyboardInterrupt:
        result = search.place(evaluator.problem, evaluator)
    else:
        message = r"^evaluator: the device is gone, after"
        with pytest.raises(StoppedSearchError, match=message) as caught:
            search.place(evaluator.problem, evaluator)
        result = caught.value.result
    seen = np.array(evaluator.seen)
    assert result.runtime == evaluator.busy(seen).max(axis=1).min() + 10
    assert result.placement.tolist() in evaluator.seen
    assert result.evaluations <= after


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "seconds, evaluations: expected one of the two, got neither"),
        ({"evaluations": 0}, "evaluations: expected at least 1, got 0"),
        ({"evaluations": 9, "chains": 0}, "chains: expected at least 1, got 0"),
        ({"seconds": 0.0}, r"seconds: expected a number above 0, got 0\.0"),
        ({"seconds": float("nan")}, "seconds: expected a number above 0, got nan"),
    ],
)
def test_budgets_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BaselineError, match=f"^{message}$"):
        MultilevelSearch(**settings)


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_one_best_way_to_share_work_out(seed: int) -> None:
    # The longest op alone on one of two devices. Of 4,096 placements all would be tried; here not.
    problem = gpus(2.0 ** np.arange(14))
    result = MultilevelSearch(evaluations=2000).place(problem, PlainEvaluator(problem), seed=seed)
    assert result.runtime == 2.0**13


@pytest.mark.parametrize(("evaluations", "runtime"), [(500, 70), (1, 74)])
def test_a_good_start_is_kept_and_improved(evaluations: int, runtime: float) -> None:
    good = (np.arange(120) >= 56).astype(np.int32)
    placer = MultilevelSearch(evaluations=evaluations)
    result = placer.place(ladder(60), BusiestDevice(ladder(60)), starts=good[None])
    assert result.runtime == runtime
