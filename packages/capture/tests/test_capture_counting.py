"""FLOPs and bytes of captured ops are those of the real run."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from captured_models import Function, forward_pass
from placeto_capture import capture
from placeto_capture.costs.op_classes import NAMES_OF_CLASS, OpClass, op_class
from placeto_capture.tracing import functions, work
from placeto_graphs import OpGraph


def flops_of(graph: OpGraph, op_type: str) -> float:
    """Return the FLOPs of the one op of a type."""
    (op,) = (op for op, name in enumerate(graph.op_types) if name == op_type)
    return float(graph.flops[op])


def bytes_of(graph: OpGraph, op_type: str) -> float:
    """Return the bytes that the one op of a type reads and writes."""
    (op,) = (op for op, name in enumerate(graph.op_types) if name == op_type)
    return float(graph.bytes_accessed[op])


def test_functions_with_a_rule_of_their_own_exist() -> None:
    named = (
        *functions.ALLOCATIONS,
        *work.FORMULAS,
        *functions.MOVES,
        *functions.OVERWRITES,
        *functions.PICKS,
        *functions.PUTS,
        *functions.SHAPED_ALIKE,
        *functions.ZEROS,
        *functions.BATCH_NORMS,
    )
    missing = [name for name in named if not hasattr(torch.ops.aten, name.removeprefix("aten."))]
    assert missing == []


def test_what_a_view_shows_several_times_counts_once() -> None:
    windows = forward_pass(lambda row: row.unfold(0, 50, 1).tanh(), torch.empty(1000))
    assert bytes_of(windows, "aten.tanh") == 4 * (1000 + 951 * 50)
    rows = forward_pass(lambda row: row.expand(7, 1000).tanh(), torch.empty(1000))
    assert bytes_of(rows, "aten.tanh") == 4 * (1000 + 7 * 1000)


FLOAT = 4
VALUES = torch.ones
# By hand: a multiplication and an addition for each term of each number of the result.
PRODUCTS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int]] = {
    "added": (torch.addmm, (VALUES(5), VALUES(3, 4), VALUES(4, 5)), 2 * 3 * 5 * 4),
    "batches": (torch.bmm, (VALUES(7, 3, 4), VALUES(7, 4, 5)), 2 * 7 * 3 * 5 * 4),
    "summed": (torch.addbmm, (VALUES(3, 5), VALUES(7, 3, 4), VALUES(7, 4, 5)), 2 * 7 * 3 * 5 * 4),
    "a vector": (torch.mv, (VALUES(6, 7), VALUES(7)), 2 * 6 * 7),
    "whole numbers": (
        torch._int_mm,
        (VALUES(32, 16, dtype=torch.int8), VALUES(16, 8, dtype=torch.int8)),
        2 * 32 * 8 * 16,
    ),
    # (a + bi)(c + di) is four products, and two additions; to add it are two more.
    "complex": (
        torch.mm,
        (VALUES(3, 4, dtype=torch.complex64), VALUES(4, 5, dtype=torch.complex64)),
        8 * 3 * 5 * 4,
    ),
    # Each of 2 rows and 5 outputs: a 3 x 4 matrix times a vector of 3, that times one of 4.
    "two inputs": (
        functional.bilinear,
        (VALUES(2, 3), VALUES(2, 4), VALUES(5, 3, 4)),
        2 * 2 * 5 * (3 * 4 + 4),
    ),
    "distances": (torch.cdist, (VALUES(30, 3), VALUES(40, 3)), 2 * 30 * 40 * (3 + 2)),
    "other distances": (
        partial(torch.cdist, p=1.0),
        (VALUES(30, 3), VALUES(40, 3)),
        3 * 30 * 40 * 3,
    ),
}


TABLE = VALUES(4, 6)
# By hand: what the one op of a function does and moves, in numbers of 4 bytes.
WORK: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], OpClass, int, int]] = {
    "convolution": (
        functional.conv2d,
        (VALUES(2, 3, 6, 6), VALUES(4, 3, 3, 3)),
        OpClass.CONVOLUTION,
        2 * (2 * 4 * 4 * 4) * (3 * 9),
        2 * 3 * 36 + 4 * 27 + 2 * 4 * 16,
    ),
    "depthwise": (
        partial(functional.conv2d, groups=3),
        (VALUES(2, 3, 6, 6), VALUES(3, 1, 3, 3)),
        OpClass.DEPTHWISE_CONVOLUTION,
        2 * (2 * 3 * 4 * 4) * 9,
        2 * 3 * 36 + 3 * 9 + 2 * 3 * 16,
    ),
    "matrices": (
        torch.mm,
        (VALUES(3, 4), VALUES(4, 5)),
        OpClass.MATRIX_PRODUCT,
        2 * 3 * 5 * 4,
        3 * 4 + 4 * 5 + 3 * 5,
    ),
    # Scores and their product with values, of 2 x 3 heads; it also gives a sum for each query.
    "attention": (
        functional.scaled_dot_product_attention,
        (VALUES(2, 3, 5, 8), VALUES(2, 3, 6, 8), VALUES(2, 3, 6, 8)),
        OpClass.MATRIX_PRODUCT,
        2 * (2 * 3) * 5 * 6 * (8 + 8),
        2 * 3 * (5 * 8 + 2 * 6 * 8 + 5 * 8 + 5),
    ),
    # With a weight and a bias; it also gives a mean and a deviation for each row.
    "layer norm": (
        lambda table, weight: functional.layer_norm(table, (6,), weight, weight[:]),
        (TABLE, VALUES(6)),
        OpClass.NORMALISATION,
        24,
        24 + 6 + 24 + 2 * 4,
    ),
    "softmax": (lambda table: table.softmax(1), (TABLE,), OpClass.NORMALISATION, 24, 2 * 24),
    "tanh": (torch.tanh, (TABLE,), OpClass.ELEMENTWISE, 24, 2 * 24),
    "where": (
        torch.where,
        (TABLE[:4, 0] > 0, TABLE[0, :4], TABLE[1, :4]),
        OpClass.ELEMENTWISE,
        0,
        1 + 3 * 4,
    ),
    "sums": (lambda table: table.sum(1), (TABLE,), OpClass.REDUCTION, 24, 24 + 4),
    "cat": (lambda *tables: torch.cat(tables), (TABLE, TABLE[:2]), OpClass.COPY, 0, 2 * (24 + 12)),
}


@pytest.mark.parametrize("name", WORK)
def test_an_op_of_each_class_has_the_work_that_one_counts_by_hand(name: str) -> None:
    function, inputs, its_class, flops, numbers = WORK[name]
    graph = forward_pass(function, *inputs)
    (op,) = (op for op, kind in enumerate(graph.op_types) if kind.startswith("aten."))
    assert graph.flops[op] == flops
    assert graph.bytes_accessed[op] == FLOAT * numbers
    how: Any = {"groups": graph.groups[op], "group_channels": graph.group_channels[op]}
    assert op_class(graph.op_types[op], flops, FLOAT * numbers, **how) is its_class


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_flops_that_one_counts_by_hand(name: str) -> None:
    function, inputs, flops = PRODUCTS[name]
    graph = forward_pass(function, *inputs)
    assert graph.flops.sum() == flops


# What PyTorch calls on other devices, or with libraries that a capture switches off.
NEVER_CAPTURED = {
    "_conv_depthwise2d",
    "_cudnn_rnn",
    "_cudnn_rnn_backward",
    "_slow_conv2d_backward",
    "convolution_backward_overrideable",
    "linear_backward",
    "matmul_backward",
    "mkldnn_convolution",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
}


def test_every_product_has_a_formula_or_is_made_of_others() -> None:
    products = f"{NAMES_OF_CLASS[OpClass.CONVOLUTION]} {NAMES_OF_CLASS[OpClass.MATRIX_PRODUCT]}"
    names = [f"{name}{suffix}" for name in products.split() for suffix in ("", "_backward")]
    packets = [getattr(torch.ops.aten, n) for n in names if hasattr(torch.ops.aten, n)]
    overloads = [getattr(packet, packet.overloads()[0]) for packet in packets]
    without = {
        str(overload.overloadpacket).removeprefix("aten.")
        for overload in overloads
        if work.formula_of(functions.function_of(overload)) is None
        and not torch._C._dispatch_has_kernel_for_dispatch_key(
            overload.name(), "CompositeImplicitAutograd"
        )
    }
    assert without == NEVER_CAPTURED


Change = Callable[[torch.Tensor], torch.Tensor]
ROWS, WIDTH = 4096, 8
PICKED = torch.tensor([3, 5])
SOURCE = VALUES(2, WIDTH)
INDEX_BYTES = 2 * 8
PLACES = torch.zeros(2, WIDTH, dtype=torch.long)
# What is written, and what is read: the source, where it goes, and what it is added to.
PUTS: dict[str, tuple[Change, int]] = {
    "index_copy_": (
        lambda cache: cache.index_copy_(0, PICKED, SOURCE),
        2 * 2 * WIDTH * FLOAT + INDEX_BYTES,
    ),
    "index_add_": (
        lambda cache: cache.index_add_(0, PICKED, SOURCE),
        3 * 2 * WIDTH * FLOAT + INDEX_BYTES,
    ),
    "index_fill_": (
        lambda cache: cache.index_fill_(0, PICKED, 1.0),
        2 * WIDTH * FLOAT + INDEX_BYTES,
    ),
    "index_put_": (
        lambda cache: cache.index_put_((PICKED,), SOURCE),
        2 * 2 * WIDTH * FLOAT + INDEX_BYTES,
    ),
    "index_put_ of columns": (
        lambda cache: cache[:, :4].index_put_((PICKED[:1], PICKED[1:]), SOURCE[0, 0]),
        2 * FLOAT + INDEX_BYTES,
    ),
    "index_put_ that adds": (
        lambda cache: cache.index_put_((PICKED,), SOURCE, accumulate=True),
        3 * 2 * WIDTH * FLOAT + INDEX_BYTES,
    ),
    "scatter_": (lambda cache: cache.scatter_(0, PLACES, SOURCE), 2 * WIDTH * (2 * FLOAT + 8)),
    "scatter_add_": (
        lambda cache: cache.scatter_add_(0, PLACES, SOURCE),
        2 * WIDTH * (3 * FLOAT + 8),
    ),
}


@pytest.mark.parametrize("name", PUTS)
def test_what_is_put_into_a_buffer_counts_and_not_the_buffer(name: str) -> None:
    change, moved = PUTS[name]

    cache = torch.zeros(ROWS, WIDTH)
    graph = capture(Function(lambda cache: change(cache)[0]), (cache,), mode="inference")
    op_type = f"aten.{name.partition(' ')[0]}"
    assert bytes_of(graph, op_type) == moved
    adds = 2 * WIDTH if op_type.endswith("add_") else 0
    assert flops_of(graph, op_type) == adds


ROW = WIDTH * FLOAT
BAGS = torch.tensor([0, 2])
FIVE = torch.arange(5)


def sampled(mode: str, dim: int, table: torch.Tensor) -> torch.Tensor:
    image = table.view(1, *[1] * (dim - 1), ROWS, WIDTH)
    places = torch.zeros(1, 5, *[1] * (dim - 1), dim)
    return functional.grid_sample(image, places, mode, align_corners=False)


# Of a table of `ROWS` rows: what comes out, the indices, and each picked row or number once.
PICKS: dict[str, tuple[Change, int]] = {
    # Two sums, and two numbers of 8 bytes for each bag.
    "_embedding_bag": (
        lambda table: functional.embedding_bag(FIVE, table, BAGS, mode="sum"),
        2 * ROW + (5 + 2) * 8 + 5 * ROW + 2 * 2 * 8,
    ),
    "embedding": (lambda table: functional.embedding(FIVE, table), 2 * 5 * ROW + 5 * 8),
    "index_select": (lambda table: table.index_select(0, FIVE), 2 * 5 * ROW + 5 * 8),
    "index": (lambda table: table[FIVE], 2 * 5 * ROW + 5 * 8),
    "take": (lambda table: table.take(FIVE), 5 * (2 * FLOAT + 8)),
    "gather": (lambda table: table.gather(0, PLACES), 2 * WIDTH * (2 * FLOAT + 8)),
    # The loss and the sum of the weights.
    "nll_loss_forward": (
        lambda table: functional.nll_loss(table, torch.zeros(ROWS, dtype=torch.long)),
        ROWS * (FLOAT + 8) + 2 * FLOAT,
    ),
    # Halves of halves of `ROWS` numbers, until one is left.
    "searchsorted": (
        lambda table: torch.searchsorted(table.t()[:2].contiguous(), torch.ones(2, 1)),
        2 * (FLOAT + 8) + 2 * FLOAT * len(f"{ROWS:b}"),
    ),
    # An index of the sorter at each of them.
    "searchsorted sorter": (
        lambda table: torch.searchsorted(
            table[:, 0].contiguous(), torch.ones(1), sorter=torch.arange(ROWS)
        ),
        (FLOAT + 8) + (FLOAT + 8) * len(f"{ROWS:b}"),
    ),
    "bucketize": (
        lambda table: torch.bucketize(torch.ones(3), table[:, 0].contiguous()),
        3 * (FLOAT + 8) + 3 * FLOAT * len(f"{ROWS:b}"),
    ),
    # A number at a place of two or three numbers, and the pixels around it.
    **{
        f"grid_sampler_{dim}d {mode}": (partial(sampled, mode, dim), 5 * FLOAT * (1 + dim + pixels))
        for mode, dim, pixels in (
            ("nearest", 3, 1),
            ("bilinear", 2, 4),
            ("bicubic", 2, 16),
            ("bilinear", 3, 8),
        )
    },
}


class Table(nn.Module):
    def __init__(self, pick: Change) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(ROWS, WIDTH))
        self.pick = pick

    def forward(self) -> torch.Tensor:
        return self.pick(self.table).sum()


@pytest.mark.parametrize("name", PICKS)
def test_what_is_picked_of_a_table_counts_and_not_the_table(name: str) -> None:
    pick, moved = PICKS[name]
    graph = capture(Table(pick), (), mode="inference")
    assert bytes_of(graph, f"aten.{name.partition(' ')[0]}") == moved


def test_bags_add_up_rows_and_gradients_of_their_weights_read_those() -> None:
    def weighted(table: torch.Tensor) -> torch.Tensor:
        weights = table[:5].sum(1)
        return functional.embedding_bag(
            FIVE, table, BAGS, mode="sum", per_sample_weights=weights
        ).exp()

    graph = capture(Table(weighted), (), loss_fn=torch.Tensor.sum)
    places = (5 + 2) * 8  # the indices, and where the bags begin
    read = 2 * ROW + 5 * ROW + places
    assert bytes_of(graph, "aten._embedding_bag_per_sample_weights_backward") == read + 5 * FLOAT
    assert flops_of(graph, "aten._embedding_bag") == 5 * WIDTH
    assert flops_of(graph, "aten._embedding_bag_backward") == 5 * WIDTH


def test_a_ctc_loss_reads_the_numbers_of_its_targets() -> None:
    times, length, classes = 20, 3, 1000
    targets = torch.ones(1, length, dtype=torch.long)
    sizes = torch.tensor([times]), torch.tensor([length])

    def forward(scores: torch.Tensor) -> torch.Tensor:
        return functional.ctc_loss(scores, targets, *sizes)

    graph = forward_pass(forward, torch.zeros(times, 1, classes))
    states = times * (2 * length + 1) * FLOAT  # the targets with blanks between them
    assert bytes_of(graph, "aten._ctc_loss") == pytest.approx(2 * states, rel=0.1)


@pytest.mark.parametrize(
    ("name", "change", "moved"),
    [
        # One number is the gradient of all that is added; it goes to the places of the indices.
        ("index_select", "index_add_", FLOAT + 5 * 2 * ROW + 5 * 8),
        ("index", "index_put_", FLOAT + 5 * 2 * ROW + 5 * 8),
        ("take", "put_", FLOAT + 5 * 2 * FLOAT + 5 * 8),
        ("gather", "scatter_add_", FLOAT + 2 * WIDTH * (2 * FLOAT + 8)),
    ],
)
def test_a_gradient_is_added_to_new_zeros_in_place(name: str, change: str, moved: int) -> None:
    graph = capture(Table(PICKS[name][0]), (), loss_fn=torch.Tensor.sum)
    assert bytes_of(graph, f"aten.{change}") == moved
    zeros = "aten.zeros_like" if name == "take" else "aten.new_zeros"
    assert bytes_of(graph, zeros) == ROWS * ROW


def two_sums(gradient: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(ROWS, WIDTH)
    once = zeros.scatter_add(0, PLACES, gradient)
    return once * zeros.scatter_add(0, PLACES, gradient)


class TwoSums(torch.autograd.Function):
    """Puts gradients twice into the same zeros, which are a variable."""

    @staticmethod
    def forward(_: Any, table: torch.Tensor) -> torch.Tensor:
        return table.gather(0, PLACES)

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return two_sums(*gradients)


def of_hook(table: torch.Tensor) -> torch.Tensor:
    rows = table.gather(0, PLACES)
    rows.register_hook(lambda gradient: two_sums(gradient)[:2])  # type: ignore[no-untyped-call]
    return rows * 2


@pytest.mark.parametrize("pick", [TwoSums.apply, of_hook])
def test_zeros_of_functions_and_hooks_are_not_changed(pick: Any) -> None:
    graph = capture(Table(pick), (), loss_fn=torch.Tensor.sum)
    sums = [op for op, kind in enumerate(graph.op_types) if kind == "aten.scatter_add"]
    zeros = graph.op_types.index("aten.zeros")
    assert len(sums) == 2
    for op in sums:
        assert zeros in graph.tensor_producer[graph.inputs_of_op[op]]


@pytest.mark.parametrize(
    ("name", "change", "read"),
    [
        # One number is the gradient of all results.
        ("max_pool2d_with_indices", lambda image: functional.max_pool2d(image, 2), FLOAT + 4 * 8),
        ("avg_pool2d", lambda image: functional.avg_pool2d(image, 2), FLOAT),
        ("reflection_pad2d", lambda image: functional.pad(image, (1,) * 4, "reflect"), FLOAT),
        (
            "nll_loss",
            lambda image: functional.nll_loss(image[0], torch.zeros(4, dtype=torch.long)),
            FLOAT + 4 * 8 + FLOAT,
        ),
    ],
)
def test_what_is_known_by_its_shape_alone_is_not_read(name: str, change: Change, read: int) -> None:
    image = torch.zeros(1, 4, 4, requires_grad=True)
    how: Any = {"optimizer": lambda _: torch.optim.SGD([torch.ones(1)])}
    graph = capture(Function(change), (image,), loss_fn=torch.Tensor.sum, **how)
    assert bytes_of(graph, f"aten.{name}_backward") == read + 4 * 4 * FLOAT


def test_weights_need_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Linear(2**20, 2**20)  # 4 TiB
        batch = torch.empty(8, 2**20)
    graph = capture(model, batch)
    assert graph.parameter_bytes.max() == 3 * 4 * 2**40 + 4
    assert flops_of(graph, "aten.addmm") == math.prod((2, 8, 2**20, 2**20))
