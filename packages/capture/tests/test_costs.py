"""The time of ops on each kind of device."""

import warnings
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from placeto_capture import CaptureError, CaptureWarning, capture, cost_model, cost_models
from placeto_capture.costs.op_classes import (
    CLASS_OF_TYPE,
    DENSE_INTENSITY,
    NAMES_OF_CLASS,
    OpClass,
    op_class,
)
from placeto_capture.costs.roofline import precision_of
from placeto_graphs import DEVICE_KINDS, DeviceKind, OpGraph, from_networkx, parse_cluster

KINDS = sorted(DEVICE_KINDS)


def graph_of(**attributes: object) -> OpGraph:
    """Return a graph of one op."""
    ops = nx.DiGraph()
    ops.add_node("op", **attributes)
    return from_networkx(ops)


def seconds(kind: str, **attributes: object) -> float:
    return float(cost_model(graph_of(**attributes), kind)[0])


@pytest.mark.parametrize("op_type", ["parameter", "buffer", "input"])
def test_what_is_there_when_the_step_begins_takes_no_time(op_type: str) -> None:
    assert seconds("k80", op_type=op_type, parameter_bytes=10**9, bytes_accessed=1e9) == 0


def test_the_time_between_ops_is_not_in_the_time_of_an_op() -> None:
    overhead = parse_cluster("1xk80").devices[0].op_overhead
    assert seconds("k80", op_type="aten.add", bytes_accessed=12) < overhead


def test_measured_times_come_before_the_model_and_need_no_known_kind() -> None:
    graph = graph_of(op_type="aten.mm", flops=1e12, measured_time={"k80": 7.0, "tpu": 3.0})
    assert cost_model(graph, "k80").tolist() == [7.0]
    assert cost_model(graph, "tpu").tolist() == [3.0]
    assert cost_model(graph, "cpu")[0] == seconds("cpu", op_type="aten.mm", flops=1e12)


def test_an_unknown_kind_lists_the_known_ones() -> None:
    graph = graph_of(measured_time={"tpu": 3.0})
    with pytest.raises(CaptureError) as caught:
        cost_model(graph, "abacus")
    assert str(caught.value) == (
        f"kind: expected one of {', '.join(sorted([*KINDS, 'tpu']))}, or one that the cluster's "
        "file describes in [kinds.abacus], got 'abacus'"
    )


FLASH = "aten._scaled_dot_product_flash_attention"
CARD = DeviceKind(
    name="card",
    memory_bytes=1,
    memory_bandwidth=50.0,
    peak_flops=1000.0,
    peak_flops_in={"float16": 4000.0, "tf32": 2000.0},
    launch_overhead=0.25,
    op_overhead=0.0,
    efficiency=replace(
        DEVICE_KINDS["h100"].efficiency,
        convolution=0.8,
        matrix_product=0.5,
        tensor_core_convolution=0.4,
        tensor_core_product=0.3,
        attention=0.25,
        depthwise_convolution=0.2,
        product_bytes=0.6,
        elementwise=0.4,
        copy=0.1,
    ),
)


@pytest.mark.parametrize(
    ("op_type", "dtype", "flops", "moved", "expected"),
    [
        ("aten.mm", "", 600.0, 1.0, 0.25 + 600 / 1000 / 0.5),
        ("aten.mm", "float16", 600.0, 0.0, 0.25 + 600 / 4000 / 0.3),
        # Numbers of a dtype without a peak count as float32, complex ones as their parts.
        ("aten.mm", "int3", 600.0, 1.0, 0.25 + 600 / 1000 / 0.5),
        ("aten.mm", "complex32", 600.0, 0.0, 0.25 + 600 / 4000 / 0.3),
        ("aten.exp", "float16", 600.0, 1.0, 0.25 + 600 / 1000 / 0.4),
        ("aten.mm", "float32", 600.0, 90.0, 0.25 + 90 / 50 / 0.6),
        # Bytes move as those of products do. They take 0.6, 0.8 and 0.9 here, the FLOPs 0.75.
        ("aten.convolution", "int3", 600.0, 18.0, 0.25 + 600 / 1000 / 0.8),
        ("aten.convolution", "int3", 600.0, 24.0, 0.25 + 24 / 50 / 0.6),
        ("aten.convolution", "int3", 600.0, 27.0, 0.25 + 27 / 50 / 0.6),
        # What is in no class: 12 FLOPs a byte are many of float32, and few of float16.
        ("mylib.attention", "float32", 240.0, 20.0, 0.25 + 20 / 50 / 0.6),
        ("mylib.attention", "float16", 240.0, 20.0, 0.25 + 20 / 50 / 0.4),
        ("Conv2d", "", 600.0, 0.0, 0.25 + 600 / 1000 / 0.5),
        ("Conv2d", "", 0.0, 7.0, 0.25 + 7 / 50 / 0.4),
        ("aten.cat", "float16", 0.0, 7.0, 0.25 + 7 / 50 / 0.1),
        ("parameter", "float32", 0.0, 7.0, 0.0),
    ],
)
def test_a_kind_of_ones_own_has_the_times_of_its_description(
    op_type: str, dtype: str, flops: float, moved: float, expected: float
) -> None:
    graph = graph_of(op_type=op_type, dtype=dtype, flops=flops, bytes_accessed=moved)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)  # of types in no class
        times = cost_models(graph, ["k80", CARD])
        assert list(times) == ["k80", "card"]
        assert times["card"][0] == cost_model(graph, CARD)[0] == pytest.approx(expected, rel=1e-12)
        assert times["k80"] == cost_model(graph, "k80")
        half = cost_model(graph, replace(CARD, speed=0.5))
    assert half == pytest.approx(2 * times["card"], rel=1e-12)


@pytest.mark.parametrize("tf32", ["never", "convolutions", "always"])
@pytest.mark.parametrize(
    ("op_type", "groups", "rounding", "efficiency", "on_tensor_cores"),
    [
        ("aten.convolution", 1, {"convolutions", "always"}, 0.8, 0.4),
        ("aten.mm", 1, {"always"}, 0.5, 0.3),
    ],
)
def test_float32_is_rounded_where_it_may_be(
    op_type: str,
    groups: int,
    rounding: set[str],
    efficiency: float,
    on_tensor_cores: float,
    tf32: Any,
) -> None:
    (time,) = cost_model(graph_of(op_type=op_type, groups=groups, flops=600.0), CARD, tf32=tf32)
    reached = 0.6 * 2000 * on_tensor_cores if tf32 in rounding else 1000 * efficiency
    assert time == pytest.approx(0.25 + 600 / reached, rel=1e-12)


def test_how_products_compute_says_nothing_of_how_they_read() -> None:
    efficiency = replace(CARD.efficiency, matrix_product=0.25, convolution=0.25)
    slow = replace(CARD, efficiency=efficiency)
    for op_type in ("aten.mv", "aten.addmm", "aten.convolution"):
        graph = graph_of(op_type=op_type, dtype="bfloat16", flops=2.0, bytes_accessed=30.0)
        assert cost_model(graph, slow)[0] == pytest.approx(0.25 + 30 / 50 / 0.6, rel=1e-12)


def test_a_batch_norm_of_known_statistics_reads_its_images_once() -> None:
    ops = nx.DiGraph()
    ops.add_node("norm", op_type="aten.native_batch_norm", bytes_accessed=1e9)
    ops.add_node("relu", op_type="aten.relu", bytes_accessed=1e9)
    norm, relu = cost_model(from_networkx(ops), "a100")
    assert norm == relu
    ops.add_node("gradient", op_type="aten.relu_backward", bytes_accessed=1e9, phase=1)
    norm, relu, _ = cost_model(from_networkx(ops), "a100")
    assert norm > 1.3 * relu


def test_nothing_to_do_takes_no_time() -> None:
    with pytest.warns(CaptureWarning, match=r": 'mylib\.magic' \(0\.0% on cpu\)$"):
        assert cost_model(graph_of(op_type="mylib.magic"), "cpu") == 0


def graph_with_unknown_types() -> OpGraph:
    """Return a sum beside ops of no class: two of one type, and one with many FLOPs."""
    ops = nx.DiGraph()
    ops.add_node("weights", op_type="parameter", parameter_bytes=4)
    ops.add_node("sum", op_type="aten.add", bytes_accessed=3e9)
    ops.add_node("layer.magic", op_type="mylib.magic", bytes_accessed=1e9)
    ops.add_node("layer.more_magic", op_type="mylib.magic")
    ops.add_node("attention", op_type="mylib.attention", flops=1e12, bytes_accessed=1e6)
    return from_networkx(ops)


def test_what_nothing_is_known_of_is_refused() -> None:
    step = nx.DiGraph([("images", "layer")])
    step.nodes["images"]["op_type"] = "placeto.input"
    for op_type in ("Conv2d", "layer.conv 3x3"):
        step.nodes["layer"]["op_type"] = op_type
        with pytest.raises(CaptureError, match=f"got '{op_type}' without any"):
            cost_model(from_networkx(step), "k80")


def profiled_products(known: int) -> OpGraph:
    """Return four products that take 3 ms on an A100, of which some have FLOPs."""
    ops = nx.DiGraph()
    for number in range(4):
        work = {"flops": 1e9} if number < known else {}
        ops.add_node(f"mm{number}", op_type="aten.mm", measured_time={"a100": 3e-3}, **work)
    return from_networkx(ops)


def test_a_kind_is_refused_where_most_of_the_time_is_unknown() -> None:
    message = (
        r"^flops: expected FLOPs, bytes or measured times to tell the time on t4 of all ops, got "
        r"none of 3 ops, such as 'mm1' \(aten\.mm\), which are most of the step; measure it on "
        r"t4, or leave that kind out$"
    )
    with pytest.raises(CaptureError, match=message):
        cost_models(profiled_products(1), ["a100", "t4"])
    assert cost_model(profiled_products(1), "a100").tolist() == [3e-3] * 4
    with pytest.raises(CaptureError, match="none of 1 ops"):  # nothing is measured
        cost_model(graph_of(op_type="aten.mm"), "t4")


def test_a_smaller_part_that_is_unknown_is_said() -> None:
    with pytest.warns(CaptureWarning, match=r"on t4, l4 of all ops, got none of 2 ops, .* launche"):
        times = cost_models(profiled_products(2), ["t4", "l4"])
    assert times["t4"][2] == DEVICE_KINDS["t4"].launch_overhead


def test_what_moves_nothing_or_was_measured_to_take_no_time_is_known() -> None:
    ops = nx.DiGraph()
    ops.add_node("view", op_type="aten.view", measured_time={"a100": 0.0})
    ops.add_node("empty", op_type="aten.mm", measured_time={"a100": 0.0})
    ops.add_node("sum", op_type="aten.add", bytes_accessed=1e6, measured_time={"a100": 1e-3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost_model(from_networkx(ops), "t4")
        for node in ops.nodes.values():
            del node["measured_time"]
        ops.nodes["empty"]["op_type"] = "aten.empty"
        cost_model(from_networkx(ops), "t4")


def test_an_unknown_choice_of_rounding_is_named() -> None:
    choice: Any = "sometimes"
    with pytest.raises(CaptureError, match=r"tf32: expected one of never, .*, got 'sometimes'"):
        cost_model(graph_of(op_type="aten.mm"), "a100", tf32=choice)


def test_one_warning_names_the_types_in_no_class_and_their_largest_share() -> None:
    graph = graph_with_unknown_types()
    with pytest.warns(CaptureWarning) as caught:
        times = cost_models(graph, ["k80", "v100"])
    with pytest.warns(CaptureWarning) as caught_of_one:
        cost_model(graph, "k80")
    assert {warning.filename for warning in (*caught, *caught_of_one)} == {__file__}
    (warning,) = caught
    k80 = times["k80"] / times["k80"].sum()
    v100 = times["v100"] / times["v100"].sum()
    of_magic = max((k80[2] + k80[3], "k80"), (v100[2] + v100[3], "v100"))
    of_attention = max((k80[4], "k80"), (v100[4], "v100"))
    named = zip(("mylib.attention", "mylib.magic"), (of_attention, of_magic), strict=True)
    expected = ", ".join(f"'{name}' ({share:.1%} on {kind})" for name, (share, kind) in named)
    assert str(warning.message).endswith(f"share of the time of all ops: {expected}")


@pytest.mark.parametrize(
    ("op_type", "flops", "moved", "expected"),
    [
        ("aten.add_", 0, 1e6, OpClass.ELEMENTWISE),
        ("aten._foreach_copy_", 0, 1e6, OpClass.COPY),
        ("aten._scaled_dot_product_flash_attention_for_cpu", 1, 1, OpClass.ATTENTION),
        ("aten._scaled_dot_product_efficient_attention_backward", 1, 1, OpClass.ATTENTION),
        ("mylib.attention", 9e6, 1e6, OpClass.MATRIX_PRODUCT),
        ("mylib.activation", 1e6, 1e6, OpClass.ELEMENTWISE),
        ("mylib.magic", 0, 0, OpClass.ELEMENTWISE),
    ],
)
def test_the_class_of_an_op(op_type: str, flops: float, moved: float, expected: OpClass) -> None:
    assert op_class(op_type, flops, moved) is expected


@pytest.mark.parametrize("kind", ["k80", "v100", "rtx4090", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_groups_of_a_convolution_have_no_cliff(kind: str, dtype: str) -> None:
    """More channels a group, of as much work, are never slower, and never much faster."""

    def of_groups(groups: int, channels: int) -> float:
        work = {"dtype": dtype, "flops": 2e10, "bytes_accessed": 1e8}
        shape = {"groups": groups, "group_channels": channels}
        return seconds(kind, op_type="aten.convolution", **work, **shape)

    times = np.array([of_groups(64, channels) for channels in range(1, 400)])
    assert (np.diff(times) <= 0).all()
    assert (times[:-1] / times[1:] < 2.001).all()
    dense = of_groups(1, 512)
    assert dense <= times[-1] < 1.6 * dense
    assert of_groups(31, 16) == of_groups(32, 16) == of_groups(33, 16)
    assert of_groups(64, 0) == of_groups(64, 1)  # not known


@pytest.mark.parametrize(
    ("op_type", "dtype", "flops", "moved", "expected"),
    [
        # Peaks, with 1000 FLOP/s and 50 bytes/s: 4000 of float16; 0.6 x 2000 of TensorFloat-32.
        ("aten.convolution", "float16", 600.0, 3.0, 600 / 4000 / 0.4 + 3 / 50 / 0.6),
        ("aten.convolution", "float32", 600.0, 3.0, 600 / 1200 / 0.4 + 3 / 50 / 0.6),
        ("aten.mm", "float16", 600.0, 3.0, 600 / 4000 / 0.3 + 3 / 50 / 0.6),
        ("aten.mm", "bfloat16", 600.0, 3.0, 600 / 1000 / 0.5),
        (f"{FLASH}", "float16", 600.0, 3.0, 600 / 4000 / 0.25 + 3 / 50 / 0.6),
        (f"{FLASH}", "float32", 600.0, 3.0, 600 / 1000 / 0.25),
    ],
)
def test_bytes_come_on_top_of_flops_on_tensor_cores(
    op_type: str, dtype: str, flops: float, moved: float, expected: float
) -> None:
    graph = graph_of(op_type=op_type, dtype=dtype, flops=flops, bytes_accessed=moved)
    assert cost_model(graph, CARD)[0] == pytest.approx(0.25 + expected, rel=1e-12)


def test_pairs_that_a_kernel_leaves_out_take_no_time() -> None:
    attends = {"op_type": FLASH, "dtype": "float16", "flops": 600.0, "bytes_accessed": 3.0}
    time = cost_model(graph_of(**attends, computed_part=0.5), CARD)[0]
    assert time == pytest.approx(0.25 + 300 / 4000 / 0.25 + 3 / 50 / 0.6, rel=1e-12)


# Dtypes that a kind of device has a peak for, and further ones.
DTYPES = {"float32", "float8_e8m0fnu", "int16", "int64", "uint8"}.union(
    *(kind.peak_flops_in for kind in DEVICE_KINDS.values())
)


@pytest.mark.parametrize("dtype", sorted(DTYPES - {"tf32"}))
def test_an_op_of_no_class_is_in_the_same_one_in_every_dtype(dtype: str) -> None:
    """It moves fewer bytes for as many FLOPs where numbers are narrower."""
    numbers_of_element = 2 if dtype.endswith("_x2") else 1
    moved = 1e6 * getattr(torch, dtype).itemsize / numbers_of_element / torch.float32.itemsize
    limit = 1e6 * DENSE_INTENSITY
    product = op_class("mylib.attention", limit * 1.01, moved, dtype=dtype)
    assert product is OpClass.MATRIX_PRODUCT
    sum_of_terms = op_class("mylib.attention", limit * 0.99, moved, dtype=dtype)
    assert sum_of_terms is OpClass.ELEMENTWISE


COMPLEX_DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and dtype.is_complex
    },
    key=lambda dtype: dtype.itemsize,
)


@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
def test_a_product_of_complex_numbers_is_one_of_their_parts(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    precision = precision_of(name, OpClass.MATRIX_PRODUCT, "never")
    assert precision == str(dtype.to_real()).removeprefix("torch.")


@pytest.mark.parametrize(("kind", "batch"), [("cpu", 4), ("v100", 4), ("v100", 16)])
def test_a_convolution_of_pixels_costs_what_a_linear_layer_does(kind: str, batch: int) -> None:
    """Where both are bound by memory, the weights are most of it."""
    layers = (nn.Conv2d(512, 512, 1), (batch, 512, 1, 1)), (nn.Linear(512, 512), (batch, 512))
    graphs = [capture(layer, torch.empty(shape), mode="inference") for layer, shape in layers]
    pixels, rows = (cost_model(graph, kind).sum() for graph in graphs)
    assert pixels == pytest.approx(rows, rel=0.01)


def test_each_type_stands_in_one_class() -> None:
    names = [name for name in NAMES_OF_CLASS.values() for name in name.split()]
    assert len(names) == len(set(names))


works = st.floats(1, 1e15, allow_nan=False)


@given(st.sampled_from(KINDS), st.sampled_from(sorted(CLASS_OF_TYPE)), works, works, works)
def test_more_bytes_never_take_less_time(
    kind: str, op_type: str, flops: float, moved: float, added_bytes: float
) -> None:
    less_time = seconds(kind, op_type=op_type, flops=flops, bytes_accessed=moved)
    more_time = seconds(kind, op_type=op_type, flops=flops, bytes_accessed=moved + added_bytes)
    assert np.isfinite(more_time)
    assert DEVICE_KINDS[kind].launch_overhead <= less_time <= more_time
