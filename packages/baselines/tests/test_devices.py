"""What placers make of devices: which one most of the work of a group has chosen."""

from dataclasses import replace

import numpy as np

from baseline_problems import cluster, gpus, op_graph, problem_of
from placeto_baselines.devices import NOWHERE, device_kinds, majority
from placeto_graphs import Grouping, parse_cluster


def test_a_group_goes_where_most_of_its_work_goes() -> None:
    """Not where most of its ops go; without work ops count, and a group may have no choice."""
    problem = gpus([1.0, 1.0, 5.0, 0.0, 0.0, 0.0, 2.0, 2.0], count=3)
    groups = Grouping(
        group_of=np.array([0, 0, 0, 1, 1, 1, 2, 3], np.int32),
        group_names=("one heavy op", "no work", "no choice", "one op"),
    )
    choice = np.array([0, 0, 1, 1, 0, 1, NOWHERE, 1])
    chosen = majority(replace(problem, grouping=groups), choice, np.array([0, 2]))
    assert chosen.tolist() == [1, 1, NOWHERE, 1]


def test_devices_of_equal_machines_are_of_one_kind() -> None:
    links = parse_cluster("4x(8xa100)")
    problem = problem_of(op_graph(2, [(0, 1)]), links, np.ones((2, 32)))
    kinds = device_kinds(problem)
    assert kinds.kind_of.tolist() == [0] * 32
    inside = links.machine[kinds.pairs[:, 0]] == links.machine[kinds.pairs[:, 1]]
    itself = kinds.pairs[:, 0] == kinds.pairs[:, 1]
    assert sorted(zip(inside.tolist(), itself.tolist(), strict=True)) == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_devices_that_reach_others_otherwise_are_of_other_kinds() -> None:
    """A row of five devices; each is near those next to it."""
    place = np.arange(5)
    apart = abs(place[:, None] - place)
    links = replace(cluster(["k80"] * 5), bandwidth=np.where(apart == 1, 2.0, 1.0))
    problem = problem_of(op_graph(1, []), links, np.ones((1, 5)))
    kind_of = device_kinds(problem).kind_of.tolist()
    assert kind_of == kind_of[::-1]
    assert len(set(kind_of)) == 3
    slow = replace(problem, compute_time=np.where(place == 0, 2.0, 1.0)[None])
    assert len(set(device_kinds(slow).kind_of.tolist())) == 5
