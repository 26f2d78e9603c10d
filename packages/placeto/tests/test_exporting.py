"""``placeto export``: other libraries take what it writes, and run a step with it."""

import re
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pydot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

from dispatched_models import dispatch_on_cpu, forward_on_fake_gpus
from exported_models import (
    RECIPES,
    Chain,
    Mixed,
    Recipe,
    Residual,
    drawn,
    features,
    model_of,
    problem_of_ops,
    with_memory,
)
from placeto.errors import InputError
from placeto.exporting.device_map import device_map, whole_modules
from placeto.exporting.formats import FORMATS
from placeto.exporting.forms import ModuleScopes
from placeto.exporting.layers import pipeline_stages
from placeto.placing.costs import costs
from placeto.placing.evaluators import STEP
from placeto_graphs import (
    PlacementProblem,
    from_networkx,
    groups_to_networkx,
    micro_batched_problem,
    parse_cluster,
)
from placeto_simulator import Simulator


def by_scope(problem: PlacementProblem, device_of: dict[str, int]) -> NDArray[np.int32]:
    """A placement by the first part of each scope; of others, by that of ``""``."""
    devices = [
        next((device for name, device in device_of.items() if name and scope.startswith(name)), -1)
        for scope in problem.graph.scopes
    ]
    everywhere = [device_of[""] if device < 0 else device for device in devices]
    return problem.placement_of_ops(np.array(everywhere, np.int32))


@settings(max_examples=25, deadline=None)
@given(recipes=st.lists(RECIPES, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_accelerate_dispatches_models_of_all_forms(recipes: list[Recipe], seed: int) -> None:
    model, inputs = model_of(*recipes), features(2)
    problem = problem_of_ops(model, inputs, "3xv100")
    exported_map = device_map(problem, drawn(problem, seed))
    expected = model(inputs)
    dispatch_on_cpu(model, exported_map.modules)
    torch.testing.assert_close(model(inputs), expected)
    forward_on_fake_gpus(model, exported_map.modules, exported_map.main_device, [inputs])


@pytest.mark.parametrize(
    "apart", [("first", "last"), ("branches.left.2", "branches.right.1"), ("first", "")]
)
def test_modules_share_a_device_only_where_a_dispatched_model_would_fail(
    apart: tuple[str, str],
) -> None:
    inputs = features(4, 3)
    problem = problem_of_ops(Mixed(), inputs, "2xv100")
    first_op, labels = whole_modules(ModuleScopes(problem.graph))
    assert labels[first_op[apart[0]]] == labels[first_op[apart[1]]]
    modules: dict[str, int | str] = {name: 0 for name in first_op if name}
    modules |= {"position": 0, apart[1] or "position": 1}
    model = Mixed().eval()
    dispatch_on_cpu(model, modules)
    with pytest.raises(FakeTensorDeviceMismatchError):
        forward_on_fake_gpus(model, modules, int(apart[1] == ""), [inputs])


def test_modules_that_can_be_apart_are_as_small_as_that_allows() -> None:
    problem = problem_of_ops(Mixed(), features(4, 3), "2xv100")
    first_op, labels = whole_modules(ModuleScopes(problem.graph))
    blocks = ["blocks.0", "blocks.1", "blocks.2"]
    branches = [f"branches.left.{layer}" for layer in range(3)]
    branches += [f"branches.right.{layer}" for layer in range(2)]
    alone = [*blocks, "attention", "norm"]
    assert set(first_op) == {"", "first", "last", "unused", *branches, *alone}
    assert len({labels[first_op[name]] for name in alone}) == 5


def test_what_is_split_goes_to_where_it_costs_least() -> None:
    model = nn.Sequential(Residual(), Residual(), nn.Linear(8, 2))
    problem = problem_of_ops(model, features(4), "3xv100")
    devices = {"": 0, "0": 1, "1.wide": 1, "1": 2, "2": 2}
    placement = by_scope(problem, devices)
    exported_map = device_map(problem, placement)
    assert exported_map.split == ("1",)
    trials = []
    for device in range(3):
        tried = by_scope(problem, devices | {"1.wide": device, "1": device})
        trials.append(costs(Simulator(problem), tried[None])[0])
    assert trials[int(exported_map.modules["1"])] == min(trials) < max(trials)
    # Some ops of the loss run elsewhere in the trials.
    assert exported_map.price.runtime == pytest.approx(min(trials), rel=0.05)
    assert exported_map.price.runtime_as_placed == costs(Simulator(problem), placement[None])[0]


def test_gpus_are_numbered_and_cpus_beside_them_compute_nothing() -> None:
    problem = problem_of_ops(Chain(), features(4), "1xcpu+2xv100")
    assert set(device_map(problem, drawn(problem, 3)).modules.values()) <= {0, 1}
    cpus = problem_of_ops(Chain(), features(4), "2xcpu")
    assert device_map(cpus, drawn(cpus, 3)).modules == {"": "cpu"}
    seconds = problem.compute_time.copy()
    seconds[[scope == "last" for scope in problem.graph.scopes], 1:] = np.inf
    only_cpu = replace(problem, compute_time=seconds)
    with pytest.raises(InputError, match=r"a GPU that can run all of the module of last\.weight,"):
        device_map(only_cpu, np.zeros(problem.num_groups, np.int32))


@pytest.mark.parametrize("form", ["accelerate", "torch"])
def test_what_fits_is_found_and_what_does_not_is_said(form: str) -> None:
    """Weights and Adam's two moments of each are 3 x 4 bytes of the model's parameters."""
    problem = problem_of_ops(Chain(), features(4), "2xv100")
    everywhere = np.zeros(problem.num_groups, np.int32)
    peak_bytes = int(Simulator(problem).evaluate(everywhere[None]).peak_memory.max())
    exported = FORMATS[form].export(with_memory(problem, int(0.8 * peak_bytes)), everywhere, STEP)
    assert exported.price is not None
    assert exported.price.fits
    text = FORMATS[form].export(with_memory(problem, 100), everywhere, STEP).remarks[1]
    remark = re.search(r", out of memory: v100:0 needs ([0-9.]+) kB of 100 B", text)
    assert remark is not None, text
    assert float(remark[1]) * 1e3 > 12 * sum(weight.numel() for weight in Chain().parameters())


@pytest.mark.parametrize("form", ["accelerate", "llama.cpp"])
def test_devices_of_two_machines_are_refused(form: str) -> None:
    problem = problem_of_ops(Chain(), features(4), "2x(1xv100)")
    with pytest.raises(InputError, match=r"expected devices of one machine, as .*, got 2$"):
        FORMATS[form].export(problem, np.zeros(problem.num_groups, np.int32), STEP)


def test_a_file_of_stages_names_where_each_begins_and_its_device() -> None:
    problem = problem_of_ops(Chain(), features(4), "3xv100")
    devices = {"": 0, "blocks.0": 0, "blocks.1": 2, "blocks.2": 2, "last": 1}
    names: dict[str, Any] = {}
    exec(FORMATS["torch"].export(problem, by_scope(problem, devices), STEP).content, names)  # noqa: S102
    assert names["SPLIT_POINTS"] == ["blocks.1", "last"]
    assert names["DEVICES"] == ["v100:0", "v100:2", "v100:1"]


def test_micro_batches_are_in_the_stages_of_the_whole() -> None:
    whole = problem_of_ops(Chain(), features(4), "2xv100")
    for problem in (whole, micro_batched_problem(whole, 2)):
        devices = {"": 0, "blocks.0": 0, "blocks": 1, "last": 1}
        stages = pipeline_stages(problem, by_scope(problem, devices))
        assert (stages.split_points, stages.as_placed) == (("blocks.1",), True)
        assert stages.price.runtime == pytest.approx(stages.price.runtime_as_placed, rel=0.2)


@pytest.mark.parametrize("device_of", [{"norm": 1, "last": 1}, {"blocks.1": 1}])
def test_a_weight_of_two_stages_is_named(device_of: dict[str, int]) -> None:
    """In Python as in the command, for a chain and for a placement that is none."""
    problem = problem_of_ops(Mixed(), features(4, 3), "2xv100")
    placement = by_scope(problem, {"": 0} | device_of)
    for form in (FORMATS["torch"].export, pipeline_stages):
        with pytest.raises(InputError, match=r"first\.weight is read in the stages 0 and 1$"):
            form(problem, placement, STEP)


def test_graphml_is_read_back() -> None:
    problem = problem_of_ops(Chain(), features(4), "2xv100")
    placement = drawn(problem, 2)
    expected = groups_to_networkx(problem, placement)
    read = nx.parse_graphml(exported_text("graphml", problem, placement))
    assert dict(read.nodes(data=True)) == dict(expected.nodes(data=True))
    assert list(read.edges(data=True)) == list(expected.edges(data=True))


def exported_text(form: str, problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    return FORMATS[form].export(problem, placement, STEP).content


def problem_of_names(*names: str) -> PlacementProblem:
    chain = nx.path_graph(len(names), nx.DiGraph)
    ops = from_networkx(nx.relabel_nodes(chain, dict(enumerate(names))))
    return PlacementProblem(
        graph=ops, cluster=parse_cluster("2xk80"), compute_time=np.ones((len(names), 2))
    )


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of pydot
def test_names_of_groups_may_hold_what_graphviz_has_a_meaning_for() -> None:
    problem = problem_of_names("a:b", 'say "so"', "back\\slash", "node")
    graphs = pydot.graph_from_dot_data(
        exported_text("dot", problem, np.array([0, 1, 0, 1], np.int32))
    )
    assert graphs is not None
    nodes = graphs[0].get_nodes()
    assert [node.get("device").strip('"') for node in nodes] == ["k80:0", "k80:1"] * 2
    assert len(graphs[0].get_edges()) == 3


def test_names_that_xml_cannot_hold_are_refused() -> None:
    everywhere = np.zeros(2, np.int32)
    problem = problem_of_names("<&>\"'", "\U0001f600 é")
    read = nx.parse_graphml(exported_text("graphml", problem, everywhere))
    assert list(read) == ["<&>\"'", "\U0001f600 é"]
    with pytest.raises(InputError, match=r"expected names that XML can hold, got 'a\\x1f'$"):
        exported_text("graphml", problem_of_names("a\x1f", "b"), everywhere)
