"""FLOPs and bytes of captured ops are those that one counts by hand."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from captured_models import Function, Net, forward_pass
from placeto_capture import CaptureError, capture, executable_step
from placeto_capture.costs.op_classes import CLASS_OF_TYPE
from placeto_capture.tracing import functions, work
from placeto_graphs import OpGraph

Change = Callable[[Tensor], Tensor]
ONES, INDICES = torch.ones, partial(torch.zeros, dtype=torch.long)
COMPLEX = partial(torch.ones, dtype=torch.complex64)
FLOAT, INDEX, ROWS, WIDTH = 4, 8, 4096, 8  # bytes of a number and of an index, and a table
ROW = WIDTH * FLOAT
CACHE, SOURCE, PLACES = torch.zeros(ROWS, WIDTH), ONES(2, WIDTH), INDICES(2, WIDTH)
FIVE, BAGS, PICKED = torch.arange(5), torch.tensor([0, 2]), torch.tensor([3, 5])
POINTS, IMAGES = (ONES(30, 3), ONES(40, 3)), (2, 16, 8, 8)
OF_WEIGHTS = "aten._embedding_bag_per_sample_weights_backward"  # counted in a step
STEPS = ROWS.bit_length()  # halves of halves, until one number is left


def sampled(mode: str, dim: int, table: Tensor) -> Tensor:
    image = table.view(1, *[1] * (dim - 1), ROWS, WIDTH)
    places = torch.zeros(1, 5, *[1] * (dim - 1), dim)
    return F.grid_sample(image, places, mode, align_corners=False)


class Work(NamedTuple):
    """What runs an op, its FLOPs and bytes, and what it is called with."""

    run: Callable[..., Tensor]
    flops: int
    moved: int | None
    inputs: tuple[Tensor, ...] = (CACHE,)


WORK: dict[str, Work] = {  # a name is that of the op, and what is special
    # Of a product a multiplication and an addition for each term of each number of the result.
    "addmm": Work(torch.addmm, 2 * 15 * 4, FLOAT * 52, (ONES(5), ONES(3, 4), ONES(4, 5))),
    "bmm": Work(torch.bmm, 2 * 7 * 15 * 4, FLOAT * 7 * 47, (ONES(7, 3, 4), ONES(7, 4, 5))),
    "addbmm": Work(torch.addbmm, 2 * 7 * 15 * 4, None, (ONES(3, 5), ONES(7, 3, 4), ONES(7, 4, 5))),
    "mv": Work(torch.mv, 2 * 6 * 7, FLOAT * (42 + 7 + 6), (ONES(6, 7), ONES(7))),
    "_int_mm": Work(
        lambda first, second: torch._int_mm(first.char(), second.char()),
        2 * 32 * 8 * 16,
        32 * 16 + 16 * 8 + FLOAT * 32 * 8,
        (ONES(32, 16), ONES(16, 8)),
    ),
    # (a + bi)(c + di) is four products, and two additions; to add it are two more.
    "mm of complex numbers": Work(
        torch.mm, 8 * 15 * 4, 2 * FLOAT * 47, (COMPLEX(3, 4), COMPLEX(4, 5))
    ),
    # Each of 2 rows and 5 outputs: a 3 x 4 matrix times a vector of 3, that times one of 4.
    "_trilinear": Work(
        F.bilinear, 2 * 10 * (12 + 4), None, (ONES(2, 3), ONES(2, 4), ONES(5, 3, 4))
    ),
    "_euclidean_dist": Work(torch.cdist, 2 * 30 * 40 * (3 + 2), None, POINTS),
    "_cdist_forward": Work(
        partial(torch.cdist, p=1.0), 3 * 30 * 40 * 3, FLOAT * (70 * 3 + 30 * 40), POINTS
    ),
    "convolution": Work(
        F.conv2d,
        2 * (2 * 4 * 16) * (3 * 9),
        FLOAT * (2 * 3 * 36 + 4 * 27 + 2 * 4 * 16),
        (ONES(2, 3, 6, 6), ONES(4, 3, 3, 3)),
    ),
    # Scores and their product with values, of 2 x 3 heads; it also gives a sum for each query.
    "_scaled_dot_product_flash_attention_for_cpu": Work(
        F.scaled_dot_product_attention,
        2 * (2 * 3) * 5 * 6 * (8 + 8),
        FLOAT * 2 * 3 * (5 * 8 + 2 * 6 * 8 + 5 * 8 + 5),
        (ONES(2, 3, 5, 8), ONES(2, 3, 6, 8), ONES(2, 3, 6, 8)),
    ),
    # With a weight and a bias; it also gives a mean and a deviation for each row.
    "native_layer_norm": Work(
        lambda rows, weight: F.layer_norm(rows, (6,), weight, weight[:]),
        24,
        FLOAT * (24 + 6 + 24 + 2 * 4),
        (ONES(4, 6), ONES(6)),
    ),
    "_softmax": Work(lambda rows: rows.softmax(1), 24, FLOAT * 2 * 24, (ONES(4, 6),)),
    "where": Work(torch.where, 0, 4 + FLOAT * 3 * 4, (ONES(4) > 0, ONES(4), ONES(4))),
    "sum": Work(lambda rows: rows.sum(1), 24, FLOAT * (24 + 4), (ONES(4, 6),)),
    "cat": Work(lambda *rows: torch.cat(rows), 0, FLOAT * 2 * 36, (ONES(4, 6), ONES(2, 6))),
    # What a view shows several times is in memory once.
    "tanh of windows": Work(
        lambda row: row.unfold(0, 50, 1).tanh(), 47_550, FLOAT * 48_550, (ONES(1000),)
    ),
    "tanh of one row": Work(
        lambda row: row.expand(7, 1000).tanh(), 7_000, FLOAT * 8_000, (ONES(1000),)
    ),
    # What is put into a buffer: the source, where it goes, and what it is added to.
    "index_copy_": Work(lambda c: c.index_copy_(0, PICKED, SOURCE)[0], 0, 4 * ROW + 2 * INDEX),
    "index_add_": Work(lambda c: c.index_add_(0, PICKED, SOURCE)[0], 16, 6 * ROW + 2 * INDEX),
    "index_fill_": Work(lambda c: c.index_fill_(0, PICKED, 1.0)[0], 0, 2 * ROW + 2 * INDEX),
    "index_put_": Work(lambda c: c.index_put_((PICKED,), SOURCE)[0], 0, 4 * ROW + 2 * INDEX),
    "index_put_ of columns": Work(
        lambda c: c[:, :4].index_put_((PICKED[:1], PICKED[1:]), SOURCE[0, 0])[0],
        0,
        2 * FLOAT + 2 * INDEX,
    ),
    "index_put_ of a mask of rows": Work(  # which may pick all
        lambda c, mask: c.index_put_((mask,), SOURCE[:1])[0],
        0,
        ROWS * ROW + ROW + ROWS,
        (CACHE, ONES(ROWS).bool()),
    ),
    "index_put_ that adds": Work(
        lambda c: c.index_put_((PICKED,), SOURCE, accumulate=True)[0], 0, 6 * ROW + 2 * INDEX
    ),
    "scatter_": Work(
        lambda c: c.scatter_(0, PLACES, SOURCE)[0], 0, 2 * WIDTH * (2 * FLOAT + INDEX)
    ),
    "scatter_add_": Work(
        lambda c: c.scatter_add_(0, PLACES, SOURCE)[0], 16, 2 * WIDTH * (3 * FLOAT + INDEX)
    ),
    # What is picked of a table: what comes out, the indices, and each picked row or number once.
    # Of bags two sums, and two numbers of 8 bytes for each bag.
    "_embedding_bag_forward_only": Work(
        lambda table: F.embedding_bag(FIVE, table, BAGS, mode="sum"),
        5 * WIDTH,
        2 * ROW + (5 + 2) * INDEX + 5 * ROW + 2 * 2 * 8,
    ),
    "_embedding_bag": Work(
        lambda table: torch.ops.aten._embedding_bag(table, FIVE, BAGS)[0],
        5 * WIDTH,
        2 * ROW + (5 + 2) * INDEX + 5 * ROW + 2 * 2 * 8,
    ),
    "embedding": Work(lambda table: F.embedding(FIVE, table), 0, 10 * ROW + 5 * INDEX),
    "index_select": Work(lambda t: t.index_select(0, FIVE), 0, 10 * ROW + 5 * INDEX),
    "index": Work(lambda table: table[FIVE], 0, 10 * ROW + 5 * INDEX),
    "_unsafe_index": Work(
        lambda table: torch.ops.aten._unsafe_index(table, [FIVE]), 0, 10 * ROW + 5 * INDEX
    ),
    "take": Work(lambda table: table.take(FIVE), 0, 5 * (2 * FLOAT + INDEX)),
    "gather": Work(lambda t: t.gather(0, PLACES), 0, 2 * WIDTH * (2 * FLOAT + INDEX)),
    # The loss and the sum of the weights.
    "nll_loss_forward": Work(
        lambda table: F.nll_loss(table, INDICES(ROWS)), ROWS, ROWS * (FLOAT + INDEX) + 2 * FLOAT
    ),
    "nll_loss2d_forward": Work(
        lambda image: F.nll_loss(image, INDICES(1, 4, 4)),
        16,
        16 * (FLOAT + INDEX) + 2 * FLOAT,
        (ONES(1, 30, 4, 4),),
    ),
    "searchsorted": Work(
        lambda table: torch.searchsorted(table.t()[:2].contiguous(), ONES(2, 1)),
        2 * ROWS,
        2 * (FLOAT + INDEX) + 2 * FLOAT * STEPS,
    ),
    # An index of the sorter at each of them.
    "searchsorted with a sorter": Work(
        lambda row, order: torch.searchsorted(row, ONES(1), sorter=order),
        ROWS,
        (FLOAT + INDEX) + (FLOAT + INDEX) * STEPS,
        (ONES(ROWS), torch.arange(ROWS)),
    ),
    "bucketize": Work(
        lambda row: torch.bucketize(ONES(3), row),
        ROWS,
        3 * (FLOAT + INDEX) + 3 * FLOAT * STEPS,
        (ONES(ROWS),),
    ),
    # A number at a place of two or three numbers, and the pixels around it.
    **{
        f"grid_sampler_{dim}d {mode}": Work(
            partial(sampled, mode, dim), ROWS * WIDTH, 5 * FLOAT * (1 + dim + pixels)
        )
        for mode, dim, pixels in (
            *(("nearest", 3, 1), ("bilinear", 2, 4)),
            *(("bicubic", 2, 16), ("bilinear", 3, 8)),
        )
    },
    # The probabilities of 3 numbers with blanks around them are read of 1,000, and written; the
    # loss, too, and lengths.
    "_ctc_loss": Work(
        lambda scores: F.ctc_loss(scores, INDICES(1, 3) + 1, torch.tensor(20), torch.tensor(3)),
        20_000,
        2 * FLOAT * (20 * 7 + 1) + 5 * INDEX,
        (ONES(20, 1, 1000),),
    ),
}


def op_of(graph: OpGraph, op_type: str) -> int:
    """Return the one op of a type."""
    (op,) = (op for op, name in enumerate(graph.op_types) if name == f"aten.{op_type}")
    return op


def bytes_of(graph: OpGraph, op_type: str) -> float:
    """Return the bytes that the one op of a type reads and writes."""
    return float(graph.bytes_accessed[op_of(graph, op_type)])


@pytest.mark.parametrize("name", WORK)
def test_an_op_has_the_work_that_one_counts_by_hand(name: str) -> None:
    run, flops, moved, inputs = WORK[name]
    graph = forward_pass(run, *inputs)
    op = op_of(graph, name.partition(" ")[0])
    assert graph.flops[op] == flops
    assert moved is None or graph.bytes_accessed[op] == moved


def test_each_function_that_picks_is_counted_by_hand() -> None:
    counted = {f"aten.{name.partition(' ')[0]}" for name in WORK}
    assert functions.PICKS.keys() - counted == {OF_WEIGHTS}


# Groups, and FLOPs: for each output, channel of its group and place of the window; for each input
# if it is transposed.
CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...], int, int]] = {
    "dense": (nn.Conv2d(16, 32, 3, padding=1), IMAGES, 1, 2 * 128 * 32 * 16 * 9),
    "grouped": (nn.Conv2d(16, 32, 3, padding=1, groups=4), IMAGES, 4, 2 * 128 * 32 * 4 * 9),
    "depthwise": (nn.Conv2d(16, 16, 3, padding=1, groups=16), IMAGES, 16, 2 * 128 * 16 * 9),
    "strided": (nn.Conv2d(16, 32, 3, 2, 1), IMAGES, 1, 2 * 32 * 32 * 16 * 9),
    "transposed": (nn.ConvTranspose2d(16, 8, 2, 2), IMAGES, 1, 2 * 128 * 16 * 8 * 4),
    "transposed in groups": (
        *(nn.ConvTranspose2d(16, 8, 2, 2, groups=4), IMAGES, 4, 2 * 128 * 16 * 2 * 4),
    ),
    "of sequences": (nn.Conv1d(4, 6, 5), (3, 4, 20), 1, 2 * 3 * 16 * 6 * 4 * 5),
    "of volumes": (nn.Conv3d(2, 3, 3), (1, 2, 6, 6, 6), 1, 2 * 64 * 3 * 2 * 27),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_each_gradient_is_as_much_work_as_the_convolution(name: str) -> None:
    layer, shape, groups, flops = CONVOLUTIONS[name]
    graph = capture(layer, torch.empty(shape, requires_grad=True))
    ops = [op_of(graph, "convolution"), op_of(graph, "convolution_backward")]
    assert graph.flops[ops].tolist() == [flops, 2 * flops]
    assert graph.groups[ops].tolist() == [groups, groups]
    assert graph.groups.sum() == graph.num_ops + 2 * (groups - 1)
    channels = shape[1] // groups
    assert graph.group_channels[ops].tolist() == [channels, channels]
    assert graph.group_channels.sum() == 2 * channels
    of_weights = capture(layer, torch.empty(shape))  # no gradient of the images
    assert of_weights.flops[op_of(of_weights, "convolution_backward")] == flops


def test_functions_that_tables_name_exist() -> None:
    tables = (table for table in vars(functions).values() if isinstance(table, frozenset))
    named = {*work.FORMULAS, *functions.PICKS, *CLASS_OF_TYPE}.union(*tables)
    aten = {name.removeprefix("aten.") for name in named if name.startswith("aten.")}
    assert len(aten) > 400
    assert [name for name in aten if not hasattr(torch.ops.aten, name)] == []


def trained(pick: Change) -> OpGraph:
    """Capture a step with a table of weights, whose loss is the sum of what is picked of it."""
    table = nn.Parameter(torch.zeros(ROWS, WIDTH))
    return capture(Net(lambda net: pick(net.table).sum(), table=table), (), loss_fn=Tensor.sum)


def test_bags_add_up_rows_and_gradients_of_their_weights_read_those() -> None:
    def weighted(table: Tensor) -> Tensor:
        weights = table[:5].sum(1)
        return F.embedding_bag(FIVE, table, BAGS, mode="sum", per_sample_weights=weights).exp()

    graph = trained(weighted)
    read = 2 * ROW + 5 * ROW + (5 + 2) * INDEX
    assert bytes_of(graph, OF_WEIGHTS.removeprefix("aten.")) == read + 5 * FLOAT
    assert graph.flops[op_of(graph, "_embedding_bag_backward")] == 5 * WIDTH


@pytest.mark.parametrize(
    ("name", "change", "moved"),
    [
        # One number is the gradient of all that is added; it goes to the places of the indices.
        ("index_select", "index_add_", FLOAT + 5 * 2 * ROW + 5 * INDEX),
        ("index", "index_put_", FLOAT + 5 * 2 * ROW + 5 * INDEX),
        ("take", "put_", FLOAT + 5 * 2 * FLOAT + 5 * INDEX),
        ("gather", "scatter_add_", FLOAT + 2 * WIDTH * (2 * FLOAT + INDEX)),
    ],
)
def test_a_gradient_is_added_to_new_zeros_in_place(name: str, change: str, moved: int) -> None:
    graph = trained(WORK[name].run)
    assert bytes_of(graph, change) == moved
    assert bytes_of(graph, "zeros_like" if name == "take" else "new_zeros") == ROWS * ROW


def test_zeros_of_hooks_are_not_changed() -> None:
    def two_sums(gradient: Tensor) -> Tensor:
        zeros = torch.zeros(ROWS, WIDTH)
        once = zeros.scatter_add(0, PLACES, gradient)
        return (once * zeros.scatter_add(0, PLACES, gradient))[:2]

    def pick(table: Tensor) -> Tensor:
        rows = table.gather(0, PLACES)
        rows.register_hook(two_sums)  # type: ignore[no-untyped-call]
        return rows * 2

    graph = trained(pick)
    sums = [op for op, kind in enumerate(graph.op_types) if kind == "aten.scatter_add"]
    zeros = op_of(graph, "zeros")
    assert [zeros in graph.tensor_producer[graph.inputs_of_op[op]] for op in sums] == [True] * 2


@pytest.mark.parametrize(
    ("name", "change", "read"),
    [
        # One number is the gradient of all results.
        ("max_pool2d_with_indices", lambda image: F.max_pool2d(image, 2), FLOAT + 4 * INDEX),
        ("avg_pool2d", lambda image: F.avg_pool2d(image, 2), FLOAT),
        ("reflection_pad2d", lambda image: F.pad(image, (1,) * 4, "reflect"), FLOAT),
        ("nll_loss", lambda image: F.nll_loss(image[0], INDICES(4)), 2 * FLOAT + 4 * INDEX),
    ],
)
def test_what_is_known_by_its_shape_alone_is_not_read(name: str, change: Change, read: int) -> None:
    image = torch.zeros(1, 4, 4, requires_grad=True)
    options: Any = {"optimizer": lambda _: torch.optim.SGD([ONES(1)])}
    graph = capture(Function(change), (image,), loss_fn=Tensor.sum, **options)
    assert bytes_of(graph, f"{name}_backward") == read + 4 * 4 * FLOAT


def test_weights_need_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Linear(2**20, 2**20)  # 4 TiB
        batch = torch.empty(8, 2**20)
    graph = capture(model, batch)
    assert graph.parameter_bytes.max() == 3 * 4 * 2**40 + 4
    assert graph.flops[op_of(graph, "addmm")] == math.prod((2, 8, 2**20, 2**20))


# Weights that are held in fewer bytes than their dtype has, and those of experts.


BLOCKS_OF_32 = 18  # bytes of 32 weights of 4 bits with a scale of 16 bits


def op(graph: OpGraph, op_type: str) -> int:
    return graph.op_types.index(op_type)


def test_a_product_reads_the_bytes_that_its_weight_is_held_in() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 96, bias=False, dtype=torch.bfloat16))
        rows = torch.empty(2, 64, dtype=torch.bfloat16)
    num_bytes = 96 * (64 // 32) * BLOCKS_OF_32
    graph = capture(model, rows, mode="inference", parameter_bytes={"0.weight": num_bytes})
    product, weight = op(graph, "aten.mm"), op(graph, "parameter")
    assert graph.bytes_accessed[product] == num_bytes + 2 * 64 * 2 + 2 * 96 * 2
    assert graph.flops[product] == 2 * 2 * 64 * 96
    assert graph.dtype[product] == "bfloat16"
    assert graph.parameter_bytes[weight] == num_bytes
    assert graph.tensor_bytes[graph.tensor_producer == weight].tolist() == [num_bytes]


def test_rows_that_are_picked_of_a_weight_are_as_narrow_as_it() -> None:
    table = nn.Embedding(10, 64, device="meta")
    words = torch.zeros(3, dtype=torch.int64, device="meta")
    graph = capture(table, words, mode="inference", parameter_bytes={"weight": 10 * 64})
    picked = op(graph, "aten.embedding")
    assert graph.bytes_accessed[picked] == 3 * 8 + 3 * 64 + 3 * 64 * 4


def test_what_cannot_be_held_so_is_refused() -> None:
    model, rows = nn.Linear(4, 2), torch.ones(3, 4)
    with pytest.raises(CaptureError, match=r"^parameter_bytes: expected names .*, got 'bais'"):
        capture(model, rows, mode="inference", parameter_bytes={"bais": 4})
    with pytest.raises(
        CaptureError, match=r"^parameter_bytes: expected at least 1 for bias, got 0"
    ):
        capture(model, rows, mode="inference", parameter_bytes={"bias": 0})


def test_a_step_that_runs_has_the_graph_of_its_capture() -> None:
    model, rows = nn.Linear(4, 2), torch.ones(3, 4)
    parameter_bytes = {"weight": 5}
    graph = capture(model, rows, mode="inference", parameter_bytes=parameter_bytes)
    step = executable_step(model, rows, mode="inference", parameter_bytes=parameter_bytes)
    assert step.graph == graph
