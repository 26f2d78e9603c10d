"""Which graphs a training learns from, and when."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_policy import Settings
from placeto_policy import Trainer
from placeto_policy.curriculum import graphs_of_workers
from placeto_policy.settings import GraphSamplingName
from scheduled_problems import ListSchedule
from scheduled_problems import two_chains

UPDATES = 40
SAMPLING: tuple[GraphSamplingName, ...] = ("in-turn", "random", "small-first")


def all_updates(
    sizes: list[int], sampling: GraphSamplingName, workers: int = 4, seed: int = 0
) -> list[list[int]]:
    settings = Settings(graph_sampling=sampling, workers=workers, updates=UPDATES)
    return [
        graphs_of_workers(sizes, settings, update=update, seed=seed) for update in range(UPDATES)
    ]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from(SAMPLING),
    st.integers(1, 8),
)
def test_every_worker_has_a_graph_in_each_update(
    sizes: list[int], sampling: GraphSamplingName, workers: int
) -> None:
    for graphs in all_updates(sizes, sampling, workers):
        assert len(graphs) == workers
        assert set(graphs) <= set(range(len(sizes)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 8))
def test_in_turn_no_graph_is_ahead_of_another(sizes: list[int], workers: int) -> None:
    counts = np.zeros(len(sizes), int)
    for graphs in all_updates(sizes, "in-turn", workers):
        np.add.at(counts, graphs, 1)
        assert counts.max() - counts.min() <= 1


def test_random_graphs_follow_from_the_seed_and_are_all_met() -> None:
    drawn = all_updates([5] * 12, "random")
    assert drawn == all_updates([5] * 12, "random")
    assert drawn != all_updates([5] * 12, "random", seed=1)
    counts = np.bincount(np.ravel(drawn), minlength=12)
    assert counts.min() > 0
    assert counts.std() > 0


@given(st.lists(st.integers(1, 99), min_size=8, max_size=12))
def test_small_first_a_graph_comes_after_all_that_are_smaller(sizes: list[int]) -> None:
    known: set[int] = set()
    for update, graphs in enumerate(all_updates(sizes, "small-first")):
        share = len(sizes) * 2 * (update + 1) / UPDATES
        allowed = sorted(sizes)[: max(int(np.ceil(share)), 4)]
        assert max(sizes[graph] for graph in graphs) <= allowed[-1]
        known |= set(graphs)
    assert known == set(range(len(sizes)))


@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_training_learns_from_the_graphs_that_are_named(sampling: GraphSamplingName) -> None:
    evaluators = [ListSchedule(two_chains(length)) for length in (4, 2, 3)]
    settings = Settings(graph_sampling=sampling, workers=2, updates=6, hidden_units=2)
    trainer = Trainer(evaluators, settings, seed=3)
    for update in range(6):
        before = [evaluator.placements_seen for evaluator in evaluators]
        trainer.update()
        asked = [
            graph
            for graph, evaluator in enumerate(evaluators)
            if evaluator.placements_seen > before[graph]
        ]
        named = graphs_of_workers([8, 4, 6], settings, update=update, seed=3)
        # All that an episode meets may be known already.
        assert set(asked) <= set(named)
        if update == 0:
            assert asked == sorted(set(named))
