"""Tables of functions say what is so of PyTorch: its counts of FLOPs, and what its kernels read."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from captured_models import Function, forward_pass
from placeto_capture import capture
from placeto_capture.tracing.functions import ADDS, PUTS, SHAPED_GRADIENTS, function_of
from placeto_capture.tracing.work import FORMULAS, count_flops
from placeto_graphs import OpGraph

FLOAT = 4  # bytes
META = partial(torch.empty, device="meta")
ONES = torch.ones


def named_op(graph: OpGraph, name: str) -> int:
    """Return the one op of a function."""
    (op,) = (op for op, op_type in enumerate(graph.op_types) if op_type == f"aten.{name}")
    return op


class KernelCall(NamedTuple):
    """A call of an ATen function on real tensors, and what it returned."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any


class KernelCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of one ATen function."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[KernelCall] = []  # in their order
        self._name = f"aten.{name}"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func.overloadpacket) == self._name:
            self.calls.append(KernelCall(func, args, kwargs or {}, result))
        return result


def call_of(name: str, run: Callable[[], object]) -> KernelCall:
    """Return the one call of an ATen function, while something runs on real tensors."""
    mode = KernelCalls(name)
    with mode:
        run()
    (call,) = mode.calls
    return call


def bytes_of(tensors: Iterable[Any]) -> int:
    return sum(tensor.nbytes for tensor in pytree.tree_leaves(list(tensors)) if is_tensor(tensor))


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


# FLOPs


class Products(NamedTuple):
    """Arguments of a function, and products of matrices that are as much work."""

    arguments: tuple[Any, ...]
    products: Callable[[], object]


def mm(rows: int, inner: int, columns: int) -> Callable[[], object]:
    return lambda: torch.mm(META(rows, inner), META(inner, columns))


def bmm(count: int, rows: int, inner: int, columns: int) -> Callable[[], object]:
    return lambda: torch.bmm(META(count, rows, inner), META(count, inner, columns))


def both(*products: Callable[[], object]) -> Callable[[], object]:
    return lambda: [run() for run in products]


# Queries of 5 rows, keys and values of 6, in 2 x 3 heads of 8 numbers.
QUERY, KEY = META(2, 3, 5, 8), META(2, 3, 6, 8)
SCORES_OF_HEADS, SUMS_OF_VALUES = bmm(6, 5, 8, 6), bmm(6, 5, 6, 8)
ROWS_AND_MATRICES = META(6, 4), META(3, 4, 5)  # each row with one of three matrices
IMAGES, OUTPUTS, FILTERS = META(2, 6, 8, 8), META(2, 9, 8, 8), META(9, 2, 3, 3)  # in 3 groups
PRODUCTS: dict[str, Products] = {
    "_int_mm": Products((META(3, 4), META(4, 5)), mm(3, 4, 5)),
    "_scaled_mm_v2": Products((META(3, 4), META(4, 5)), mm(3, 4, 5)),
    "_grouped_mm": Products(ROWS_AND_MATRICES, mm(6, 4, 5)),
    "_scaled_grouped_mm": Products(ROWS_AND_MATRICES, mm(6, 4, 5)),
    "_scaled_grouped_mm_v2": Products((META(3, 6, 4), META(3, 4, 5)), bmm(3, 6, 4, 5)),
    "addbmm": Products((META(3, 5), META(7, 3, 4), META(7, 4, 5)), bmm(7, 3, 4, 5)),
    "addmv": Products((META(6), META(6, 7), META(7)), mm(6, 7, 1)),
    "mv": Products((META(6, 7), META(7)), mm(6, 7, 1)),
    "addr": Products((META(6, 7), META(6), META(7)), mm(6, 1, 7)),
    "dot": Products((META(7), META(7)), mm(1, 7, 1)),
    "vdot": Products((META(7), META(7)), mm(1, 7, 1)),
    # 2 rows and 5 outputs: a row of 3 numbers times a matrix, and that times a column of 4.
    "_trilinear": Products(
        (META(2, 3), META(5, 3, 4), META(2, 4), [1, 3], [0], [1, 2], [2, 3]),
        both(bmm(10, 1, 3, 4), bmm(10, 1, 4, 1)),
    ),
    # Points of 3 coordinates, with the squares of their lengths beside these, and ones.
    "_euclidean_dist": Products((META(30, 3), META(40, 3)), mm(30, 3 + 2, 40)),
    "convolution_backward": Products(
        (OUTPUTS, IMAGES, FILTERS, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 3, [True] * 3),
        both(*[lambda: F.conv2d(META(2, 2, 8, 8), META(3, 2, 3, 3), padding=1)] * 3 * 2),
    ),
    "_scaled_dot_product_flash_attention_for_cpu": Products(
        (QUERY, KEY, KEY), both(SCORES_OF_HEADS, SUMS_OF_VALUES)
    ),
    # Scores once more, the gradients of weights and of values, and those of queries and of keys.
    "_scaled_dot_product_flash_attention_for_cpu_backward": Products(
        (QUERY, QUERY, KEY, KEY, QUERY, META(2, 3, 5), 0.0, False),
        both(*[SCORES_OF_HEADS] * 2, *[SUMS_OF_VALUES] * 3),
    ),
}


def counted(name: str, arguments: tuple[Any, ...]) -> int:
    """Return the FLOPs of a call; 0 where no formula has it."""
    function = function_of(getattr(torch.ops.aten, name).default)
    return count_flops(function, arguments, {}, None, ())


def skip_unknown(name: str) -> None:
    if not hasattr(torch.ops.aten, name):
        pytest.skip(f"this version of PyTorch has no {name}")


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_function_has_the_flops_that_torch_counts_of_its_products(name: str) -> None:
    skip_unknown(name)
    arguments, products = PRODUCTS[name]
    with FlopCounterMode(display=False) as counter:
        products()
    assert counted(name, arguments) == counter.get_total_flops() > 0


PAIRS = 30 * 40
# Arguments of functions that are no products of matrices, and their FLOPs.
SUMS: dict[str, tuple[tuple[Any, ...], int]] = {
    # A difference, a power and an addition for each of three coordinates of each pair.
    "_cdist_forward": ((META(30, 3), META(40, 3), 1.0, None), 3 * 3 * PAIRS),
    "_cdist_backward": ((META(30, 40), META(30, 3), META(40, 3), 1.0, None), 3 * 3 * PAIRS),
    "_pdist_forward": ((META(30, 3), 2.0), 3 * 3 * 30 * 30 // 2),
    "_pdist_backward": ((META(435), META(30, 3), 2.0, META(435)), 3 * 3 * 30 * 30 // 2),
    # An addition for each number that is picked, or has a gradient.
    "_embedding_bag": ((META(10, 8), META(5), META(2)), 5 * 8),
    "_embedding_bag_forward_only": ((META(10, 8), META(5), META(2)), 5 * 8),
    "_embedding_bag_backward": ((META(2, 8), META(5), META(2)), 5 * 8),
    "embedding_dense_backward": ((META(5, 8), META(5), 10, -1, False), 5 * 8),
    "nll_loss_forward": ((META(6, 4), META(6)), 6),
    "nll_loss2d_forward": ((META(2, 4, 3, 3), META(2, 3, 3)), 2 * 3 * 3),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_function_has_a_flop_for_each_number_that_it_computes_with(name: str) -> None:
    arguments, flops = SUMS[name]
    assert counted(name, arguments) == flops


# Matrices of 300 x 300 and 400 x 300, 10 columns on the right, 8 transforms of 1,024 numbers: each
# with the leading terms of published counts, in millions.
SQUARE, TALL, COLUMNS = META(300, 300), META(400, 300), META(300, 10)
SIGNALS = META(8, 1024, dtype=torch.complex64)
LEADING_TERMS: list[tuple[str, tuple[Any, ...], float]] = [
    ("cholesky", (SQUARE,), 9),
    ("linalg_cholesky_ex", (SQUARE,), 9),
    ("linalg_cholesky_ex", (META(2, 5, 300, 300),), 90),
    ("cholesky_inverse", (SQUARE,), 18),
    ("cholesky_solve", (COLUMNS, SQUARE), 1.8),
    ("linalg_ldl_factor_ex", (SQUARE,), 9),
    ("linalg_lu", (TALL,), 27),
    ("linalg_lu_factor_ex", (META(300, 400),), 27),
    ("linalg_lu_solve", (SQUARE, META(300), COLUMNS), 1.8),
    ("_linalg_det", (SQUARE,), 18),
    ("_linalg_slogdet", (SQUARE,), 18),
    ("_linalg_solve_ex", (SQUARE, COLUMNS), 18 + 1.8),
    ("_linalg_solve_ex", (SQUARE, META(300)), 18 + 0.18),
    ("linalg_solve_triangular", (SQUARE, COLUMNS), 0.9),
    ("linalg_inv_ex", (SQUARE,), 54),
    ("linalg_inv_ex", (META(2048, 2048),), 17_179.869184),
    ("geqrf", (TALL,), 54),
    ("linalg_householder_product", (TALL, META(300)), 54),
    ("linalg_qr", (TALL,), 108),
    ("linalg_qr", (TALL, "r"), 54),
    ("linalg_qr", (TALL, "complete"), 54 + 48 + 36),
    ("_linalg_svd", (TALL, False, False), 144 - 36),
    ("_linalg_svd", (TALL,), 504 + 216),
    ("linalg_pinv", (TALL,), 504 + 216 + 72),
    ("_linalg_eigh", (SQUARE, "L", False), 36),
    ("_linalg_eigh", (SQUARE,), 243),
    ("linalg_eig", (SQUARE,), 675),
    ("linalg_matrix_exp", (SQUARE,), 270),
    ("_fft_c2c", (SIGNALS, [1], 0, True), 0.4096),
    ("_fft_c2c", (META(32, 32, dtype=torch.complex64), [0, 1], 0, True), 0.0512),
    ("_fft_r2c", (META(8, 1024), [1], 0, True), 0.2048),
    ("_fft_c2r", (META(8, 513, dtype=torch.complex64), [1], 0, 1024), 0.2048),
]


@pytest.mark.parametrize(("name", "arguments", "millions"), LEADING_TERMS)
def test_linear_algebra_has_the_leading_terms_of_its_algorithms(
    name: str, arguments: tuple[Any, ...], millions: float
) -> None:
    skip_unknown(name)
    assert counted(name, arguments) == pytest.approx(millions * 1e6, abs=1)


@pytest.mark.parametrize(("rows", "columns"), [(200, 200), (300, 100)])
def test_an_elimination_step_by_step_does_as_much_as_its_leading_terms(
    rows: int, columns: int
) -> None:
    divisions = sum(rows - step - 1 for step in range(columns))
    updates = sum(2 * (rows - step - 1) * (columns - step - 1) for step in range(columns))
    leading = counted("linalg_lu_factor_ex", (META(rows, columns),))
    assert leading == pytest.approx(divisions + updates, rel=0.02)


def test_each_formula_is_counted_here() -> None:
    names = (*PRODUCTS, *SUMS, *(name for name, *_ in LEADING_TERMS))
    assert {f"aten.{name}" for name in names} == FORMULAS.keys()


# Gradients that look at the shape of their second argument alone


GRADIENTS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (1, 4, 4)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (1, 4, 4, 4)),
    "_adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), (1, 4, 4)),
    "_adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), (1, 4, 4, 4)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), (1, 4, 4)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), (1, 4, 4, 4)),
    "fractional_max_pool2d": (lambda x: F.fractional_max_pool2d(x, 2, 2), (1, 4, 4)),
    "fractional_max_pool3d": (lambda x: F.fractional_max_pool3d(x, 2, 2), (1, 4, 4, 4)),
    "max_pool2d_with_indices": (lambda x: F.max_pool2d(x, 2), (1, 4, 4)),
    "max_pool3d_with_indices": (lambda x: F.max_pool3d(x, 2), (1, 4, 4, 4)),
    **{
        f"{mode.rstrip('e')}ion_pad{dim}d": (
            partial(F.pad, pad=(1, 1) * dim, mode=mode),
            (1, *[4] * dim),
        )
        for mode, dim in product(("reflect", "replicate"), (1, 2, 3))
    },
    "nll_loss": (lambda x: F.nll_loss(x, torch.tensor([1, 0])), (2, 4)),
    "nll_loss2d": (lambda x: F.nll_loss(x, torch.ones(1, 3, 3, dtype=torch.long)), (1, 4, 3, 3)),
}
OTHER_GRADIENTS = {  # of one more name, and of tensors of mkldnn
    *("adaptive_avg_pool3d", "max_pool2d", "mkldnn_adaptive_avg_pool2d"),
    *("mkldnn_max_pool2d", "mkldnn_max_pool3d"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_that_needs_no_values_of_an_argument_does_not_read_it(name: str) -> None:
    forward, shape = GRADIENTS[name]
    inputs = torch.rand(shape, requires_grad=True)
    backward = f"{name}_backward"
    call = call_of(backward, lambda: forward(inputs).square().sum().backward())
    gradient, values, *settings = call.arguments
    unknown = torch.full_like(values, math.nan)
    assert torch.equal(call.function(gradient, unknown, *settings, **call.keywords), call.result)

    no_update: Any = {"optimizer": lambda _: torch.optim.SGD([ONES(1)])}
    graph = capture(
        Function(forward), (inputs,), loss_fn=lambda outputs: outputs.square().sum(), **no_update
    )
    moved = bytes_of((gradient, *settings, call.keywords, call.result))
    assert graph.bytes_accessed[named_op(graph, backward)] == moved


def test_each_gradient_that_needs_no_values_is_looked_at_here() -> None:
    names = {schema.name.replace("::", ".") for schema in torch._C._jit_get_all_schemas()}
    shaped = {name for name in names if SHAPED_GRADIENTS.fullmatch(name)}
    assert shaped <= {f"aten.{name}_backward" for name in (*GRADIENTS, *OTHER_GRADIENTS)}


# Functions that put values into a tensor, and those that read what was there


PLACES = torch.tensor([1, 3])
ELEMENTS = PLACES[:, None].expand(2, 4).contiguous()
SOURCE = torch.full((2, 4), 2.0)
IS_PLACE = torch.tensor([False, True, False, True, False, False])[:, None].expand(6, 4).contiguous()
# Each changes two rows of 6 x 4 numbers, but for `put_`, which changes two numbers.
PUT: dict[str, Callable[[Tensor], Tensor]] = {
    "index_put_": lambda rows: rows.index_put_((PLACES,), SOURCE),
    "put_": lambda rows: rows.put_(PLACES, SOURCE[0, :2]),
    "_index_put_impl_": lambda rows: torch.ops.aten._index_put_impl_(rows, [PLACES], SOURCE),
    "embedding_renorm_": lambda rows: torch.embedding_renorm_(rows, PLACES, 1.0, 2.0),
    "index_add_": lambda rows: rows.index_add_(0, PLACES, SOURCE),
    "index_copy_": lambda rows: rows.index_copy_(0, PLACES, SOURCE),
    "index_fill_": lambda rows: rows.index_fill_(0, PLACES, 2.0),
    "index_reduce_": lambda rows: rows.index_reduce_(0, PLACES, SOURCE, "prod"),
    "masked_scatter_": lambda rows: rows.masked_scatter_(IS_PLACE, SOURCE),
    "scatter_": lambda rows: rows.scatter_(0, ELEMENTS, SOURCE),
    "scatter_add_": lambda rows: rows.scatter_add_(0, ELEMENTS, SOURCE),
    "scatter_reduce_": lambda rows: rows.scatter_reduce_(0, ELEMENTS, SOURCE, "prod"),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", PUT)
def test_what_is_put_is_read_before_if_it_makes_a_difference(name: str) -> None:
    run = PUT[name]
    sevens, numbers_in_order = torch.full((6, 4), 7.0), torch.arange(24.0).view(6, 4)
    call = call_of(name, lambda: run(sevens))
    is_changed = sevens != 7.0
    num_changed = int(is_changed.sum())
    assert num_changed == (2 if name == "put_" else 8)
    is_read = not torch.equal(run(numbers_in_order)[is_changed], sevens[is_changed])
    _, *settings = call.arguments
    graph = forward_pass(lambda rows: run(rows)[0], ONES(6, 4))
    moved = num_changed * FLOAT * (1 + is_read) + bytes_of((settings, call.keywords))
    assert graph.bytes_accessed[named_op(graph, name)] == moved
    assert is_read == (f"aten.{name}" in ADDS)


def test_each_function_that_puts_is_looked_at_here() -> None:
    assert {f"aten.{name}" for name in PUT} == PUTS >= ADDS


# Experts


@pytest.mark.parametrize("experts_per_token", [1, 2, 3, 4])
def test_a_grouped_product_reads_the_experts_that_tokens_choose_on_average(
    experts_per_token: int,
) -> None:
    num_experts, num_tokens = 4, 3
    choices = list(combinations(range(num_experts), experts_per_token))
    chosen = [len(set().union(*picks)) for picks in product(choices, repeat=num_tokens)]
    num_read = sum(chosen) / len(chosen)

    rows = ONES(num_tokens * experts_per_token, 8)
    matrices, ends = ONES(num_experts, 8, 16), torch.zeros(num_experts, dtype=torch.int32)
    graph = capture(
        Function(lambda *inputs: torch._grouped_mm(inputs[0], inputs[1], offs=inputs[2])),
        (rows, matrices, ends),
        mode="inference",
        experts_per_token=experts_per_token,
    )
    row_bytes = bytes_of((rows, ends)) + len(rows) * 16 * FLOAT
    moved = row_bytes + num_read / num_experts * matrices.nbytes
    assert graph.bytes_accessed[named_op(graph, "_grouped_mm")] == pytest.approx(moved, abs=1)
