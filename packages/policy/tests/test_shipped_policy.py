"""What the bundled pretrained policy does and sees is pinned, so that no change goes unnoticed."""

import numpy as np
import pytest
import torch

from placeto_graphs import PlacementProblem
from placeto_policy import PlacementPolicy, PlacetoPlacer, load_pretrained, preset
from placeto_policy.checkpoint import FEATURES_OF_PAIRS
from placeto_policy.embedding.pairs import groups_on_devices, pair_features
from placeto_policy.environment import PlacementEnvironment
from random_states import random_problem
from scheduled_problems import ListSchedule, two_chains, two_speeds, with_room

# A sum of all features of one state for each version of them: see `checkpoint.FEATURES_OF_PAIRS`.
FINGERPRINTS = {2: 3.0475541}


def test_the_features_are_those_of_their_version() -> None:
    problem = random_problem(9, 3, np.random.default_rng(0))
    policy = preset("general")
    environment = PlacementEnvironment.for_policy(ListSchedule(problem), policy, reward="terminal")
    environment.reset(num_episodes=1)
    for device in (1, 2, 0, 1):
        environment.step(np.array([device]))
    states, graph_features = environment.states(), environment.graph_features
    assert graph_features.device_costs is not None
    on_device = groups_on_devices(states)
    features = [
        graph_features.cost_features,
        graph_features.path_features,
        graph_features.device_costs.group_features,
        pair_features(states, on_device, (on_device * graph_features.memory).sum(dim=2)),
    ]
    all_features = torch.cat([feature.double().flatten() for feature in features])
    weights = torch.cos(torch.arange(len(all_features), dtype=torch.float64))
    assert float(all_features @ weights) == pytest.approx(FINGERPRINTS[FEATURES_OF_PAIRS], rel=1e-5)


@pytest.mark.parametrize(
    ("problem", "seconds"),
    [
        (two_chains(6), 6.0),
        (two_speeds(6), 6.2),
        (random_problem(20, 3, np.random.default_rng(0)), 9.7500766),
        (random_problem(20, 3, np.random.default_rng(1)), 8.2449008),
    ],
    ids=["two chains", "two speeds", "random 0", "random 1"],
)
def test_the_shipped_policy_places_as_it_did_when_it_was_trained(
    problem: PlacementProblem, seconds: float
) -> None:
    problem, policy = with_room(problem), load_pretrained()
    untrained = PlacementPolicy(settings=policy.settings)
    runtime, untrained_runtime = (
        PlacetoPlacer(policy=placing_policy, starts=())
        .place(problem, ListSchedule(problem))
        .runtime
        for placing_policy in (policy, untrained)
    )
    assert runtime == pytest.approx(seconds, rel=1e-6)
    assert runtime < untrained_runtime
