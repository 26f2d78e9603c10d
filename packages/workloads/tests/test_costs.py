from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import OpGraph
from placeto_graphs import from_networkx
from placeto_graphs import parse_cluster
from placeto_workloads import DEVICE_KINDS
from placeto_workloads import Efficiency
from placeto_workloads import WorkloadError
from placeto_workloads import cost_model
from placeto_workloads.costs.op_classes import CLASS_OF_TYPE
from placeto_workloads.costs.op_classes import NAMES_OF_CLASS
from placeto_workloads.costs.op_classes import OpClass
from placeto_workloads.costs.op_classes import op_class
from placeto_workloads.costs.roofline import single_device_runtime

KINDS = sorted(DEVICE_KINDS)


def graph_of(**attributes: object) -> OpGraph:
    """Return a graph of one op."""
    ops = nx.DiGraph()
    ops.add_node("op", **attributes)
    return from_networkx(ops)


def seconds(kind: str, **attributes: object) -> float:
    return float(cost_model(graph_of(**attributes), kind)[0])


def test_kinds_are_those_that_clusters_name() -> None:
    assert KINDS == ["a100", "cpu", "h100", "h200", "k80", "p100", "v100"]
    for kind in KINDS:
        device = parse_cluster(f"1x{kind}").devices[0]
        assert device.memory_bytes == DEVICE_KINDS[kind].memory_bytes
        assert DEVICE_KINDS[kind].name == kind


@pytest.mark.parametrize("kind", KINDS)
def test_dense_work_takes_its_flops_at_the_part_of_the_peak_that_its_class_reaches(
    kind: str,
) -> None:
    device = DEVICE_KINDS[kind]
    expected = device.launch_overhead + 1e12 / device.peak_flops / device.efficiency.matrix_product
    taken = seconds(kind, op_type="aten.mm", flops=1e12, bytes_accessed=1e6)
    assert taken == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_other_work_takes_its_bytes_at_the_part_of_the_bandwidth_that_its_class_reaches(
    kind: str,
) -> None:
    device = DEVICE_KINDS[kind]
    expected = device.launch_overhead + 1e9 / device.memory_bandwidth / device.efficiency.copy
    taken = seconds(kind, op_type="aten.cat", flops=1e6, bytes_accessed=1e9)
    assert taken == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("op_type", ["parameter", "buffer", "input"])
def test_what_is_there_when_the_step_begins_takes_no_time(op_type: str) -> None:
    assert seconds("k80", op_type=op_type, parameter_bytes=10**9, bytes_accessed=1e9) == 0


def test_making_a_constant_is_cheap_but_not_free() -> None:
    assert 0 < seconds("k80", op_type="aten.full", bytes_accessed=4) < 2e-6
    assert 0 < seconds("cpu", op_type="aten.full", bytes_accessed=4) < 2e-6


def test_the_time_between_ops_is_not_in_the_time_of_an_op() -> None:
    overhead = parse_cluster("1xk80").devices[0].op_overhead
    assert seconds("k80", op_type="aten.add", bytes_accessed=12) < overhead
    two = nx.DiGraph()
    two.add_nodes_from(["a", "b"], op_type="aten.add", bytes_accessed=12)
    two.add_node("weights", op_type="parameter", bytes_accessed=12)
    graph = from_networkx(two)
    expected = cost_model(graph, "k80").sum() + overhead
    assert single_device_runtime(graph, "k80") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "launch"),
    [("p100", 4.86e-6), ("v100", 4.86e-6), ("a100", 2.31e-6), ("h100", 2.37e-6), ("h200", 2.37e-6)],
)
def test_an_op_without_work_takes_a_published_launch_and_no_more(kind: str, launch: float) -> None:
    """The overhead in the op and the one after it are the time from one launch to the next."""
    empty = seconds(kind, op_type="aten.full", bytes_accessed=0)
    after = parse_cluster(f"1x{kind}").devices[0].op_overhead
    assert empty + after == pytest.approx(launch, rel=1e-9)


def test_measured_times_come_before_the_model_and_need_no_known_kind() -> None:
    graph = graph_of(op_type="aten.mm", flops=1e12, measured_time={"k80": 7.0, "tpu": 3.0})
    assert cost_model(graph, "k80").tolist() == [7.0]
    assert cost_model(graph, "tpu").tolist() == [3.0]
    assert cost_model(graph, "cpu")[0] == seconds("cpu", op_type="aten.mm", flops=1e12)


def test_the_times_returned_may_be_changed() -> None:
    graph = graph_of(measured_time={"k80": 7.0})
    cost_model(graph, "k80")[0] = 1.0
    assert cost_model(graph, "k80").tolist() == [7.0]


def test_an_unknown_kind_lists_the_known_ones() -> None:
    graph = graph_of(measured_time={"tpu": 3.0})
    with pytest.raises(WorkloadError) as caught:
        cost_model(graph, "abacus")
    assert str(caught.value) == (
        "kind: expected one of a100, cpu, h100, h200, k80, p100, tpu, v100, got 'abacus'"
    )


def test_an_op_that_nothing_is_known_of_is_named() -> None:
    ops = nx.DiGraph()
    ops.add_node("relu", op_type="aten.relu")
    ops.add_node("layer.magic", op_type="mylib.magic")
    with pytest.raises(WorkloadError) as caught:
        cost_model(from_networkx(ops), "k80")
    assert str(caught.value) == (
        "op_types[1]: expected a known type, FLOPs, bytes or measured times to tell the time of op "
        "'layer.magic' on k80, got 'mylib.magic' without any"
    )


@pytest.mark.parametrize(
    ("op_type", "flops", "moved", "expected"),
    [
        ("aten.convolution", 1e9, 1e6, OpClass.CONVOLUTION),
        ("aten.convolution", 6.25e6, 1e6, OpClass.DEPTHWISE_CONVOLUTION),
        ("aten.convolution_backward", 8.3e6, 1e6, OpClass.DEPTHWISE_CONVOLUTION),
        ("aten.addmm", 1e3, 1e6, OpClass.MATRIX_PRODUCT),
        ("aten.native_batch_norm", 0, 1e6, OpClass.NORMALISATION),
        ("aten.add_", 0, 1e6, OpClass.ELEMENTWISE),
        ("aten._foreach_addcdiv_", 0, 1e6, OpClass.ELEMENTWISE),
        ("aten.sum", 0, 0, OpClass.REDUCTION),
        ("aten.cat", 0, 0, OpClass.COPY),
        ("mylib.attention", 1e9, 1e6, OpClass.MATRIX_PRODUCT),
        ("mylib.activation", 1e6, 1e6, OpClass.ELEMENTWISE),
        ("mylib.magic", 0, 0, None),
    ],
)
def test_the_class_of_an_op(
    op_type: str, flops: float, moved: float, expected: OpClass | None
) -> None:
    assert op_class(op_type, flops, moved) is expected


def test_each_class_has_an_efficiency() -> None:
    assert set(Efficiency.__dataclass_fields__) == set(OpClass)


def test_each_type_stands_in_one_class() -> None:
    assert sum(len(names.split()) for names in NAMES_OF_CLASS.values()) == len(CLASS_OF_TYPE)


def test_the_types_are_ops_of_pytorch() -> None:
    names = [op_type.removeprefix("aten.") for op_type in CLASS_OF_TYPE]
    assert [name for name in names if not hasattr(torch.ops.aten, name)] == []


@pytest.mark.parametrize("value", [0.0, -0.5, 1.5, float("nan")])
def test_an_efficiency_is_a_part_of_a_whole(value: float) -> None:
    with pytest.raises(WorkloadError, match="copy: expected an efficiency above 0 and at most 1"):
        replace(DEVICE_KINDS["k80"].efficiency, copy=value)


def test_a_device_can_do_something() -> None:
    with pytest.raises(WorkloadError, match="peak_flops: expected a finite number above 0, got 0"):
        replace(DEVICE_KINDS["k80"], peak_flops=0)
    with pytest.raises(WorkloadError, match="memory_bandwidth: expected a finite number above 0"):
        replace(DEVICE_KINDS["k80"], memory_bandwidth=float("inf"))
    with pytest.raises(WorkloadError, match="memory_bytes: expected a finite number above 0"):
        replace(DEVICE_KINDS["k80"], memory_bytes=0)


def test_a_launch_takes_no_negative_time() -> None:
    with pytest.raises(WorkloadError, match="launch_overhead: expected a finite number >= 0"):
        replace(DEVICE_KINDS["k80"], launch_overhead=-1e-6)


works = st.floats(0, 1e15, allow_nan=False)


@given(st.sampled_from(KINDS), st.sampled_from(sorted(CLASS_OF_TYPE)), works, works, works)
def test_more_bytes_never_take_less_time(
    kind: str, op_type: str, flops: float, moved: float, more: float
) -> None:
    if CLASS_OF_TYPE[op_type] is OpClass.CONVOLUTION:
        return  # more bytes make it another class of op
    less_time = seconds(kind, op_type=op_type, flops=flops, bytes_accessed=moved)
    more_time = seconds(kind, op_type=op_type, flops=flops, bytes_accessed=moved + more)
    assert np.isfinite(more_time)
    assert DEVICE_KINDS[kind].launch_overhead <= less_time <= more_time
