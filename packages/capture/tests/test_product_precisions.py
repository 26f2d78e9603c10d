"""Products of narrow numbers, as a graph says them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from placeto_capture import capture, cost_model
from placeto_graphs import OpGraph

WIDTH = 4096


class Block(nn.Module):
    """A layer of a transformer, with two heads."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        heads = self.project(self.before(words)).unflatten(-1, (3, 2, -1)).transpose(1, 3)
        attended = F.scaled_dot_product_attention(*heads.unbind(2))
        words = words + self.out(attended.transpose(1, 2).flatten(2))
        result: torch.Tensor = words + self.feed_forward(self.between(words))
        return result


class MixedBlock(nn.Module):
    """The same layer, whose products are computed in another dtype by autocast."""

    def __init__(self, device: str, dtype: torch.dtype | None, width: int = 64) -> None:
        super().__init__()
        self.block = Block(width)
        self.autocast: dict[str, Any] = {"device_type": device, "dtype": dtype}

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        with torch.autocast(**self.autocast):
            result: torch.Tensor = self.block(words).float()
        return result


def block_in(dtype: torch.dtype) -> OpGraph:
    """Capture a layer in a dtype."""
    with torch.device("meta"):
        return capture(Block().to(dtype), torch.empty(4, 512, WIDTH, dtype=dtype))


def dtypes_of_products(graph: OpGraph) -> set[str]:
    """Return the dtypes of the matrix products and attentions of a graph."""
    ops = zip(graph.op_types, graph.dtype, strict=True)
    return {dtype for name, dtype in ops if "mm" in name or "attention" in name}


def test_the_same_flops_and_half_the_bytes_in_bfloat16() -> None:
    wide, narrow = block_in(torch.float32), block_in(torch.bfloat16)
    assert wide.op_names == narrow.op_names
    np.testing.assert_array_equal(wide.flops, narrow.flops)
    assert dtypes_of_products(wide) == {"float32"}
    assert dtypes_of_products(narrow) == {"bfloat16"}
    # Normalisation and attention keep statistics of each row in float32 in either.
    statistics = [
        any(part in op_type for part in ("norm", "attention")) for op_type in wide.op_types
    ]
    plain = ~np.array(statistics) & (wide.phases < 2)
    np.testing.assert_array_equal(wide.bytes_accessed[plain], 2 * narrow.bytes_accessed[plain])
    plain_tensors = plain[wide.tensor_producer]
    np.testing.assert_array_equal(
        wide.tensor_bytes[plain_tensors], 2 * narrow.tensor_bytes[plain_tensors]
    )


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "float16"), ("cpu", "bfloat16")])
def test_autocast_has_the_default_dtype_of_its_device(device: str, dtype: str) -> None:
    graph = capture(MixedBlock(device, None), torch.empty(2, 16, 64))
    assert dtypes_of_products(graph) == {dtype}


def test_the_narrowest_floating_argument_is_what_is_multiplied() -> None:
    class Product(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return torch.mm(left, right, out_dtype=torch.float32)

    narrow = [torch.empty(8, 8, dtype=torch.bfloat16)] * 2
    graph = capture(Product(), tuple(narrow), mode="inference")
    assert (graph.op_types[-1], graph.dtype[-1]) == ("aten.mm", "bfloat16")
    assert graph.tensor_bytes[-1] == 8 * 8 * 4


def test_products_are_rounded_where_pytorch_is_told_to_round_them() -> None:
    layer, rows = nn.Linear(WIDTH, WIDTH, bias=False), torch.empty(WIDTH, WIDTH)
    plain = capture(layer, rows)
    torch.set_float32_matmul_precision("high")
    try:
        rounded = capture(layer, rows)
    finally:
        torch.set_float32_matmul_precision("highest")
    products = [op for op, kind in enumerate(plain.op_types) if kind == "aten.mm"]
    assert {rounded.dtype[op] for op in products} == {"tf32"}
    assert rounded.dtype.count("float32") == plain.dtype.count("float32") - len(products)
    # NVIDIA's data sheet of the A100: 19.5 TFLOP/s of float32, 156 of TensorFloat-32.
    times = (cost_model(graph, "a100")[products].sum() for graph in (plain, rounded))
    assert next(times) / next(times) == pytest.approx(156 / 19.5, rel=0.01)
