"""Kinds of models: captured as PyTorch runs them on one device, or refused in one clear line."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing._internal.two_tensor import TwoTensor

from capture_checks import check_replay, compared
from captured_models import Case, Net
from placeto_capture import CaptureError, CaptureWarning, capture
from placeto_graphs import Phase

ROWS = torch.linspace(-1, 1, 32).view(4, 8)


def net(function: Callable[..., Any], **modules: nn.Module) -> Net:
    """Return two layers, and a function that uses them."""
    return Net(function, first=nn.Linear(8, 8), second=nn.Linear(8, 4), **modules)


# Hooks of parameters


def test_hooks_of_parameters_run() -> None:
    def clipped(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-0.01, 0.01)

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    for parameter in model.parameters():
        parameter.register_hook(clipped)  # type: ignore[no-untyped-call]
    hooked: list[nn.Parameter] = []
    model[0].weight.register_post_accumulate_grad_hook(hooked.append)  # type: ignore[operator]
    hooks = [dict(weight._backward_hooks or {}) for weight in model.parameters()]
    step = compared(Case(model, (ROWS,)))
    clamps = [call for call in step.trace.calls if call.op_type == "aten.clamp"]
    assert [call.phase for call in clamps] == [Phase.BACKWARD] * 4
    assert all(parameter is model[0].weight for parameter in hooked)
    assert len(hooked) == 4  # of the capture, and of three steps in PyTorch
    assert [dict(weight._backward_hooks or {}) for weight in model.parameters()] == hooks
    check_replay(step)


# Tensors and modules that are something else


def two(values: torch.Tensor) -> torch.Tensor:
    wrapped: torch.Tensor = TwoTensor(values, values)  # type: ignore[no-untyped-call]
    return wrapped


def with_weight(weight: torch.Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8))
    model[0].weight = nn.Parameter(weight)
    return model


def quantized() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 4))
    quantized_model: nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
        model, {nn.Linear}, dtype=torch.qint8
    )
    return quantized_model


PLAIN = r"{}: expected a plain tensor, got a {}, .*; capture the model before it is sharded"
WRAPPED = r"{}: expected a module of one device, got {}; capture the module that it wraps"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: with_weight(two(torch.ones(8, 8))), PLAIN.format(r"0\.weight", "TwoTensor")),
        (
            lambda: nn.Sequential(nn.Sequential(nn.DataParallel(nn.Linear(8, 4)))),
            WRAPPED.format(r"0\.0", "DataParallel"),
        ),
        (lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 4))), "model: .*, got one with Torch"),
        (
            lambda: net(lambda m, x: m.second(x), packed=quantized()),
            r"packed\.0\S*: expected weights that are tensors, got .*, which packs them; capture",
        ),
    ],
)
def test_what_computes_in_a_way_of_its_own_is_refused_by_name(
    make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(CaptureError, match=f"^{message}") as error:
        capture(make(), ROWS)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_input_that_is_no_plain_tensor_is_refused_by_name() -> None:
    with pytest.raises(CaptureError, match="^" + PLAIN.format(r"input\.0", "TwoTensor")):
        capture(nn.Linear(8, 4), two(ROWS))
    nested = torch.nested.nested_tensor([ROWS[:1], ROWS[1:]], layout=torch.strided)
    with pytest.raises(CaptureError, match=r"^input\.0: expected a (dense|plain) tensor, got a"):
        capture(nn.Linear(8, 4), nested)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the import of the compiler
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_is_compiled_is_captured_as_it_is_with_a_warning(is_whole: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    plain = capture(model, ROWS)
    compiled: Any = model
    if is_whole:
        compiled = torch.compile(model)
    else:
        model[0].compile()
    path = "model" if is_whole else "0"
    with pytest.warns(CaptureWarning, match=rf"^{path}: .* torch\.compile .* module\._orig_mod"):
        graph = capture(compiled, ROWS)
    assert graph.op_types == plain.op_types


# Devices and values


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.second.to("cuda:1")(
            torch.relu(m.first(x.cuda(0))).to(1, non_blocking=True) + torch.zeros(8, device="cuda")
        ),
        lambda m, x: m.second(
            torch.relu(m.first(x)) + torch.zeros(8).to(device=torch.device("cuda"))
        ),
    ],
)
def test_all_devices_are_the_one_that_a_capture_has(function: Callable[..., Any]) -> None:
    plain = capture(net(lambda m, x: m.second(torch.relu(m.first(x)) + torch.zeros(8))), ROWS)
    graph = capture(net(function), ROWS)
    assert sorted(map(_made_alike, graph.op_types)) == sorted(map(_made_alike, plain.op_types))
    assert graph.flops.sum() == plain.flops.sum()


def _made_alike(op_type: str) -> str:
    return op_type.replace("new_zeros", "zeros")


def saved_on_cpu(model: Any, rows: torch.Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        return model.second(torch.tanh(model.first(rows)))


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (saved_on_cpu, "save_on_cpu"),
        (lambda m, x: m.second(m.first(x).to("cpu").relu()), r"\.to\('cpu'\)"),
        (lambda m, x: m.second(m.first(x).cpu().relu()), r"\.to\('cpu'\)"),
        (lambda m, x: m.second(m.first(x).to(device="cpu").relu()), r"\.to\('cpu'\)"),
        (lambda m, x: m.second(m.first(x).to(torch.device("cpu")).relu()), r"\.to\('cpu'\)"),
    ],
)
def test_what_is_moved_to_the_cpu_is_said_to_stay(
    function: Callable[..., Any], operation: str
) -> None:
    message = rf"^{operation}: .* \(line \d+ of test_capture_kinds.py\)$"
    with pytest.warns(CaptureWarning, match=message):
        graph = capture(net(function), ROWS, optimizer=torch.optim.SGD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_cpu = capture(net(function), ROWS, optimizer=torch.optim.SGD, target="cpu")
        assert graph.num_ops == on_cpu.num_ops
        capture(net(lambda m, x: m.second(m.first(x).to(x.device)[: int(x.shape[0])])), ROWS)
        capture(
            net(lambda m, x: m.second(x.to(torch.zeros(1).to(m.first.weight.device).device))), ROWS
        )


def test_numpy_gets_values_that_are_known() -> None:
    def function(model: Any, rows: torch.Tensor, picks: torch.Tensor) -> Any:
        order = np.argsort(picks.numpy())
        rates = np.asarray(torch.linspace(0, 1, 3))
        assert rates.dtype == np.float32
        return model.first(rows)[order.tolist()] * float(rates[1])

    check_replay(compared(Case(net(function), (ROWS, torch.tensor([2, 0, 1])))))


def test_data_of_a_weight_is_written_in_its_place() -> None:
    def function(model: Any, rows: torch.Tensor) -> Any:
        follower = model.follower.weight
        follower.data = follower.data * 0.9 + model.first.weight.data * 0.1
        return model.first(rows) * model.follower(rows) + model.second(rows).sum()

    model = net(function, follower=nn.Linear(8, 8).requires_grad_(False))
    step = compared(Case(model, (ROWS,)))
    check_replay(step)
    trained, followers = 72 + 36, 72
    assert step.graph.parameter_bytes.sum() == 4 * (3 * trained + followers + 4)


# Outputs, tensors without a shape, attention


@dataclass
class Scored:
    loss: torch.Tensor
    scores: torch.Tensor


def test_outputs_may_be_dataclasses() -> None:
    graph = capture(net(lambda m, x: Scored(m.first(x).sum(), m.second(x))), ROWS)
    assert "loss/aten.mean" not in graph.op_names
    assert graph.op_types.count("placeto.update") == 2
    nested = net(lambda m, x: {"out": [Scored(m.first(x), m.second(x))]})
    assert capture(nested, ROWS).op_names.count("loss/aten.mean_2") == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda rows: torch.nested.nested_tensor([rows[:1], rows[1:]], layout=torch.jagged),
            "expected dense tensors, got nested ones",
        ),
        (
            lambda rows: pack_padded_sequence(rows[None], torch.tensor([4]), batch_first=True),
            "the shape of what aten._pack_padded_sequence gives .*; use a mask of fixed shape",
        ),
    ],
)
def test_nested_tensors_and_packed_sequences_are_refused(
    make: Callable[..., Any], message: str
) -> None:
    model = net(lambda m, x: m.first(make(x)))
    with pytest.raises(CaptureError, match=f"^model: {message}"):
        capture(model, ROWS)


def test_flex_attention_is_one_op_as_on_a_gpu() -> None:
    def function(model: Any, rows: torch.Tensor) -> Any:
        heads = model.first(rows).view(1, 4, 4, 2).transpose(1, 2)  # batch, heads, rows, width
        keys = model.second(rows).view(1, 4, 2, 2).transpose(1, 2)
        mask = create_block_mask(lambda _b, _h, i, j: i >= j, 1, 1, 4, 4, device="cuda")
        return flex_attention(
            heads, keys, keys, lambda score, _b, _h, i, j: score + (i - j), mask, enable_gqa=True
        )

    graph = capture(net(function), ROWS)
    attends = [op for op, kind in enumerate(graph.op_types) if "dot_product" in kind]
    assert graph.phases[attends].tolist() == [Phase.FORWARD, Phase.BACKWARD]
    # For each of four heads two products of 4 x 2 and 2 x 4 numbers; backward, five.
    assert graph.flops[attends].tolist() == [4 * 4 * 4 * 4 * 2, 4 * 10 * 4 * 4 * 2]
    blocks = create_block_mask(lambda _b, _h, i, j: i >= j, 1, 1, 384, 384, device="cpu")

    def within(model: Any, rows: torch.Tensor) -> Any:
        heads = model.first(rows)[None, None]
        return flex_attention(heads, heads, heads, block_mask=blocks)

    windows = capture(net(within), torch.ones(384, 8))
    attends = [op for op, kind in enumerate(windows.op_types) if "dot_product" in kind]
    assert windows.flops[attends].tolist() == [n * 384 * 384 * 8 * 2 for n in (2, 5)]
    # Of three rows of three blocks of 128 x 128 pairs, one, two and three are not left out.
    assert windows.computed_part[attends].tolist() == pytest.approx([6 / 9] * 2)
    learned = torch.zeros(4, requires_grad=True)
    biased = net(
        lambda m, x: flex_attention(  # type: ignore[call-overload]
            *[m.first(x)[None, None]] * 3, lambda s, *_: s + learned[0]
        )
    )
    with pytest.raises(CaptureError, match=r"^model: flex_attention: expected a score_mod without"):
        capture(biased, ROWS)
