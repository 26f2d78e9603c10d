"""What variables and slices keep in memory after its last reader."""

import gc

import pytest
import torch
from torch.nn import functional

from capture_checks import comparison
from captured_models import Function, forward_pass
from placed_runs import check_placements
from placeto_capture import capture
from placeto_capture.tracing import lifetimes
from placeto_graphs import OpGraph

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
        last = torch.cat(rows).exp().cos()
        del rows
        return last.sin()

    graph = capture(Function(forward), torch.ones(ROWS, 8), mode="inference")
    sines = ("aten.sin", "aten.sin_2", "aten.sin_3", "aten.sin_4")
    assert [read_by(graph, free) for free in frees(graph)] == [
        {name: ROWS * 8 * 4} for name in sines
    ]
    assert {*read_by(graph, graph.op_names.index("aten.cat"))} == {*sines}
    assert all(waits_of(graph, free) == ["aten.exp"] for free in frees(graph))


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
