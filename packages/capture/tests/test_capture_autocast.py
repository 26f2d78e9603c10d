"""Dtypes of products: of weights, and of autocast around a capture, in a model, and by name."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from captured_models import forward_pass
from eager_step import plain_kernels
from placeto_capture import CaptureError, CaptureWarning, Target, capture, cost_model
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.step_spec import StepSpec
from placeto_graphs import OpGraph
from replays import replay

ROWS = torch.linspace(-1, 1, 12).view(3, 4)


def model() -> nn.Module:
    """Return layers with values of their own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def loss_fn(scores: torch.Tensor) -> torch.Tensor:
    """Return a loss with a product of its own."""
    return (scores @ torch.ones(2, 1, dtype=scores.dtype)).float().square().mean()


def products(graph: OpGraph) -> set[str]:
    """Return the matrix products of a graph, with their dtypes."""
    ops = zip(graph.op_types, graph.dtype, strict=True)
    return {f"{kind} {dtype}" for kind, dtype in ops if "mm" in kind}


def of_gpu(*args: Any, **keywords: Any) -> torch.autocast:
    """Return what ``torch.autocast("cuda")`` makes where there is a GPU."""
    is_missing = "torch.cuda.amp.common.amp_definitely_not_available"
    with (
        mock.patch(is_missing, return_value=False),
        mock.patch("torch.cuda.is_bf16_supported", return_value=True),
    ):
        return torch.autocast("cuda", *args, **keywords)


BFLOAT16 = {"aten.addmm bfloat16", "aten.mm bfloat16"}
FLOAT32 = {"aten.addmm float32", "aten.mm float32"}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_callers_autocast_holds_for_the_forward_pass_and_the_loss(device: str) -> None:
    around = of_gpu(torch.bfloat16) if device == "cuda" else torch.autocast("cpu", torch.bfloat16)
    with around:
        graph = capture(model(), ROWS, loss_fn=loss_fn)
    assert products(graph) == BFLOAT16
    assert graph == capture(model(), ROWS, loss_fn=loss_fn, autocast=torch.bfloat16)


def test_what_is_cast_is_what_pytorch_casts() -> None:
    options: Any = {"target": "cpu", "autocast": torch.bfloat16}
    trace = trace_step(StepSpec(model(), ROWS, loss_fn, torch.optim.SGD, **options))
    results = replay(trace, {})
    trained = model()
    with plain_kernels():
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_fn(trained(ROWS))
        loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(results["loss"], loss.detach())
    for name, weight in trained.named_parameters():
        torch.testing.assert_close(results[f"{name}.grad"], weight.grad)
        assert results[name].dtype == torch.float32


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_argument_says_the_dtype(dtype: torch.dtype, mode: str) -> None:
    graph = capture(model(), ROWS, mode=mode, autocast=dtype)
    name = str(dtype).removeprefix("torch.")
    assert {kind.partition(" ")[2] for kind in products(graph)} == {name}
    plain = capture(model(), ROWS, mode=mode)
    with torch.autocast("cpu", dtype):
        assert capture(model(), ROWS, mode=mode, autocast=torch.float32) == plain


@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_a_forward_that_autocast_wraps_is_cast(target: Target) -> None:
    layers = model()
    layers.forward = of_gpu(torch.bfloat16)(layers.forward)
    expected = BFLOAT16 if target == "gpu" else FLOAT32
    assert products(capture(layers, ROWS, target=target)) == expected
    layers = model()
    layers.forward = torch.autocast("cpu", torch.bfloat16)(layers.forward)
    assert products(capture(layers, ROWS, target=target)) == BFLOAT16


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "float16"), ("cpu", "bfloat16")])
def test_autocast_has_the_default_dtype_of_its_device(device: str, dtype: str) -> None:
    def forward(rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device):
            return rows @ rows.T

    assert products(forward_pass(forward, ROWS)) == {f"aten.mm {dtype}"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch leaves it on where there is a GPU")
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_what_pytorch_switches_off_without_a_gpu_is_said() -> None:
    layers = model()
    layers.forward = torch.autocast("cuda")(layers.forward)
    with pytest.warns(CaptureWarning, match=r"^autocast: .* no GPU; autocast=torch\.bfloat16"):
        assert products(capture(layers, ROWS)) == FLOAT32
    assert products(capture(layers, ROWS, autocast=torch.bfloat16)) == BFLOAT16
    with pytest.warns(CaptureWarning, match="^autocast: "), torch.autocast("cuda"):
        capture(model(), ROWS)


def test_autocast_is_as_it_was() -> None:
    def settings() -> list[Any]:
        devices = ("cpu", "cuda")
        return [
            *map(torch.is_autocast_enabled, devices),
            *map(torch.get_autocast_dtype, devices),
            torch.is_autocast_cache_enabled(),
        ]

    with torch.autocast("cpu", torch.float16):
        initial = settings()
        capture(model(), ROWS)
        capture(model(), ROWS, autocast=torch.bfloat16)
        with pytest.raises(CaptureError):
            capture(model(), ROWS[:, :1])
        assert settings() == initial


def test_the_same_flops_and_half_the_bytes_in_bfloat16() -> None:
    def layers(dtype: torch.dtype) -> OpGraph:
        layers = nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)
        return capture(nn.Sequential(*layers).to(dtype), torch.empty(512, 64, dtype=dtype))

    wide, narrow = layers(torch.float32), layers(torch.bfloat16)
    assert wide.op_names == narrow.op_names
    np.testing.assert_array_equal(wide.flops, narrow.flops)
    assert (products(wide), products(narrow)) == (FLOAT32, BFLOAT16)
    # A normalisation keeps statistics of each row in float32 in either.
    plain = np.array(["norm" not in kind for kind in wide.op_types]) & (wide.phases < 2)
    np.testing.assert_array_equal(wide.bytes_accessed[plain], 2 * narrow.bytes_accessed[plain])
    is_plain = plain[wide.tensor_producer]
    np.testing.assert_array_equal(wide.tensor_bytes[is_plain], 2 * narrow.tensor_bytes[is_plain])


def test_the_narrowest_floating_argument_is_what_is_multiplied() -> None:
    def product(rows: torch.Tensor) -> torch.Tensor:
        return torch.mm(rows, rows.T, out_dtype=torch.float32) + rows[:, :3]

    graph = forward_pass(product, ROWS.bfloat16())
    assert graph.dtype[-2:] == ("bfloat16", "bfloat16")
    assert graph.tensor_bytes[-1] == 3 * 3 * 4


def test_products_are_rounded_where_pytorch_is_told_to_round_them() -> None:
    layer, rows = nn.Linear(4096, 4096, bias=False), torch.empty(4096, 4096)
    plain = capture(layer, rows)
    torch.set_float32_matmul_precision("high")
    try:
        rounded = capture(layer, rows)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert products(rounded) == {"aten.mm tf32"}
    assert rounded.dtype.count("float32") == plain.dtype.count("float32") - 2
    # NVIDIA's data sheet of the A100: 19.5 TFLOP/s of float32, 156 of TensorFloat-32, of which
    # products on tensor cores reach a smaller part.
    multiply = [op for op, kind in enumerate(plain.op_types) if kind == "aten.mm"]
    times = [cost_model(graph, "a100")[multiply].sum() for graph in (plain, rounded)]
    assert 0.5 * 156 / 19.5 < times[0] / times[1] < 156 / 19.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_for_a_gpu_in_autocast_runs_on_a_cpu(dtype: torch.dtype) -> None:
    """Kernels for CPUs take statistics of mixed normalisation, and get softmax of float16."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)),
        *(nn.Softmax(-1), nn.Linear(5, 5), nn.LogSoftmax(-1)),
    )
    inputs = (torch.randn(4, 3, 8, 8),)
    trace = trace_step(StepSpec(model, inputs, optimizer=torch.optim.SGD, autocast=dtype))
    results = replay(trace, {})
    loss = model(*inputs).mean()
    loss.backward()
    torch.testing.assert_close(results["loss"], loss.detach(), rtol=0.01, atol=0.01)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(results[f"{name}.grad"], weight.grad, rtol=0.1, atol=0.01)
