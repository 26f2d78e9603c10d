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
from placeto_baselines.placement_trials import PlacementTrials
from placeto_baselines.search import multilevel_search
from placeto_baselines.search.multilevel_search import move_sets
from placeto_graphs import (
    EvaluationBatch,
    Moves,
    PlacementProblem,
    Walks,
    placement_ranks,
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
        offset: float = 10.0,
        on_evaluate: Callable[[int], None] = lambda _evaluated: None,
    ) -> None:
        self.problem, self.offset, self.on_evaluate = problem, offset, on_evaluate
        self.seen: list[list[int]] = []

    def busy(self, placements: NDArray[np.int32]) -> NDArray[np.int64]:
        devices = range(self.problem.num_devices)
        return np.stack([(placements == device).sum(axis=1) for device in devices], axis=1)

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        self.on_evaluate(len(self.seen))
        self.seen += placements.tolist()
        busy = self.busy(placements)
        return EvaluationBatch(
            runtime=busy.max(axis=1) + self.offset, peak_memory=np.zeros_like(busy)
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
        num_seen, start = len(self.seen), placements.copy()
        walks = plain_walk(self, placements, moves)
        self.rounds.append(Round(num_seen, start, moves, walks))
        return walks


class WalkingFullest(Walking, FullestDevice):
    """Both."""


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), evaluations=st.integers(1, 300))
def test_no_more_placements_are_evaluated_than_allowed(seed: int, evaluations: int) -> None:
    problem = random_problem(np.random.default_rng(seed), max_groups=20)
    evaluator = PlainEvaluator(problem)
    result = MultilevelSearch(max_evaluations=evaluations).place(problem, evaluator, seed=seed)
    assert result.evaluations == evaluator.evaluated <= evaluations
    batch = evaluator.evaluate(result.placement[None])
    assert batch.runtime[0] == result.runtime
    _, cost = placement_ranks(batch, problem.cluster.memory_bytes)[0]
    assert result.curve[-1].tolist() == [result.evaluations, cost]


def test_of_few_placements_all_are_evaluated_unless_a_bound_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for problem in random_problems(20, max_groups=4):
        evaluator = PlainEvaluator(problem)
        MultilevelSearch(max_evaluations=5000).place(problem, evaluator)
        runs = np.isfinite(problem.group_graph.compute_time)
        assert len(evaluator.known) == runs.sum(axis=1).prod()
    few = Walking(gpus([1] * 12), offset=0.0)
    assert MultilevelSearch(max_evaluations=4098).place(few.problem, few).evaluations == 4098
    bounded = MultilevelSearch(max_evaluations=9000, bound=6.0)
    assert bounded.place(few.problem, few).evaluations == 2 + 64
    assert not few.rounds
    # The budget does not suffice for all, or they are too many whatever the budget.
    MultilevelSearch(max_evaluations=4097).place(few.problem, few)
    assert few.rounds
    monkeypatch.setattr(multilevel_search, "MAX_PLACEMENTS", 4095)
    many = Walking(few.problem)
    MultilevelSearch(max_evaluations=9000).place(many.problem, many)
    assert many.rounds


def test_a_search_does_not_end_at_the_bound_with_what_does_not_fit() -> None:
    # 2 s and 4 s for the 2 GB that one device lacks, or 12 s on both
    slow = cluster(["k80"] * 2, memory=10**10, bandwidth=1e9)
    slow = replace(slow, latency=np.full((2, 2), 10.0))
    problem = replace(gpus([1, 1], [(0, 1)], parameter_bytes=[6 * 10**9] * 2), cluster=slow)
    assert lower_bound(problem) == pytest.approx(6.0)
    placer = MultilevelSearch(max_evaluations=100, bound=lower_bound(problem))
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
    placer = MultilevelSearch(max_evaluations=1000)
    results = [placer.place(evaluator.problem, evaluator, seed=3) for evaluator in evaluators]
    assert results[0].placement.tolist() == results[1].placement.tolist()
    np.testing.assert_array_equal(results[0].curve, results[1].curve)
    assert evaluators[1].rounds


@pytest.mark.parametrize(("evaluator", "share"), [(Walking, 0.0), (WalkingFullest, 0.6)])
def test_most_moves_are_critical_ones_if_the_evaluator_knows_critical_groups(
    evaluator: type[Walking], share: float
) -> None:
    listening = evaluator(ladder(150))
    MultilevelSearch(max_evaluations=1000).place(listening.problem, listening)
    is_critical = [
        annealing_round.moves.is_critical.ravel() for annealing_round in listening.rounds
    ]
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
        MultilevelSearch(max_evaluations=9),
        PlacementTrials(problem, BusiestDevice(problem)),
        seed=0,
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


SIZES = (32, 64, 128, 256, 300)  # of the levels of 300 groups
EVALUATIONS = 6000
# End of each stage, as a share of the budget, its level, and its temperatures.
STAGES = (
    (0.2, 2, (3.0, 0.03)),
    (0.4, 2, (0.1, 0.01)),
    (0.7, 3, (0.02, 1e-3)),
    (1.0, 4, (0.02, 1e-3)),
)


def is_measuring(annealing_round: Round) -> bool:
    """Return whether all moves are accepted, which measures the unit of temperature."""
    return bool(np.isinf(annealing_round.moves.allowance).all())


def stage_of(annealing_round: Round, evaluations: int = EVALUATIONS) -> int:
    return sum(annealing_round.evaluated >= end * evaluations for end, _, _ in STAGES)


def uphill(annealing_round: Round) -> float:
    """Return what moves uphill cost on average, in parts of the cost, where all are accepted."""
    assert is_measuring(annealing_round)
    costs = annealing_round.walks.cost[0]
    costs = costs[~np.isnan(costs)]
    steps = np.diff(costs)
    return float(steps[steps > 0].mean() / costs.mean())


@cache
def searched(chains: int = 1) -> Walking:
    """Return the evaluator after a search of 300 groups."""
    evaluator = Walking(ladder(150))
    assert move_sets(evaluator.problem, coarsest=32).sizes == SIZES
    search = MultilevelSearch(max_evaluations=EVALUATIONS, chains=chains)
    search.place(evaluator.problem, evaluator, seed=1)
    return evaluator


def cost_of(evaluator: BusiestDevice, placement: NDArray[np.int32]) -> float:
    return float(evaluator.busy(placement[None]).max() + evaluator.offset)


def best_runtime(rounds: list[Round]) -> float:
    return float(min(annealing_round.walks.best_runtime.min() for annealing_round in rounds))


@pytest.mark.parametrize("stage", range(4))
def test_each_stage_takes_groups_of_its_level_and_two_coarser_ones(stage: int) -> None:
    rounds = [
        annealing_round
        for annealing_round in searched().rounds[1:]
        if stage_of(annealing_round) == stage
    ]
    sets = np.concatenate([annealing_round.moves.set_of.ravel() for annealing_round in rounds])
    level_of = np.searchsorted(np.cumsum([0, *SIZES]), sets, side="right") - 1
    shares, level = np.bincount(level_of, minlength=5) / len(sets), STAGES[stage][1]
    expected = np.zeros(5)
    expected[level - 2 : level + 1] = 0.15, 0.15, 0.7
    assert shares == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("stage", range(4))
def test_each_stage_cools_from_its_first_temperature_to_its_last(stage: int, chains: int) -> None:
    """Allowances are exponential; their means are temperatures, in units that were measured."""
    evaluator = searched(chains)
    measured, *later_rounds = evaluator.rounds
    rounds = [
        annealing_round for annealing_round in later_rounds if stage_of(annealing_round) == stage
    ]
    end, _, (hottest, coldest) = STAGES[stage]
    begin = rounds[0].evaluated
    ratios = []
    for annealing_round in rounds:
        placements = np.array(evaluator.seen[: annealing_round.evaluated], np.int32)
        best = evaluator.busy(placements).max(axis=1).min() + evaluator.offset
        walks, num_moves = annealing_round.moves.allowance.shape
        evaluated = annealing_round.evaluated + walks * np.arange(num_moves)
        progress = (evaluated - begin) / (end * EVALUATIONS - begin)
        temperature = hottest * (coldest / hottest) ** progress * uphill(measured) * best
        ratios.append((annealing_round.moves.allowance / temperature).ravel())
    for half in np.array_split(np.concatenate(ratios), 2):
        assert half.mean() == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_temperatures_fall_within_a_round(seed: int) -> None:
    """The random chain of a small budget has a single round."""
    evaluator = Walking(ladder(150))
    MultilevelSearch(max_evaluations=300).place(evaluator.problem, evaluator, seed=seed)
    allowance = evaluator.rounds[1].moves.allowance[0]
    assert len(allowance) > 30
    assert allowance[:10].mean() > 10 * allowance[-10:].mean()


def test_a_small_budget_goes_through_all_levels_and_a_tenth_of_the_moves_takes_layers() -> None:
    layers = np.arange(600) // 60
    evaluator = Walking(ladder(300))
    MultilevelSearch(max_evaluations=1500).place(evaluator.problem, evaluator, layers=layers)
    used = np.concatenate(
        [annealing_round.moves.set_of.ravel() for annealing_round in evaluator.rounds[1:]]
    )
    first_set = np.cumsum([0, 32, 64, 128, 256, 512, 600])
    shares = np.histogram(used, [*first_set, first_set[-1] + 10])[0] / len(used)
    assert (shares > 0.02).all()
    assert shares[6] == pytest.approx(0.1, abs=0.02)


GOOD = (np.arange(300) >= 120).astype(np.int32)  # 190 s
POOR = (np.arange(300) >= 50).astype(np.int32)  # 260 s


@pytest.mark.parametrize(
    ("evaluations", "chains", "num_leaders"), [(3900, 1, 1), (4100, 1, 2), (3900, 3, 3)]
)
@pytest.mark.parametrize("starts", [[], [POOR], [GOOD, POOR]])
def test_chains_continue_from_the_placements_that_lead_and_then_from_the_best(
    evaluations: int, chains: int, num_leaders: int, starts: list[NDArray[np.int32]]
) -> None:
    """Leaders are the best of the starts and of the ends of the random chains."""
    evaluator = Walking(ladder(150))
    search = MultilevelSearch(max_evaluations=evaluations, chains=chains)
    search.place(evaluator.problem, evaluator, starts=np.stack(starts) if starts else None)
    assert evaluator.seen[: len(starts)] == [start.tolist() for start in starts]
    stages: list[list[Round]] = [[] for _ in STAGES]
    for annealing_round in evaluator.rounds[1:]:
        stages[stage_of(annealing_round, evaluations)].append(annealing_round)
    hot, warm, *colder = stages
    assert len({tuple(row) for row in hot[0].placements.tolist()}) == chains
    ends = hot[0].walks.placement.copy()
    for annealing_round in hot:  # the last of a stage may be of one chain
        ends[: len(annealing_round.placements)] = annealing_round.walks.placement
    candidates = [*starts, *ends]
    ranked = sorted((cost_of(evaluator, row), tuple(row.tolist())) for row in candidates)
    leaders = [list(placement) for _, placement in ranked[:num_leaders]]
    assert warm[0].placements.tolist() == leaders
    for index, rounds in enumerate(colder):
        earlier_rounds = [
            *hot,
            *warm,
            *(
                annealing_round
                for earlier_stage in colder[:index]
                for annealing_round in earlier_stage
            ),
        ]
        placements = rounds[0].placements
        assert placements.tolist() == [placements[0].tolist()] * chains
        assert cost_of(evaluator, placements[0]) == best_runtime(earlier_rounds)
        if chains > 1:  # each tries moves of its own
            assert (rounds[0].moves.set_of[0] != rounds[0].moves.set_of[1]).any()


def restarts_of(evaluator: Walking) -> list[list[Round]]:
    """Return the rounds after each one that measures."""
    restarts: list[list[Round]] = []
    for annealing_round in evaluator.rounds:
        if is_measuring(annealing_round):
            restarts.append([])
        restarts[-1].append(annealing_round)
    return restarts


def test_a_budget_of_several_times_five_evaluations_of_each_pair_of_groups_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 20 groups: 2,000. Each has chains of its own, and the first one the start besides."""
    monkeypatch.setattr(MultilevelSearch, "evaluations_of_pair", 5)
    start = (np.arange(20) >= 10).astype(np.int32)  # the best of all
    evaluator = Walking(ladder(10))
    search = MultilevelSearch(max_evaluations=8100)
    search.place(evaluator.problem, evaluator, starts=start[None])
    restarts = restarts_of(evaluator)
    begins = [rounds[0].evaluated for rounds in restarts]
    assert begins == pytest.approx(8100 * np.arange(4) / 4, abs=5)
    assert len({tuple(rounds[0].placements[0].tolist()) for rounds in restarts}) == 4
    for restart, rounds in enumerate(restarts):
        shares = [
            (annealing_round.evaluated / 8100 * 4 - restart, annealing_round)
            for annealing_round in rounds[1:]
        ]
        hot = [annealing_round for share, annealing_round in shares if share < 0.2]
        warm = [annealing_round for share, annealing_round in shares if 0.2 <= share < 0.4]
        cold = [annealing_round for share, annealing_round in shares if share >= 0.4]
        assert len(warm[0].placements) == (1 if restart else 2)
        assert (start.tolist() in warm[0].placements.tolist()) == (restart == 0)
        assert cost_of(evaluator, cold[0].placements[0]) == best_runtime(hot + warm)
    few = Walking(ladder(10))
    MultilevelSearch(max_evaluations=3900).place(few.problem, few)
    assert len(restarts_of(few)) == 1
    monkeypatch.setattr(multilevel_search, "MOST_RESTARTS", 2)
    capped = Walking(ladder(10))
    search.place(capped.problem, capped)
    assert len(restarts_of(capped)) == 2


def test_a_placement_that_fits_is_found_where_faster_ones_do_not() -> None:
    class Scarce(BusiestDevice):
        """Each group on device 0 saves a second, and takes a byte; half of them fit."""

        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            on_first = (placements == 0).sum(axis=1)
            memory = np.stack([on_first, np.zeros_like(on_first)], axis=1) * 10**6
            return EvaluationBatch(runtime=200.0 - on_first, peak_memory=memory)

    problem = gpus([1] * 100, memory=50 * 10**6)
    result = MultilevelSearch(max_evaluations=4000).place(problem, Scarce(problem))
    assert result.fits(problem.cluster)
    assert result.runtime == 150


def test_a_placement_that_fits_is_found_where_nothing_takes_time() -> None:
    problem = gpus([0] * 20, size=0, memory=12, parameter_bytes=[1] * 20)
    result = MultilevelSearch(max_evaluations=200).place(problem, PlainEvaluator(problem))
    assert result.runtime == 0
    assert (result.peak_memory <= 12).all()


def test_the_penalty_for_memory_rises_while_nothing_fits() -> None:
    class Heavy(Walking):
        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            memory = np.full((len(placements), 2), 2**40)
            return replace(super().evaluate(placements), peak_memory=memory)

    evaluator = Heavy(ladder(150))
    result = MultilevelSearch(max_evaluations=6000).place(evaluator.problem, evaluator)
    assert not result.fits(evaluator.problem.cluster)
    penalties = [annealing_round.moves.memory_penalty for annealing_round in evaluator.rounds]
    assert sorted(set(penalties)) == [30, 60, 120, 240]  # of the four stages
    assert penalties == sorted(penalties)


def test_everything_on_one_device_comes_first() -> None:
    evaluator = BusiestDevice(ladder(40))
    MultilevelSearch(max_evaluations=2).place(evaluator.problem, evaluator)
    assert evaluator.seen == [[0] * 80, [1] * 80]


def test_rounds_are_as_long_as_a_person_waits_for_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multilevel_search, "MOST_MOVES_OF_ROUND", 256)
    monkeypatch.setattr(multilevel_search, "MOST_RESTARTS", 1)
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
    lengths = [annealing_round.moves.num_moves for annealing_round in evaluator.rounds]
    assert lengths[:9] == [64, 128, 256, 256, 256, 64, 16, 4, 1]


def test_seconds_end_a_search() -> None:
    now = iter(np.arange(0, 1e4, 0.1).tolist())
    placer = MultilevelSearch(seconds=30.0, clock=lambda: float(next(now)))
    assert placer.place(ladder(40), BusiestDevice(ladder(40))).evaluations > 50
    assert next(now) == pytest.approx(30.0, abs=1.0)


@pytest.mark.parametrize(
    ("num_evaluated", "error"),
    [(2, KeyboardInterrupt), (200, KeyboardInterrupt), (100, RuntimeError), (0, RuntimeError)],
)
def test_what_was_found_is_kept_at_ctrl_c_and_when_the_evaluator_fails(
    num_evaluated: int, error: type[BaseException]
) -> None:
    def fail(evaluated: int) -> None:
        if evaluated >= num_evaluated:
            raise error("the device is gone")

    evaluator = BusiestDevice(ladder(40), on_evaluate=fail)
    search = MultilevelSearch(seconds=1000)
    if num_evaluated == 0:
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
    placements = np.array(evaluator.seen)
    assert result.runtime == evaluator.busy(placements).max(axis=1).min() + 10
    assert result.placement.tolist() in evaluator.seen
    assert result.evaluations <= num_evaluated


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "seconds, max_evaluations: expected one of the two, got neither"),
        ({"max_evaluations": 0}, "max_evaluations: expected at least 1, got 0"),
        ({"max_evaluations": 9, "chains": 0}, "chains: expected at least 1, got 0"),
        ({"seconds": 0.0}, r"seconds: expected a finite number above 0, got 0\.0"),
        ({"seconds": float("nan")}, "seconds: expected a finite number above 0, got nan"),
    ],
)
def test_budgets_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BaselineError, match=f"^{message}$"):
        MultilevelSearch(**settings)


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_one_best_way_to_share_work_out(seed: int) -> None:
    # The longest op alone on one of two devices. Of 4,096 placements all would be tried; here not.
    problem = gpus(2.0 ** np.arange(14))
    result = MultilevelSearch(max_evaluations=2000).place(
        problem, PlainEvaluator(problem), seed=seed
    )
    assert result.runtime == 2.0**13


@pytest.mark.parametrize(("evaluations", "runtime"), [(500, 70), (1, 74)])
def test_a_good_start_is_kept_and_improved(evaluations: int, runtime: float) -> None:
    good = (np.arange(120) >= 56).astype(np.int32)
    placer = MultilevelSearch(max_evaluations=evaluations)
    result = placer.place(ladder(60), BusiestDevice(ladder(60)), starts=good[None])
    assert result.runtime == runtime
