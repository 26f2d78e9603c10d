"""What variables and slices keep in memory after its last reader."""

import gc

import pytest
import torch

from capture_checks import comparison
from captured_models import Function
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
    return [graph.op_names[earlier] for later, earlier in graph.waits.tolist() if later == op]


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


@pytest.mark.parametrize(
    ("num_kept", "num_frees"),
    [(16, 0), (54, 0), (66, 1), (300, 1)],  # parts of the peak: 0.5, 1.8, 2.2 and 10 %
)
def test_a_variable_has_an_op_if_the_peak_would_be_2_percent_lower(
    num_kept: int, num_frees: int
) -> None:
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        kept = inputs[:num_kept].sin()
        last = inputs.exp().tanh()  # with the inputs three times 1,000 rows
        del kept
        return last

    graph = capture(Function(forward), torch.ones(1000, 64), mode="inference")
    assert len(frees(graph)) == num_frees


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
    held_ops = {graphs[0].op_names[op] for op in graphs[0].tensor_producer[graphs[0].held_tensors]}
    assert held_ops == {"input.0", "aten.sin", "aten.exp_5"}


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
