from collections.abc import Sequence
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto import load_model_graph
from placeto.problems.cache import FOLDER_VARIABLE
from placeto_capture import DEVICE_KINDS, Efficiency
from placeto_capture.costs.op_classes import OpClass
from placeto_capture.costs.roofline import roofline, single_device_runtime
from placeto_experiments.costs import fit
from placeto_graphs import OpGraph, Phase, from_networkx

K80 = DEVICE_KINDS["k80"]
TYPES = {
    "aten.convolution": OpClass.CONVOLUTION,
    "aten.native_batch_norm": OpClass.NORMALISATION,
    "aten.relu": OpClass.ELEMENTWISE,
    "aten.cat": OpClass.COPY,
}


def chain(works: Sequence[tuple[str, float, float]], phase: Phase = Phase.FORWARD) -> OpGraph:
    ops = nx.DiGraph()
    ops.add_node("weights", op_type="parameter", parameter_bytes=4)
    for index, (op_type, flops, moved) in enumerate(works):
        ops.add_node(index, op_type=op_type, flops=flops, bytes_accessed=moved, phase=int(phase))
    return from_networkx(ops)


def step(graph: OpGraph, seconds: float) -> fit.Step:
    published = fit.PublishedStep("k80", "some model", seconds, fit.WHOLE_STEP, "nowhere")
    return fit.step_of(published, graph, K80)


works = st.lists(
    st.tuples(st.sampled_from(sorted(TYPES)), st.floats(0, 1e12), st.floats(0, 1e10)), min_size=1
)


@given(works)
def test_a_step_takes_as_long_as_all_its_ops_on_one_device(
    some: list[tuple[str, float, float]],
) -> None:
    graph = chain(some)
    taken = step(graph, seconds=1.0).runtime(K80.efficiency)
    assert taken == pytest.approx(single_device_runtime(graph, "k80"), rel=1e-9)


@given(
    works,
    st.dictionaries(st.sampled_from(list(OpClass)), st.floats(0.01, 1.0)),
)
def test_a_step_takes_as_long_as_the_roofline_says_with_any_efficiencies(
    some: list[tuple[str, float, float]], changes: dict[OpClass, float]
) -> None:
    efficiency = replace(K80.efficiency, **{str(name): value for name, value in changes.items()})
    graph = chain(some)
    seconds = roofline(graph, replace(K80, efficiency=efficiency))
    between = 5.7e-6 * (len(some) - 1)
    taken = step(graph, seconds=1.0).runtime(efficiency)
    assert taken == pytest.approx(seconds.sum() + between, rel=1e-9)


def test_a_step_without_update_leaves_it_out() -> None:
    graph = chain([("aten.relu", 0, 1e9)], Phase.UPDATE)
    published = fit.PublishedStep("k80", "some model", 1.0, fit.WITHOUT_UPDATE, "nowhere")
    assert fit.step_of(published, graph, K80).runtime(K80.efficiency) == 0


def test_a_fit_hits_the_published_times_and_moves_no_more_than_it_must() -> None:
    dense = chain([("aten.convolution", 1e12, 1e9), ("aten.native_batch_norm", 0, 2e10)])
    thin = chain([("aten.convolution", 1e9, 5e9), ("aten.native_batch_norm", 0, 2e10)])
    steps = [step(dense, seconds=1.0), step(thin, seconds=2.0)]
    fitted = fit.fit(steps, fit.K80_CENTRE)
    assert steps[0].runtime(fitted) == pytest.approx(1.0, rel=0.01)
    assert steps[1].runtime(fitted) == pytest.approx(2.0, rel=0.01)
    moved = {name for name in OpClass if getattr(fitted, name) != getattr(fit.K80_CENTRE, name)}
    assert moved == {OpClass.CONVOLUTION, OpClass.DEPTHWISE_CONVOLUTION}


def test_a_class_that_no_step_tells_of_stays_where_it_began() -> None:
    dense = chain([("aten.convolution", 1e12, 1e9)])
    fitted = fit.fit([step(dense, seconds=1.0)], fit.K80_CENTRE)
    assert fitted == replace(fit.K80_CENTRE, convolution=fitted.convolution)
    assert fitted.convolution == pytest.approx(1e12 / 4.37e12, rel=0.01)


def test_a_fit_without_steps_to_learn_from_stays_where_it_began() -> None:
    idle = chain([("aten.relu", 0, 0)])
    assert fit.fit([step(idle, seconds=1.0)], fit.CPU_CENTRE) == fit.CPU_CENTRE


def test_no_other_efficiencies_are_more_plausible() -> None:
    """The sum of squares that `fit` minimises, written out, is least at what it returns."""
    steps = [
        step(chain([("aten.convolution", 1e12, 1e9), ("aten.relu", 0, 4e10)]), seconds=2.0),
        step(chain([("aten.convolution", 1e9, 5e9), ("aten.cat", 0, 4e10)]), seconds=1.0),
    ]

    def implausibility(efficiency: Efficiency) -> float:
        data = [
            np.log(one.runtime(efficiency) / one.published.seconds) / fit.DATA_SPREAD
            for one in steps
        ]
        prior = [
            np.log(getattr(efficiency, name) / getattr(fit.K80_CENTRE, name))
            / np.log(fit.SPREAD[name])
            for name in fit.SPREAD
        ]
        return float(np.square(data + prior).sum())

    fitted = fit.fit(steps, fit.K80_CENTRE)
    least = implausibility(fitted)
    for name in fit.SPREAD:
        for factor in (0.9, 1.1):
            other = replace(fitted, **{str(name): getattr(fitted, name) * factor})
            assert implausibility(other) > least


@pytest.fixture(scope="module")
def full_size_graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OpGraph]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        return {name: load_model_graph(name) for name in ("inception-v3", "nasnet")}


@pytest.mark.slow
def test_the_constants_are_what_the_fit_to_the_full_size_graphs_gives(
    full_size_graphs: dict[str, OpGraph],
) -> None:
    fits = fit.fit_all(full_size_graphs)
    assert {one.device.name for one in fits} == {"cpu", "k80", "p100", "v100"}
    for one in fits:
        for op_class in OpClass:
            constant = getattr(one.device.efficiency, op_class)
            assert getattr(one.fitted, op_class) == pytest.approx(constant, rel=0.01)


@pytest.mark.slow
def test_the_fitted_steps_take_about_as_long_as_published(
    full_size_graphs: dict[str, OpGraph],
) -> None:
    steps = {
        (step.published.kind, step.published.model): step.runtime(one.fitted)
        for one in fit.fit_all(full_size_graphs)
        for step in one.steps
    }
    for kind, model, published in [
        ("k80", "inception-v3", 1.56),
        ("k80", "nasnet", 1.28),
        ("cpu", "inception-v3", 12.5),
        ("cpu", "nasnet", 37.5),
    ]:
        assert steps[kind, model] == pytest.approx(published, rel=0.02)
        runtime = single_device_runtime(full_size_graphs[model], kind)
        assert runtime == pytest.approx(steps[kind, model], rel=1e-9)


@pytest.mark.slow
def test_the_tables_of_the_fit_have_a_row_for_every_class_and_every_step(
    full_size_graphs: dict[str, OpGraph],
) -> None:
    fits = fit.fit_all(full_size_graphs)
    assert len(fit.efficiency_table(fits).splitlines()) == 2 + len(OpClass)
    assert len(fit.residual_table(fits).splitlines()) == 2 + len(fit.PUBLISHED_STEPS)
    for row in fit.share_table(fits).splitlines()[2:]:
        shares = [float(cell.strip(" %")) for cell in row.split("|")[3:-1]]
        assert sum(shares) == pytest.approx(100, abs=0.5)
