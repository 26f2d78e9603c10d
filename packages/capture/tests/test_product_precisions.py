"""Products of narrow numbers: how a graph says them, and what they cost."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from placeto_capture import CaptureError, capture, cost_model
from placeto_capture.costs.roofline import Tf32
from placeto_graphs import DEVICE_KINDS, DeviceKind, OpGraph, from_networkx

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


def one_op(op_type: str, **attributes: Any) -> OpGraph:
    ops = nx.DiGraph()
    ops.add_node("op", op_type=op_type, **attributes)
    return from_networkx(ops)


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


@pytest.mark.parametrize(
    ("dtype", "known"), [("int3", "float32"), ("complex64", "float32"), ("complex128", "float64")]
)
def test_dtypes_without_a_peak_have_that_of_their_parts_or_of_float32(
    dtype: str, known: str
) -> None:
    for kind in DEVICE_KINDS:
        graphs = [one_op("aten.mm", flops=1e12, dtype=each) for each in (dtype, known)]
        found, expected = (cost_model(graph, kind, tf32="never") for graph in graphs)
        np.testing.assert_array_equal(found, expected)


def test_what_is_no_product_computes_as_in_float32() -> None:
    narrow, wide = (one_op("aten.exp", flops=1e12, dtype=each) for each in ("float16", "float32"))
    np.testing.assert_array_equal(cost_model(narrow, "v100"), cost_model(wide, "v100"))


@pytest.mark.parametrize("kind", sorted(DEVICE_KINDS))
@pytest.mark.parametrize("op_type", ["aten.convolution", "aten.mm"])
@pytest.mark.parametrize("tf32", ["never", "convolutions", "always"])
def test_float32_is_rounded_where_it_may_be(kind: str, op_type: str, tf32: Tf32) -> None:
    device: DeviceKind = DEVICE_KINDS[kind]
    rounds = tf32 == "always" or (tf32 == "convolutions" and op_type == "aten.convolution")
    peak = device.peak_flops_in.get("tf32", device.peak_flops) if rounds else device.peak_flops
    its_class = "convolution" if op_type == "aten.convolution" else "matrix_product"
    expected = device.launch_overhead + 1e15 / peak / getattr(device.efficiency, its_class)
    (taken,) = cost_model(one_op(op_type, flops=1e15, bytes_accessed=1e6), kind, tf32=tf32)
    assert taken == pytest.approx(expected, rel=1e-12)


def test_an_unknown_choice_is_named() -> None:
    choice: Any = "sometimes"
    with pytest.raises(CaptureError, match=r"tf32: expected one of never, .*, got 'sometimes'"):
        cost_model(one_op("aten.mm"), "a100", tf32=choice)
