"""Convolutions: the work of each, forward and backward, and what it costs."""

import pytest
import torch
from torch import nn

from placeto_capture import capture, cost_model
from placeto_capture.costs.op_classes import OpClass
from placeto_capture.costs.roofline import work_of
from placeto_graphs import DEVICE_KINDS, OpGraph

FORWARD, BACKWARD = "aten.convolution", "aten.convolution_backward"


def ops_of(graph: OpGraph, *op_types: str) -> list[int]:
    return [op for op, op_type in enumerate(graph.op_types) if op_type in op_types]


def trained(layer: nn.Module, *shape: int) -> OpGraph:
    """Capture a step of a layer whose inputs get a gradient, too."""
    return capture(layer, torch.empty(shape, requires_grad=True))


# A multiplication and an addition for each output, channel of its group and place of the window;
# for each input if it is transposed.
BY_HAND: dict[str, tuple[nn.Module, tuple[int, ...], int, int]] = {
    "dense": (nn.Conv2d(16, 32, 3, padding=1), (2, 16, 8, 8), 1, 2 * 2 * 64 * 32 * 16 * 9),
    "grouped": (
        nn.Conv2d(16, 32, 3, padding=1, groups=4),
        (2, 16, 8, 8),
        4,
        2 * 2 * 64 * 32 * 4 * 9,
    ),
    "depthwise": (
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        (2, 16, 8, 8),
        16,
        2 * 2 * 64 * 16 * 9,
    ),
    "strided": (nn.Conv2d(16, 32, 3, 2, 1), (2, 16, 8, 8), 1, 2 * 2 * 16 * 32 * 16 * 9),
    "transposed": (nn.ConvTranspose2d(16, 8, 2, 2), (2, 16, 8, 8), 1, 2 * 2 * 64 * 16 * 8 * 4),
    "transposed in groups": (
        nn.ConvTranspose2d(16, 8, 2, 2, groups=4),
        (2, 16, 8, 8),
        4,
        2 * 2 * 64 * 16 * 2 * 4,
    ),
    "of sequences": (nn.Conv1d(4, 6, 5), (3, 4, 20), 1, 2 * 3 * 16 * 6 * 4 * 5),
    "of volumes": (nn.Conv3d(2, 3, 3), (1, 2, 6, 6, 6), 1, 2 * 64 * 3 * 2 * 27),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_gradient_is_as_much_work_as_the_convolution(name: str) -> None:
    layer, shape, groups, flops = BY_HAND[name]
    graph = trained(layer, *shape)
    (forward,), (backward,) = ops_of(graph, FORWARD), ops_of(graph, BACKWARD)
    assert graph.flops[[forward, backward]].tolist() == [flops, 2 * flops]
    assert graph.groups[[forward, backward]].tolist() == [groups, groups]
    assert graph.groups.sum() == graph.num_ops + 2 * (groups - 1)
    channels = shape[1] // groups
    assert graph.group_channels[[forward, backward]].tolist() == [channels, channels]
    assert graph.group_channels.sum() == 2 * channels


def test_a_gradient_that_nothing_needs_is_no_work() -> None:
    layer = nn.Conv2d(4, 4, 3, groups=4)
    graph = capture(layer, torch.empty(2, 4, 5, 5))  # none of the images
    assert graph.flops[ops_of(graph, BACKWARD)].tolist() == [2 * 2 * 9 * 4 * 9]


def classes_of(graph: OpGraph) -> set[OpClass]:
    """Return the classes of the convolutions of a graph where nothing is bound by memory."""
    (classes, _), members = work_of(graph, DEVICE_KINDS["cpu"]), list(OpClass)
    return {members[classes[op]] for op in ops_of(graph, FORWARD, BACKWARD)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("channels", "groups"), [(64, 64), (64, 16)])
@pytest.mark.parametrize("window", [3, 7])
def test_groups_of_few_channels_are_depthwise(
    window: int, channels: int, groups: int, dtype: torch.dtype
) -> None:
    layer = nn.Conv2d(channels, channels, window, groups=groups, bias=False)
    images = torch.empty(8, channels, 28, 28, dtype=dtype, requires_grad=True)
    assert classes_of(capture(layer.to(dtype), images)) == {OpClass.DEPTHWISE_CONVOLUTION}


@pytest.mark.parametrize(("channels", "groups"), [(64, 8), (768, 16), (3, 1), (1, 1)])
def test_groups_of_many_channels_and_no_groups_are_dense(channels: int, groups: int) -> None:
    layer = nn.Conv1d(channels, 4 * channels, 128, groups=groups)
    assert OpClass.DEPTHWISE_CONVOLUTION not in classes_of(trained(layer, 1, channels, 200))


@pytest.mark.parametrize(("kind", "batch"), [("cpu", 4), ("v100", 4), ("v100", 16)])
def test_a_convolution_of_single_pixels_costs_what_a_linear_layer_does(
    kind: str, batch: int
) -> None:
    """Where both are bound by memory, the weights are most of it."""
    pixels, rows = torch.empty(batch, 512, 1, 1), torch.empty(batch, 512)
    convolution = capture(nn.Conv2d(512, 512, 1), pixels, mode="inference")
    linear = capture(nn.Linear(512, 512), rows, mode="inference")
    seconds = [float(cost_model(graph, kind).sum()) for graph in (convolution, linear)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)
