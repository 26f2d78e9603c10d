"""What placers make of devices: which one most of the work of a group has chosen."""

from dataclasses import replace

import numpy as np

from baseline_problems import gpus
from placeto_baselines.devices import NOWHERE, majority
from placeto_graphs import Grouping


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
