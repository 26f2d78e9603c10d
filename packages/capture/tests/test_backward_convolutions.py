import networkx as nx
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from placeto_capture.costs.roofline import performed_flops
from placeto_graphs import from_networkx, micro_batched

CHANNELS = 12


def counted(groups: int, calls: int) -> tuple[int, int]:
    """Return the forward and backward FLOPs that torch counts in equal convolutions."""
    forward = backward = 0
    for _ in range(calls):
        width = CHANNELS // calls
        images = torch.zeros(2, width, 9, 9, device="meta", requires_grad=True)
        convolution = torch.nn.Conv2d(width, width, 3, groups=groups, bias=False, device="meta")
        with FlopCounterMode(display=False) as counter:
            output = convolution(images)
            forward += counter.get_total_flops()
            before = counter.get_total_flops()
            output.sum().backward()
            backward += counter.get_total_flops() - before
    return forward, backward


@pytest.mark.parametrize("groups", [1, 2, 4, CHANNELS])
def test_a_convolution_with_groups_works_as_much_as_one_convolution_per_group(groups: int) -> None:
    forward, backward = counted(groups=groups, calls=1)
    ops = nx.DiGraph()
    ops.add_node("forward", op_type="aten.convolution", flops=forward, colocation=3)
    ops.add_node("backward", op_type="aten.convolution_backward", flops=backward, colocation=3)
    ops.add_node("other", op_type="aten.mm", flops=1e9, colocation=3)
    performed = performed_flops(from_networkx(ops)).tolist()
    assert performed == [*counted(groups=1, calls=groups), 1e9]


def test_each_micro_batch_is_limited_as_if_it_were_alone() -> None:
    ops = nx.DiGraph([("images", "forward"), ("forward", "backward")])
    ops.add_node("forward", op_type="aten.convolution", flops=4e9, colocation=3)
    ops.add_node("backward", op_type="aten.convolution_backward", phase=1, flops=64e9, colocation=3)
    graph = micro_batched(from_networkx(ops), 4)
    performed = dict(zip(graph.op_names, performed_flops(graph).tolist(), strict=True))
    assert [performed[f"backward@{number}"] for number in range(4)] == [2e9] * 4


def test_a_backward_convolution_without_its_forward_one_keeps_its_count() -> None:
    ops = nx.DiGraph()
    ops.add_node("free", op_type="aten.convolution_backward", flops=7e9)
    ops.add_node("alone", op_type="aten.convolution_backward", flops=8e9, colocation=0)
    ops.add_node("elsewhere", op_type="aten.convolution", flops=1.0, colocation=1)
    assert performed_flops(from_networkx(ops)).tolist() == [7e9, 8e9, 1.0]


def test_only_the_gradient_of_the_weights_stays_what_it_is() -> None:
    ops = nx.DiGraph()
    ops.add_node("first", op_type="aten.convolution", flops=5e9, colocation=0)
    ops.add_node("gradient", op_type="aten.convolution_backward", flops=5e9, colocation=0)
    assert performed_flops(from_networkx(ops)).tolist() == [5e9, 5e9]
