import warnings
from functools import partial
from math import inf

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment_tasks import placed
from placeto.errors import InputError
from placeto.placing.evaluators import EVALUATORS, EvaluatorSpec
from placeto.placing.placers import PLACERS
from placeto.texts import TextTable
from placeto.trials.comparison import Comparison
from placeto.trials.records import (
    Placed,
    Problem,
    Runs,
    evaluations_to_best,
    evaluations_until,
    short_curve,
)
from placeto.trials.running import starting_order
from placeto.trials.statistics import (
    critical_difference,
    friedman_probability,
    mean_interval,
    mean_ranks,
)
from placeto.trials.tables import (
    NOTHING,
    placer_table,
    profile_table,
    profiles,
    rank_table,
    runtime_table,
    search_table,
)
from placeto_baselines import Limits
from placeto_graphs import Evaluator, PlacementProblem
from placeto_policy.example import two_chains
from placeto_simulator import Simulator


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=20))
def test_of_a_falling_curve_it_is_the_first_within_a_hundredth_of_the_best(
    samples: list[float],
) -> None:
    best = np.minimum.accumulate(samples)
    curve = np.stack([np.arange(1, len(best) + 1), best], axis=1)
    expected = next(i for i, value in enumerate(best, start=1) if value <= 1.01 * best[-1])
    assert evaluations_to_best(curve) == expected


def test_of_a_curve_without_a_runtime_or_one_that_rises_it_is_where_it_stays() -> None:
    # One device is fast but too small; the search ends with what is slower and fits.
    assert evaluations_to_best(np.array([[1, 1.0], [50, 2.5], [70, 2.0], [90, 2.0]])) == 70
    assert evaluations_until(placed(curve=[(1, 2.0), (3, 4.0), (5, 2.4), (9, 2.4)]), 2.5) == 5
    assert evaluations_to_best(np.array([[1, np.inf], [8, 2.0]])) == 8
    assert evaluations_to_best(np.zeros((0, 2))) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluations_to_best(np.array([[1, np.inf], [8, np.inf]])) == 1
        assert short_curve(np.array([[1, np.inf], [8, np.inf], [9, 2.0]])) == [(1, None), (9, 2.0)]
    falling = short_curve(np.stack([np.arange(1000), np.arange(1000)[::-1]], axis=1))
    assert (len(falling), falling[0], falling[1], falling[-1]) == (
        200,
        (0, 999),
        (5, 994),
        (999, 0),
    )


def run(
    runtime: float, *, fits: bool = True, evaluations_to_best: int = 10, seconds: float = 1.0
) -> Placed:
    return Placed(
        runtime=runtime,
        cost=runtime,
        fits=fits,
        evaluations=20,
        seconds=seconds,
        peak_memory=[1, 1],
        evaluations_to_best=evaluations_to_best,
        curve=[(4, 2 * runtime), (6, 1.3 * runtime), (10, runtime)],
        placement=[0, 1],
    )


def placer(*runs: Placed, name: str = "placer", failed: int = 0) -> Runs:
    return Runs(name, name, list(runs), failed=failed)


def problem(*placers: Runs, least_excess: int = 0, bound: float = 0.0) -> Problem:
    """Return what placers came to on a model and two GPUs."""
    return Problem(
        stem="model-2xk80",
        source="model",
        cluster="2xk80",
        devices=["k80:0", "k80:1"],
        gpus=2,
        ops=10,
        groups=2,
        lower_bound=bound,
        least_excess=least_excess,
        placers=list(placers),
    )


def test_the_papers_table_says_oom_and_leaves_out_what_is_missing() -> None:
    report = problem(
        placer(run(1.0, fits=False), name="single"),
        placer(run(1.5, seconds=30.4), name="placeto"),
        placer(run(2.0, evaluations_to_best=40, seconds=1234.0), name="rnn"),
    )
    (row,) = runtime_table([report]).rows
    assert row == ["model on 2xk80", NOTHING, "OOM", NOTHING, NOTHING, "2.000", "1.500", NOTHING]
    assert search_table([report]).rows == [
        ["model on 2xk80", "placeto", "1.500", "25.0 %", "10", "4.00", "30.4", "6"],
        ["model on 2xk80", "rnn", "2.000", "", "40", "", "1,234.0", ""],
    ]


def test_a_table_says_how_many_runs_its_runtimes_are_of_where_some_do_not_fit() -> None:
    report = problem(
        placer(run(1.0, fits=False), run(3.0), run(2.0), name="placeto"),
        placer(run(1.0), run(2.0), name="rnn"),
        placer(run(1.0, fits=False), run(1.5), name="random"),
        bound=0.5,
    )
    (row,) = runtime_table([report]).rows
    assert row[5:7] == ["1.500", "2.500 (2 of 3 fit)"]
    placeto, rnn, random_row, _ = placer_table(report).rows
    assert placeto[1:3] == ["2.500 s", "2.500 s ± 28.3 %"]
    assert rnn[1:3] == ["1.500 s", "1.500 s ± 47.1 %"]
    assert random_row[1:3] == ["1.500 s", ""]
    assert placer_table(report).remarks == ["placeto: 2 of 3 fit.", "random: 1 of 2 fit."]


def test_profiles_are_of_medians_in_which_what_does_not_fit_is_infinite() -> None:
    first = problem(
        placer(run(0.1), name="cpu"),  # on a device of its own
        placer(run(1.0), run(3.0), run(2.0), name="a"),
        placer(run(1.0, fits=False), run(3.0), run(4.0), name="b"),
        placer(run(9.0, fits=False), name="c"),
    )
    second = problem(
        placer(run(1.25), name="a"), placer(run(1.0), name="b"), placer(run(1.1), name="c")
    )
    of_none = problem(*(placer(run(1.0, fits=False), name=name) for name in "abc"))
    profile_by_name = {profile.name: profile for profile in profiles([first, of_none, second])}
    assert {name: profile.ratios for name, profile in profile_by_name.items()} == {
        "a": [1.0, None, 1.25],
        "b": [2.0, None, 1.0],  # the medians are 2 s and 4 s: of 3 s, 4 s and what does not fit
        "c": [inf, None, 1.1],
    }
    assert profile_by_name["b"].mean_ratio == pytest.approx(2**0.5)
    assert profile_by_name["c"].mean_ratio == inf
    assert list(profile_by_name["a"].within) == ["1.00", "1.01", "1.05", "1.10", "1.25", "1.50"]
    assert list(profile_by_name["a"].within.values()) == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
    assert list(profile_by_name["c"].within.values()) == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    profiles_of_placers = list(profile_by_name.values())
    assert profile_table(profiles_of_placers).rows[0][1] == "50.0 %"
    table = rank_table(profiles_of_placers, [first, of_none, second])
    assert table.title.endswith("over 2 problems")
    # Seeds at 0.5, 1.5 and 1 of the best median, and 1.25; ranks 1 and 3, 2 and 1, 3 and 2.
    assert [row[1] for row in table.rows] == [
        f"{0.75 ** (1 / 6) * 1.25**0.5:.3f}",
        f"{3.0**0.25:.3f}",
        "1.100",
    ]
    assert [row[4:] for row in table.rows] == [["2.00", "2"], ["1.50", "2"], ["2.50", "1"]]
    assert table.rows[2][2:4] == ["1.100", "1.100"]
    _, left_out, ranks = table.remarks
    assert left_out == "1 problem without a placement that fits, left out."
    # The constant of Nemenyi's test for three is 2.343; chi-squared is 1, with two degrees.
    assert "less than 2.34 apart" in ranks
    assert ranks.endswith(f"p = {np.exp(-0.5):.2g}.")
    of_first = placer_table(first)
    assert ">of lower bound" not in of_first.columns
    assert [row[3] for row in of_first.rows] == ["0.050", "1.000", "2.000", ""]


def test_what_never_fits_is_infinite_and_a_cpu_of_its_own_competes_on_no_problem() -> None:
    never = placer(run(1.0, fits=False), name="b")
    gpus = problem(placer(run(1.0), name="cpu"), placer(run(2.0), name="a"), never)
    has_cpu = msgspec.structs.replace(gpus, devices=["cpu:0", *gpus.devices])
    ratios_by_name = {profile.name: profile.ratios for profile in profiles([gpus, has_cpu])}
    assert ratios_by_name == {"cpu": [None, 1.0], "a": [1.0, 2.0], "b": [inf, inf]}
    rows = rank_table(profiles([gpus, has_cpu]), [gpus, has_cpu]).rows
    assert [[row[0], row[1], row[5]] for row in rows] == [
        ["a", "1.414", "2"],
        ["b", NOTHING, "0"],
        ["cpu", "1.000", "1"],
    ]


# The constants of Nemenyi's test at 5 % that Demšar (2006) prints, by the number of placers.
CONSTANTS = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 10: 3.164}


@pytest.mark.parametrize(("num_placers", "constant"), CONSTANTS.items())
def test_ranks_differ_as_demsar_prints(num_placers: int, constant: float) -> None:
    expected = constant * (num_placers * (num_placers + 1) / (6 * 14)) ** 0.5
    assert critical_difference(num_placers, 14) == pytest.approx(expected, rel=5e-4)


def test_equal_costs_share_their_ranks_in_both_tests_also_if_sums_are_rounded() -> None:
    costs = np.random.default_rng(0).integers(1, 4, (12, 4)).astype(float)
    rounded = costs * (1 + 1e-15 * np.arange(4))
    assert mean_ranks(rounded).tolist() == mean_ranks(costs).tolist()
    assert friedman_probability(rounded) == friedman_probability(costs) > 0.5
    assert friedman_probability(np.ones((5, 3))) == 1.0


def test_an_interval_has_the_means_of_resampled_problems_and_their_seeds() -> None:
    # Of two problems the first or the second comes twice in a quarter of the samples each.
    assert mean_interval([[1.0], [4.0]]) == (2.0, 1.0, 4.0)
    assert mean_interval([[3.0], [3.0, 3.0]]) == pytest.approx((3.0, 3.0, 3.0))
    # Of one problem with two seeds, too; it counts as much as one with a single seed.
    assert mean_interval([[1.0, 4.0]]) == pytest.approx((2.0, 1.0, 4.0))
    assert mean_interval([[1.0, 4.0], [2.0]])[0] == pytest.approx(2.0)
    generator = np.random.default_rng(1)
    ratios = np.exp(generator.normal(size=(400, 1)))
    _, low, high = mean_interval(ratios.tolist())
    # As of a normal distribution: 1.96 standard errors to either side.
    standard_error = np.log(ratios).std() / 20
    assert np.log(high / low) == pytest.approx(2 * 1.96 * standard_error, rel=0.08)


def test_tables_in_latex_have_all_cells_and_no_character_that_means_something() -> None:
    table = TextTable("50 % of a_b", ["placer", ">x & y"], [["c#1", "1.0 ± 0.1"]], ["d $"])
    assert table.latex().splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{50 \% of a\_b}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"placer & x \& y \\",
        r"\midrule",
        r"c\#1 & 1.0 $\pm$ 0.1 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par d \$",
        r"\end{table}",
    ]


def test_a_table_says_if_nothing_fits() -> None:
    fitting, not_fitting = placer(run(1.0)), placer(run(1.0, fits=False))
    title = "model on 2xk80: 10 ops, 2 groups"
    for report, remark in (
        (problem(), ""),
        (problem(fitting, not_fitting), ""),
        (problem(placer(run(1.0, fits=False), run(1.0))), ""),
        (problem(not_fitting), "; no placement that fits was found"),
        (
            problem(not_fitting, least_excess=3_000_000),
            "; no placement in 2 groups fits: a device lacks 3.0 MB or more",
        ),
    ):
        assert placer_table(report).title == f"{title}{remark}"


def test_a_row_says_how_many_seeds_it_is_of_until_all_are_done() -> None:
    unfinished = msgspec.structs.replace(placer(run(1.0), failed=1), seeds=3)
    done = msgspec.structs.replace(unfinished, seeds=2)
    assert placer_table(problem(unfinished, done)).remarks == [
        "placer: 1 of 2 failed, 2 of 3 seeds.",
        "placer: 1 of 2 failed.",
    ]


def test_runs_that_fail_count_as_infinite_and_sums_in_another_order_as_equal() -> None:
    report = problem(
        placer(run(0.3), name="best"),
        placer(run(0.1 + 0.2), name="as good"),  # 0.30000000000000004
        placer(run(0.3), run(0.6), failed=1, name="fails once"),
        placer(run(0.1), failed=1, name="fails"),
        placer(run(0.3000001), name="worse"),
    )
    ratios = [profile.ratios[0] for profile in profiles([report])]
    assert ratios == [1.0, 1.0, 2.0, inf, pytest.approx(1.0, abs=1e-6)]
    within = [profile.within["1.00"] for profile in profiles([report])]
    assert within == [1.0, 1.0, 0.0, 0.0, 0.0]
    rows = {row[0]: row for row in placer_table(report).rows}
    assert rows["fails once"][2:4] == ["450.0 ms ± 47.1 %", "2.000"]
    assert rows["fails"][2:4] == ["", ""]


def test_placements_until_a_runtime_are_those_of_all_runs() -> None:
    report = problem(placer(run(2.0), name="rnn"), bound=0.5)

    def until(*runtimes: float, fits: bool = True, failed: int = 0) -> str:
        runs = [run(runtime, fits=fits) for runtime in runtimes]
        placeto = placer(*runs, name="placeto", failed=failed)
        row, _ = search_table(
            [msgspec.structs.replace(report, placers=[*report.placers, placeto])]
        ).rows
        return row[-1]

    assert until(1.0, 1.5, 3.0) == "6"  # 4, 6 and never
    assert until(1.0, 3.0, 4.0) == "never"
    assert until() == NOTHING
    assert until(1.0, 1.0, 1.0, fits=False) == "never"
    assert until(1.0, failed=2) == "never"
    assert until(1.0, 1.5, failed=1) == "6"
    row, _ = search_table(
        [msgspec.structs.replace(report, placers=[placer(run(1.0), name="placeto")])]
    ).rows
    assert row[-1] == NOTHING  # it is not known how fast the RNN is


def test_what_is_a_users_own_is_tried_on_one_problem_that_it_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_evaluators: list[str] = []

    def spec(name: str, *refused: int) -> EvaluatorSpec:
        def make(problem: PlacementProblem, _: int | None) -> Evaluator:
            made_evaluators.append(name)
            if problem.num_devices in refused:
                raise InputError(f"{name}: not on {problem.num_devices} devices")
            return Simulator(problem)

        return EvaluatorSpec(name, "runtime", make, modules=("own",))

    def comparison(evaluator_spec: EvaluatorSpec) -> Comparison:
        monkeypatch.setitem(EVALUATORS, evaluator_spec.name, evaluator_spec)
        makers = {str(devices): partial(two_chains, 2, devices) for devices in (2, 3, 4)}
        problems = [
            Problem(stem=name, source="chains", cluster=name, evaluator=evaluator_spec.name)
            for name in makers
        ]
        single = {"single": PLACERS["single"]}
        return Comparison(problems, makers, single, [0], {"single": Limits()})

    comparison(spec("any")).check_user_classes()
    comparison(spec("some", 2)).check_user_classes()
    assert made_evaluators == ["any", "some", "some"]
    with pytest.raises(InputError, match="none: not on 2 devices"):
        comparison(spec("none", 2, 3, 4)).check_user_classes()


def test_trainings_begin_first_where_several_trials_run_at_once_the_longest_before() -> None:
    makers = dict.fromkeys("ab", two_chains)
    problems = [Problem(stem=name, source="chains", cluster=name) for name in makers]
    trials = Comparison(problems, makers, PLACERS, [0], dict.fromkeys(PLACERS, Limits())).trials
    assert starting_order(trials, 1) == trials
    order = [f"{trial.placer} {trial.graph}" for trial in starting_order(trials, 2)]
    assert order[:6] == ["rnn b", "rnn a", "placeto b", "placeto a", "paper b", "paper a"]
    assert order[6:] == [f"{trial.placer} {trial.graph}" for trial in trials if not trial.is_long]


def test_the_best_of_runs_that_do_not_fit_lacks_least() -> None:
    fast, slow = (
        msgspec.structs.replace(run(runtime, fits=False), cost=cost)
        for runtime, cost in ((1.0, 9.0), (2.0, 3.0))
    )
    assert placer(fast, slow, fast).best == slow
    assert placer(fast, run(5.0), slow).best == run(5.0)
    assert placer().best is None
