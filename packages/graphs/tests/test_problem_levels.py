"""A problem in fewer and in more groups, and placements that are taken from one to the other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import diamond, diamond_problem, refused
from graph_strategies import groupings, op_graphs, problems
from placeto_graphs import (
    LEVEL_SIZES,
    Grouping,
    PlacementProblem,
    colocate,
    from_networkx,
    load_placement_of_any_level,
    load_problem,
    merge_and_colocate,
    nested_groupings,
    parse_cluster,
    save_placement,
    save_problem,
)


def chain_problem(num_ops: int = 12, sizes: tuple[int, ...] = (2, 4, 8)) -> PlacementProblem:
    """Return a chain at the first of its levels."""
    chain = nx.DiGraph((f"op{op}", f"op{op + 1}") for op in range(num_ops - 1))
    graph = from_networkx(chain)
    levels = nested_groupings(graph, colocate(graph, rules=()), sizes)
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.ones((num_ops, 2)),
        grouping=levels[0],
        hierarchy=levels,
    )


def levelled(problem: PlacementProblem) -> PlacementProblem:
    """Return a problem with all levels that merging its groups passes through."""
    sizes = range(1, problem.num_groups + 1)
    merged = nested_groupings(problem.graph, problem.grouping, sizes)
    hierarchy = (*merged[:-1], problem.grouping)
    return replace(problem, hierarchy=hierarchy)


@given(st.data())
def test_one_pass_gives_what_merging_to_each_number_gives(data: st.DataObject) -> None:
    graph = data.draw(op_graphs())
    grouping = data.draw(groupings(graph))
    sizes = data.draw(st.lists(st.integers(1, 14), min_size=1))
    levels = nested_groupings(graph, grouping, sizes)
    assert [level.num_groups for level in levels] == sorted(
        {min(size, grouping.num_groups) for size in sizes}
    )
    for level in levels:
        if level.num_groups < grouping.num_groups:
            assert level == merge_and_colocate(graph, grouping, num_groups=level.num_groups)
        else:
            assert level is grouping


@given(problems(), st.data())
def test_a_placement_goes_to_finer_levels_exactly(
    problem: PlacementProblem, data: st.DataObject
) -> None:
    problem = levelled(problem)
    coarse = problem.at_level(data.draw(st.integers(0, len(problem.levels) - 1)))
    can_run = np.isfinite(coarse.group_graph.compute_time)
    placement = [data.draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in can_run]
    op_devices = coarse.expand(placement)
    for level in range(coarse.level + 1, len(problem.levels)):
        finer = problem.at_level(level)
        finer_placement = finer.placement_of_ops(op_devices)
        assert finer.expand(finer_placement).tolist() == op_devices.tolist()
        assert coarse.placement_of_ops(finer.expand(finer_placement)).tolist() == placement


@given(problems(), st.data())
def test_any_devices_of_ops_become_a_placement_by_the_largest_share(
    problem: PlacementProblem, data: st.DataObject
) -> None:
    devices = st.integers(0, problem.num_devices - 1)
    op_devices = data.draw(
        st.lists(devices, min_size=problem.graph.num_ops, max_size=problem.graph.num_ops)
    )
    placement = problem.check_placement(problem.placement_of_ops(op_devices))

    def share(group: int, device: int) -> float:
        ops = [op for op in problem.grouping.members[group].tolist() if op_devices[op] == device]
        return float(sum(t for t in problem.compute_time[ops, device].tolist() if np.isfinite(t)))

    for group, device in enumerate(placement.tolist()):
        allowed = np.flatnonzero(np.isfinite(problem.group_graph.compute_time[group])).tolist()
        largest = max(share(group, candidate) for candidate in allowed)
        assert share(group, device) == pytest.approx(largest)


def test_groups_that_take_no_time_go_where_most_of_their_ops_are() -> None:
    group_of: Any = [0, 0, 0, 1]
    grouping = Grouping(group_of=group_of, group_names=("a", "b"))
    problem = diamond_problem(compute_time=np.zeros((4, 2)), grouping=grouping)
    assert problem.placement_of_ops([0, 1, 1, 0]).tolist() == [1, 0]
    with refused("op_devices[1]: expected an integer from 0 to 1, got 2"):
        problem.placement_of_ops([0, 2, 1, 0])


def test_levels_are_neighbours_of_each_other() -> None:
    problem = chain_problem()
    assert [level.num_groups for level in problem.levels] == [2, 4, 8]
    assert problem.level == 0
    finest = problem.at_level(2)
    assert finest.level == 2
    assert finest.at_level(1) == problem.at_level(1)
    assert finest.at_level(0) == problem
    with refused("level: expected one from 0 to 2, got 3"):
        problem.at_level(3)


def test_groups_of_unknown_origin_have_coarser_levels_only() -> None:
    problem = replace(chain_problem(300), hierarchy=None)
    problem = replace(problem, grouping=colocate(problem.graph, rules=()))
    assert [level.num_groups for level in problem.levels] == [32, 64, 128, 256, 300]
    assert problem.level == 4
    assert problem.at_level(3).at_level(4) == replace(problem, hierarchy=problem.levels)
    small = diamond_problem()
    assert small.levels == (small.grouping,)
    assert LEVEL_SIZES[0] == 32


def test_a_level_without_a_device_for_some_group_is_left_out() -> None:
    problem = chain_problem()
    compute_time = np.array([[1.0, np.inf] if op < 6 else [np.inf, 1.0] for op in range(12)])
    levels = nested_groupings(problem.graph, colocate(problem.graph, rules=()), [1, 12])
    apart = replace(problem, compute_time=compute_time, grouping=levels[1], hierarchy=levels)
    assert apart.levels == levels[1:]
    assert apart.level == 0


@pytest.mark.parametrize(
    ("hierarchy", "message"),
    [
        ([], "hierarchy: expected the 4 groups of grouping in it"),
        ([[0, 0, 0]], "hierarchy[0].group_of: expected the groups of 4 ops, got 3"),
        ([[0, 1, 1, 1], [0, 0, 1, 1]], "hierarchy[1]: expected more than 2 groups, got 2"),
        ([[0, 1, 1, 1], [0, 0, 1, 2]], "hierarchy[1]: expected group 0 ('0') within one group of"),
    ],
)
def test_a_hierarchy_is_checked(hierarchy: list[Any], message: str) -> None:
    levels = [
        Grouping(group_of=labels, group_names=tuple(map(str, range(max(labels) + 1))))
        for labels in hierarchy
    ]
    with refused(message):
        diamond_problem(hierarchy=levels)


@given(problem=problems(), data=st.data())
def test_a_placement_file_says_at_which_level_it_is(
    problem: PlacementProblem, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    problem = levelled(problem)
    saved = problem.at_level(data.draw(st.integers(0, len(problem.levels) - 1)))
    path = tmp_path_factory.getbasetemp() / "level.json"
    placement = np.zeros(saved.num_groups, np.int32)
    save_placement(placement, saved, path)
    level, read = load_placement_of_any_level(path, problem)
    assert level.expand(read).tolist() == saved.expand(placement).tolist()
    save_problem(saved, path)
    assert load_problem(path) == saved


def test_a_placement_can_be_said_op_by_op(tmp_path: Path) -> None:
    problem = chain_problem()
    names = problem.graph.op_names
    path = tmp_path / "ops.json"
    halves = dict.fromkeys(names, "k80:0") | dict.fromkeys(names[-2:], "k80:1")
    path.write_text(json.dumps(halves))
    level, placement = load_placement_of_any_level(path, problem)
    expected = [int(halves[name][-1]) for name in names]
    assert level.expand(placement).tolist() == expected
    for coarser in map(problem.at_level, range(level.level)):
        assert coarser.expand(coarser.placement_of_ops(expected)).tolist() != expected
    path.write_text(json.dumps({name: f"k80:{op % 2}" for op, name in enumerate(names)}))
    level, placement = load_placement_of_any_level(path, problem)
    assert level.num_groups == 12
    assert placement.tolist() == [0, 1] * 6
    alone = chain_problem(sizes=(2, 12)).at_level(1)  # whose groups have the names of their ops
    save_placement(placement * 0, alone, path)
    assert load_placement_of_any_level(path, alone)[0] == alone
    path.write_text(json.dumps(dict.fromkeys(names[1:], "k80:0")))
    with refused(f"{path}: 'op0': expected a device for every op, got none"):
        load_placement_of_any_level(path, problem)
    nearly_all = [*problem.levels[-1].group_names[1:], "more"]
    path.write_text(json.dumps(dict.fromkeys(nearly_all, "k80:0")))
    with refused(f"{path}: 'more': expected the name of a group of the problem"):
        load_placement_of_any_level(path, problem)
    together = diamond_problem(graph=diamond(colocation=[0, 0, -1, -1]))
    by_op = {name: f"k80:{op % 2}" for op, name in enumerate(together.graph.op_names)}
    path.write_text(json.dumps(by_op))
    with refused(f"{path}: 'split': expected a device that can run it, and the one of all ops"):
        load_placement_of_any_level(path, together)
