"""What variables and slices keep in memory after its last reader."""

import gc

import numpy as np
import pytest
import torch
from torch.nn import functional

from capture_checks import comparison
from captured_models import Function, case, forward_pass
from placed_runs import check_placements, placed_run, random_devices
from placeto_capture import capture, cost_model, executable_step
from placeto_capture.tracing import lifetimes
from placeto_graphs import OpGraph, colocate

ROWS = 64


def frees(graph: OpGraph) -> list[int]:
    return [op for op, kind in enumerate(graph.op_types) if kind == "placeto.free"]


def read_by(graph: OpGraph, op: int) -> dict[str, int]:
    """Return the names of the ops that made what an op reads, and the bytes of that."""
    read: dict[str, int] = {}
    for tensor in graph.inputs_of_op[op].tolist():
        name = graph.op_names[graph.tensor_producer[tensor]]
        read[name] = read.get(name, 0) + int(graph.tensor_bytes[tensor])
    return read


def waits_of(graph: OpGraph, op: int) -> list[str]:
    return [graph.op_names[before] for after, before in graph.waits.tolist() if after == op]


def test_a_variable_keeps_what_nothing_reads_any_more() -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        first = inputs.sin()
        last = first.exp().tanh().abs()
        del first
        return last.cos()

    graph = capture(Function(forward), torch.ones(ROWS, 8), mode="inference")
    (free,) = frees(graph)
    assert read_by(graph, free) == {"aten.sin": ROWS * 8 * 4}
    assert waits_of(graph, free) == ["aten.tanh"]  # and so it queues behind aten.abs
    maker = graph.op_names.index("aten.sin")
    assert graph.colocation[free] == graph.colocation[maker] >= 0
    assert graph.flops[free] == graph.bytes_accessed[free] == 0


def test_a_slice_keeps_its_storage() -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        hidden, rows = inputs, []
        for _ in range(4):
            hidden = hidden.sin()
            rows.append(hidden[:2])
        del hidden
        return torch.cat(rows)

    graph = capture(Function(forward), torch.ones(ROWS, 8), mode="inference")
    whole, slices = ROWS * 8 * 4, 2 * 8 * 4
    assert [read_by(graph, free) for free in frees(graph)] == [
        {name: whole} for name in ("aten.sin", "aten.sin_2", "aten.sin_3", "aten.sin_4")
    ]
    cat = graph.op_names.index("aten.cat")
    assert set(read_by(graph, cat).values()) == {slices}  # so many bytes go to another device
    for free in frees(graph):
        expected = ["aten.cat"] if free == frees(graph)[-1] else ["aten.sin_4"]
        assert waits_of(graph, free) == expected


def test_what_several_ops_have_written_is_read_where_each_of_them_is() -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        first = torch.empty(ROWS, 8)
        first[:16] = inputs[:16].sin()
        first[16:] = inputs[16:].cos()
        first[16:].mul_(2)
        last = first.exp().tanh().abs()
        del first
        return last.cos()

    graph = capture(Function(forward), torch.ones(ROWS, 8), mode="inference")
    row = 8 * 4
    assert [read_by(graph, free) for free in frees(graph)] == [
        {"aten.copy_": 16 * row},
        {"aten.mul_": 48 * row},
    ]
    for free in frees(graph):  # so that no placement sends anything to it
        (maker,) = graph.tensor_producer[graph.inputs_of_op[free]]
        assert graph.colocation[free] == graph.colocation[maker] >= 0
    assert len(set(graph.colocation[frees(graph)])) == 2


def test_a_variable_is_kept_until_all_is_done_that_the_last_op_for_it_reads() -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        kept = inputs.sin()
        row = kept[:1].exp()
        slow = row.neg().repeat(ROWS, 1).tanh().sum(0)
        total = row.abs() + slow  # where one that goes by the width comes to the first of these
        del kept
        return total.cos()

    graph = capture(Function(forward), torch.ones(ROWS, 8), mode="inference")
    (free,) = (free for free in frees(graph) if "aten.sin" in read_by(graph, free))
    assert sorted(waits_of(graph, free)) == ["aten.abs", "aten.sum"]


@pytest.mark.parametrize(("rows", "num_columns"), [(ROWS, 64), (16 * ROWS, 256)])
def test_what_is_small_has_no_ops_for_it(rows: int, num_columns: int) -> None:
    """Less than a block of 512 bytes is small, and less than 2 of 1,000 parts of the peak."""

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        large, small = inputs.sin(), inputs[:1].cos()
        last = (large.exp() + small.neg()).tanh().abs()
        del large, small
        return last.cos()

    graph = capture(Function(forward), torch.ones(rows, num_columns), mode="inference")
    (free,) = frees(graph)
    assert read_by(graph, free) == {"aten.sin": rows * num_columns * 4}


def test_groups_are_those_of_the_step_without_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        first = inputs.sin()
        second = first.exp().neg()
        last = second.tanh().abs()
        del first, second
        return last.cos() + inputs

    step = Function(forward), torch.ones(ROWS, 8)
    graph = capture(*step, mode="inference")
    kept = [op for op in range(graph.num_ops) if op not in frees(graph)]
    assert len(kept) < graph.num_ops
    monkeypatch.setattr(lifetimes, "SMALL_DIFFERENCE", np.inf)
    without = capture(*step, mode="inference")
    assert colocate(graph).group_of[kept].tolist() == colocate(without).group_of.tolist()


def test_where_the_peak_is_elsewhere_there_are_no_ops_for_it() -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        small = inputs[:8].sin()
        middle = small.exp().tanh()
        del small
        large = inputs.repeat(10, 1).sin()
        return middle.sum() + large.sum()

    assert not frees(capture(Function(forward), torch.ones(ROWS, 64), mode="inference"))


def test_the_garbage_collector_makes_no_difference() -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        cycle: list[object] = [inputs.sin()]
        cycle.append(cycle)
        hidden: torch.Tensor = cycle[0]  # type: ignore[assignment]
        del cycle
        for _ in range(5):
            hidden = hidden.exp()
            for _ in range(200):
                [[]]  # noqa: B018
        return hidden

    threshold = gc.get_threshold()
    graphs = []
    for first in (1, 1_000_000):
        gc.set_threshold(first)
        graphs.append(capture(Function(forward), torch.ones(ROWS, 8), mode="inference"))
    gc.set_threshold(*threshold)
    assert gc.isenabled()
    assert graphs[0] == graphs[1]
    held = {graphs[0].op_names[op] for op in graphs[0].tensor_producer[graphs[0].held_tensors]}
    assert held == {"input.0", "aten.sin", "aten.exp_5"}


@pytest.fixture
def without_a_least_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALLEST_BLOCK", "SMALL_STORAGE", "SMALL_DIFFERENCE"):
        monkeypatch.setattr(lifetimes, name, 0)


@pytest.mark.usefixtures("without_a_least_size")
@pytest.mark.parametrize(
    "name", ["unrolled LSTM cell", "attention block", "writes in pieces", "recomputed", "spectrum"]
)
def test_with_frees_every_placement_gives_what_pytorch_gives(name: str) -> None:
    step = comparison(name)
    check_placements(step, num_placements=3)


@pytest.mark.usefixtures("without_a_least_size")
@pytest.mark.parametrize("name", ["writes in pieces", "spectrum"])
def test_a_free_gives_up_what_it_reads(name: str) -> None:
    example = case(name)
    step = executable_step(example.model, example.inputs, results=["loss"])
    assert frees(step.graph)
    for seed in range(3):
        run = placed_run(step, random_devices(step.graph, 3, seed), 3, seed)
        assert sum(run.held) == 4  # the loss


def test_frees_take_no_time() -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        hidden = [inputs]
        for _ in range(6):
            hidden.append(hidden[-1].sin())
        return hidden[-1]

    graph = capture(Function(forward), torch.ones(ROWS, 64), mode="inference")
    assert frees(graph)
    assert not np.any(cost_model(graph, "v100")[frees(graph)])


LOSSES = (
    *("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss"),
    *("huber_loss", "multilabel_margin_loss"),
)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_storage_of_a_loss_is_as_large_as_in_pytorch(name: str, reduction: str) -> None:
    def loss(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(functional, name)(values, target, reduction=reduction)
        return found

    dtype = torch.int64 if name == "multilabel_margin_loss" else torch.float32
    inputs = torch.rand(ROWS, 3), torch.zeros(ROWS, 3, dtype=dtype)
    graph = forward_pass(loss, *inputs)
    op = next(op for op, kind in enumerate(graph.op_types) if name in kind)
    made = int(graph.tensor_bytes[graph.tensor_producer == op].sum())
    if name == "multilabel_margin_loss":  # which has a mark for each target beside it
        made -= inputs[0].nbytes
    assert made == loss(*inputs).untyped_storage().nbytes()
