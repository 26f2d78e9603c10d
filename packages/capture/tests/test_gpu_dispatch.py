"""Autocast and single ops of GPUs, beside PyTorch's own tables and its fake tensors of a GPU."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.functional import dropout, rms_norm, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from placeto_capture import CaptureError, capture
from placeto_capture.tracing import gpu_dispatch
from placeto_capture.tracing.cpu_kernels import HAS_RMS_NORM
from placeto_capture.tracing.patches import patched_torch

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
TABLES = {
    "FP32": gpu_dispatch.FLOAT32,
    "FP32_SET_OPT_DTYPE": gpu_dispatch.FLOAT32_RESULT,
    "LOWER_PRECISION_FP": gpu_dispatch.LOWER_PRECISION,
    "PROMOTE": gpu_dispatch.WIDEST_DTYPE,
}


@pytest.mark.skipif(not HEADER.exists(), reason="no headers of PyTorch")
@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_pytorchs_header(name: str) -> None:
    lines = re.search(rf"#define AT_FORALL_{name}\(_\)((?:.*\\\n)*.*\n)", HEADER.read_text())
    assert lines
    listed = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", lines[1])
    assert {".".join(filter(None, function)) for function in listed} <= TABLES[name]


def test_each_function_that_pytorch_casts_on_a_gpu_is_in_one_table() -> None:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    names = {name.removeprefix("aten::") for name in registered if name.startswith("aten::")}
    tables = [*TABLES.values(), {"binary_cross_entropy"}]
    assert {name: sum(name in table for table in tables) for name in names} == dict.fromkeys(
        names, 1
    )


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the functions that run, with the dtype of the first tensor that they return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if tensors:
            self.ops.append((str(func), tensors[0].dtype))
        return result


Step = Callable[..., Any]


def ops_of(step: Step | nn.Module, device: str) -> list[Any]:
    """Return what a step or a model runs in an autocast, with fake tensors of a device."""
    is_there = "torch.cuda.amp.common.amp_definitely_not_available"
    with (
        FakeTensorMode(),
        torch.no_grad(),
        mock.patch(is_there, return_value=False),
        mock.patch("torch.cuda.is_bf16_supported", return_value=True),
    ):
        for module in step.modules() if isinstance(step, nn.Module) else ():
            tables: list[dict[str, Any]] = [module._parameters, module._buffers]
            for tensors in tables:
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = torch.empty(tensor.shape, device=device)
        shapes = {"x": (4, 4), "row": (4,), "image": (2, 4, 2, 2), "narrow_triple": (4, 3)}
        narrow = {
            name: torch.empty(shape, dtype=torch.bfloat16, device=device)
            for name, shape in shapes.items()
        }
        shapes = {"w": (4, 4), "bias": (4,), "filters": (4, 4, 2, 2), "wide_triple": (4, 3)}
        wide = {name: torch.empty(shape, device=device) for name, shape in shapes.items()}
        index = torch.zeros(4, dtype=torch.long, device=device)
        arguments = SimpleNamespace(**narrow, **wide, index=index)
        recorder = Recorder()
        with torch.autocast("cuda", torch.bfloat16), recorder:
            step(arguments.x if isinstance(step, nn.Module) else arguments)
    return recorder.ops


def words(text: str) -> list[str]:
    """Return the names in a text."""
    return text.split()


ELEMENTWISE = words("""
    abs acos asin cosh erf erfinv exp expm1 log log10 log1p log2 neg reciprocal relu rsqrt sigmoid
    sin sinh sqrt tan tanh amax mean prod sum trace
""")
ALONG_ROWS = words("cumprod cumsum log_softmax logsumexp norm prod softmax sort sum topk")
OF_TWO = words("""
    add atan2 cdist dist div fmod hypot matmul maximum minimum mm mul pow tensordot
""")
OF_LAYERS = words("elu gelu hardtanh leaky_relu logsigmoid mish normalize silu softplus")
LOSSES = words("""
    binary_cross_entropy_with_logits cosine_similarity hinge_embedding_loss huber_loss
    l1_loss linear mse_loss pairwise_distance poisson_nll_loss smooth_l1_loss soft_margin_loss
""")
# Calls with tensors in bfloat16 (`t.x`, `t.row`, `t.image`) and float32 (`t.w`, `t.bias`).
CALLS: dict[str, Step] = {
    **{
        name: lambda t, name=name: [getattr(torch, name)(matrix) for matrix in (t.x, t.w)]
        for name in ELEMENTWISE
    },
    **{
        f"{name} of rows": lambda t, name=name: [
            getattr(torch, name)(matrix, 1) for matrix in (t.x, t.w)
        ]
        for name in ALONG_ROWS
    },
    **{
        f"{name} of two": lambda t, name=name: [
            getattr(torch, name)(t.x, matrix) for matrix in (t.x, t.w)
        ]
        for name in OF_TWO
    },
    **{name: lambda t, name=name: getattr(functional, name)(t.x) for name in OF_LAYERS},
    **{name: lambda t, name=name: getattr(functional, name)(t.x, t.w) for name in LOSSES},
    "powers": lambda t: (t.x**2, 2**t.x, t.x.pow(0.5)),
    "norms": lambda t: (t.x.norm(), t.w.norm(), t.x.norm(2, 1), torch.linalg.vector_norm(t.x)),
    "sums": lambda t: (t.x.sum(), t.x.sum(0), t.x.sum(dtype=torch.bfloat16), t.x.sum(0, True)),
    "softmax in a dtype": lambda t: t.x.softmax(-1, torch.float64),
    "double": lambda t: (t.x.double().exp(), t.w.double().sum(), t.w.double().softmax(0)),
    "layer norm": lambda t: functional.layer_norm(t.x, (4,), t.bias, t.bias),
    "group norm": lambda t: functional.group_norm(t.x, 2, t.bias, t.bias),
    "addmv": lambda t: (torch.addmv(t.bias, t.x, t.bias), torch.mv(t.x, t.bias)),
    "addr": lambda t: torch.addr(t.w, t.row, t.row),
    "addmm": lambda t: torch.addmm(t.w, t.x, t.w),
    "bmm": lambda t: torch.bmm(t.x.unsqueeze(0), t.w.unsqueeze(0)),
    "baddbmm": lambda t: torch.baddbmm(t.w.unsqueeze(0), t.x.unsqueeze(0), t.w.unsqueeze(0)),
    "einsum": lambda t: torch.einsum("ij,kj->ik", t.x, t.w),
    "multi_dot": lambda t: torch.linalg.multi_dot([t.x, t.w, t.w]),
    "prelu": lambda t: functional.prelu(t.x, t.bias),
    "conv1d": lambda t: functional.conv1d(t.x, t.filters.view(16, 4, 1)),
    "conv2d": lambda t: functional.conv2d(t.image, t.filters, padding=1),
    "conv_transpose2d": lambda t: functional.conv_transpose2d(t.image, t.filters),
    "addcdiv": lambda t: (torch.addcdiv(t.x, t.x, t.w), torch.addcmul(t.x, t.x, t.x)),
    "dot": lambda t: (torch.dot(t.row, t.bias), torch.dot(t.row, t.row)),
    "cross": lambda t: torch.linalg.cross(t.narrow_triple, t.wide_triple),
    "bilinear": lambda t: functional.bilinear(t.x, t.w, t.w.unsqueeze(0)),
    "cat": lambda t: (torch.cat([t.x, t.w]), torch.stack([t.x, t.w]), torch.where(t.x > 0, 1, t.w)),
    "index_put": lambda t: torch.index_put(t.w, (t.index,), t.x),
    "scatter_add": lambda t: t.w.scatter_add(0, t.index.unsqueeze(0), t.x),
    "index_add": lambda t: t.w.index_add(0, t.index, t.w),
    "nll": lambda t: functional.nll_loss(t.x, t.index),
    "cross entropy": lambda t: functional.cross_entropy(t.x, t.index, label_smoothing=0.1),
    "margins": lambda t: (
        functional.multi_margin_loss(t.x, t.index),
        functional.margin_ranking_loss(t.row, t.bias, t.bias),
        functional.triplet_margin_loss(t.x, t.w, t.w),
        functional.cosine_embedding_loss(t.x, t.w, t.bias),
    ),
    "divergence": lambda t: functional.kl_div(t.x, t.w, reduction="sum"),
    "renorm": lambda t: torch.renorm(t.x, 2, 0, 1.0),
    "upsample": lambda t: [
        functional.interpolate(t.image, scale_factor=2, mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    ],
    "pools": lambda t: (
        functional.avg_pool2d(t.image, 2),
        functional.max_pool2d(t.image, 2),
        functional.adaptive_avg_pool2d(t.image, 1),
        functional.avg_pool3d(t.image, (1, 2, 2)),
    ),
    "pads": lambda t: functional.pad(t.image, (1, 1, 1, 1), mode="reflect"),
    "variances": lambda t: (t.x.std(), t.x.var(0), torch.var_mean(t.x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_runs_what_it_runs_on_a_gpu(name: str) -> None:
    on_gpu = ops_of(CALLS[name], "cuda")
    with patched_torch("gpu"):
        assert ops_of(CALLS[name], "cpu") == on_gpu


MODELS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()),
    "twice": lambda: nn.Sequential(*[layer := nn.Linear(4, 4), nn.Softmax(-1), layer]),
    "softplus": lambda: nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.LogSoftmax(-1)),
    "gated": lambda: nn.Sequential(nn.Linear(4, 8), nn.GLU(), nn.PReLU()),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU6()
    ),
    "group norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 1)), nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.SiLU()
    ),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 1)), nn.ConvTranspose2d(2, 4, 2), nn.InstanceNorm2d(4)
    ),
    "upsample": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Flatten()
    ),
    "pools": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 1), nn.LPPool2d(2, 2), nn.Flatten()
    ),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "mixer": lambda: nn.Sequential(
        nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 4), nn.LayerNorm(4)
    ),
    "depthwise": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 1, 1)),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.GroupNorm(1, 4),
        nn.Conv2d(4, 16, 1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
    ),
    "squared": lambda: nn.Sequential(nn.Linear(4, 4), nn.Softsign(), nn.Tanhshrink()),
    "distances": lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmin(-1), nn.Threshold(0.1, 0)),
    "three dimensions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2, 1)), nn.Conv3d(1, 2, 1), nn.BatchNorm3d(2), nn.AvgPool3d(1)
    ),
    "one dimension": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 4, 1), nn.ReLU(), nn.ConvTranspose1d(4, 2, 1)
    ),
    "local responses": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 1, 1)), nn.LocalResponseNorm(2), nn.Conv2d(4, 4, 1)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_what_it_runs_on_a_gpu(name: str) -> None:
    on_gpu = ops_of(MODELS[name]().eval(), "cuda")
    with patched_torch("gpu"):
        assert ops_of(MODELS[name]().eval(), "cpu") == on_gpu


def test_pytorch_is_as_before_a_capture() -> None:
    layer, rows = nn.LayerNorm(4), torch.ones(2, 4, dtype=torch.bfloat16)
    capture(layer, torch.ones(2, 4), autocast=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(rows).dtype == torch.bfloat16
        assert torch.linalg.cholesky(torch.eye(2, dtype=torch.bfloat16)).dtype == torch.float32


class Transformer(nn.Module):
    """A block with the casts of autocast, written out or not."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.dtype = dtype

    def linear(self, layer: nn.Linear, values: torch.Tensor) -> torch.Tensor:
        """Return a product."""
        if self.dtype is None:
            return functional.linear(values, layer.weight, layer.bias)
        weight, bias = layer.weight.to(self.dtype), layer.bias.to(self.dtype)
        return functional.linear(values.to(self.dtype), weight, bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of the squares of what attention with an explicit softmax gives."""
        query, key, value = self.linear(self.inner, self.norm(rows)).chunk(3, -1)
        scores = query @ key.mT
        weights = (scores if self.dtype is None else scores.float()).softmax(-1)
        attended = (weights if self.dtype is None else weights.to(self.dtype)) @ value
        outputs = rows + self.linear(self.outer, attended)
        return outputs.square().mean()


def test_memory_in_autocast_is_that_of_casts_written_out() -> None:
    rows = torch.ones(8, 32, 16)
    cast = capture(Transformer(torch.bfloat16), rows, autocast=torch.float32)
    automatic = capture(Transformer(None), rows, autocast=torch.bfloat16)
    assert sorted(automatic.op_types) == sorted(cast.op_types)
    assert automatic.tensor_bytes.sum() == cast.tensor_bytes.sum()
    assert automatic.bytes_accessed.sum() == cast.bytes_accessed.sum()
    on_cpu = capture(Transformer(None), rows, autocast=torch.bfloat16, target="cpu")
    assert on_cpu.tensor_bytes.sum() < cast.tensor_bytes.sum()


@pytest.mark.parametrize("is_affine", [True, False])
def test_statistics_of_narrow_batches_are_those_of_a_gpu(is_affine: bool) -> None:
    with FakeTensorMode():
        images = torch.empty(2, 4, 2, 2, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(4, device="cuda") if is_affine else None
        made_on_gpu = torch.ops.aten.native_batch_norm(
            images, weight, weight, None, None, True, 0.1, 1e-5
        )
    norm = nn.BatchNorm2d(4, affine=is_affine)
    graph = capture(
        nn.Sequential(nn.Conv2d(4, 4, 1), norm), torch.ones(2, 4, 2, 2), autocast=torch.bfloat16
    )
    made = graph.tensors_of_op[graph.op_types.index("aten.native_batch_norm")]
    sizes = [tensor.numel() * tensor.itemsize for tensor in made_on_gpu]
    assert graph.tensor_bytes[made][:3].tolist() == sizes


def test_binary_cross_entropy_is_refused_in_an_autocast_as_on_a_gpu() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    with pytest.raises(CaptureError, match="binary_cross_entropy: PyTorch refuses it"):
        capture(
            model,
            torch.ones(2, 4),
            loss_fn=lambda outputs: functional.binary_cross_entropy(outputs, torch.ones(2, 1)),
            autocast=torch.bfloat16,
        )


def test_functions_imported_by_name_are_those_of_a_gpu() -> None:
    def by_name(query: torch.Tensor) -> torch.Tensor:
        attended = scaled_dot_product_attention(query, query, query, dropout_p=0.1)
        return rms_norm(dropout(attended, 0.1), (16,))

    def by_module(query: torch.Tensor) -> torch.Tensor:
        attended = functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1)
        return functional.rms_norm(functional.dropout(attended, 0.1), (16,))

    class Model(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.layer, self.function = nn.Linear(16, 16), function

        def forward(self, query: torch.Tensor) -> Any:
            return self.function(self.layer(query))

    graphs = [
        capture(Model(function), torch.ones(2, 2, 4, 16)) for function in (by_name, by_module)
    ]
    assert graphs[0] == graphs[1]
    kinds = ["aten._scaled_dot_product_efficient_attention", "aten.native_dropout"]
    kinds += ["aten._fused_rms_norm"] if HAS_RMS_NORM else []
    assert [kind for kind in graphs[0].op_types if kind in kinds] == kinds
