"""A step of inference with a cache: what it keeps, writes and reads, and what is left of it."""

from types import SimpleNamespace

import networkx as nx
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import scaled_dot_product_attention

from placed_runs import placed_run, random_devices
from placeto_capture import capture, capture_function, executable_step
from placeto_graphs import OpGraph

SEQUENCES, HEADS, ROOM, WIDTH = 2, 3, 32, 8
CACHE_BYTES = SEQUENCES * HEADS * ROOM * WIDTH * 4
TOKEN_BYTES = CACHE_BYTES // ROOM


class Attention(nn.Module):
    """Attention of one token to those in a cache, into which it is put in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, token: torch.Tensor, keys: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        if self.way == "index_copy_":
            keys.index_copy_(2, place, token)
        elif self.way == "index_put_":
            keys[:, :, place] = token
        elif self.way == "scatter_":
            keys.scatter_(2, place.view(1, 1, 1, 1).expand(token.shape), token)
        else:
            keys[:, :, ROOM - 1 : ROOM] = token
        attended: torch.Tensor = self.output(scaled_dot_product_attention(token, keys, keys))
        return attended


class Layer(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.attention = Attention(way)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.attention(*given)
        return attended


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    token = torch.randn(SEQUENCES, HEADS, 1, WIDTH)
    keys = torch.randn(SEQUENCES, HEADS, ROOM, WIDTH)
    return token, keys, torch.tensor([ROOM - 1])


def op(graph: OpGraph, op_type: str) -> int:
    (found,) = [op for op, name in enumerate(graph.op_types) if name.startswith(op_type)]
    return found


@pytest.mark.parametrize(
    ("way", "op_type"),
    [
        ("index_copy_", "aten.index_copy_"),
        ("index_put_", "aten.index_put_"),
        ("scatter_", "aten.scatter_"),
        ("slice", "aten.copy_"),
    ],
)
def test_a_write_into_a_cache_counts_what_it_writes(way: str, op_type: str) -> None:
    graph = capture(Layer(way), inputs(), mode="inference")
    write, cache = op(graph, op_type), op(graph, "buffer")
    read = op(graph, "aten._scaled_dot_product")
    index_bytes = {"slice": 0, "scatter_": 8}.get(way, 8)
    assert graph.bytes_accessed[write] == 2 * TOKEN_BYTES + index_bytes
    # The cache is in one place, which is that of its attention, for all of the step.
    assert graph.op_names[cache] == "input.1"
    assert graph.scopes[cache] == "attention"
    assert graph.parameter_bytes[cache] == CACHE_BYTES
    assert graph.tensor_bytes[graph.tensor_producer == write].sum() == 0
    assert graph.colocation[cache] == graph.colocation[write] == graph.colocation[read] >= 0
    # It is read whole, once: it is the keys and the values.
    sums = SEQUENCES * HEADS * 4
    assert graph.bytes_accessed[read] == CACHE_BYTES + 2 * TOKEN_BYTES + sums


def test_what_is_in_an_object_is_named_by_its_path() -> None:
    class Reads(nn.Module):
        def forward(self, cache: SimpleNamespace) -> torch.Tensor:
            total: torch.Tensor = cache.layers[1].keys + cache.shared
            return total

    layers = [SimpleNamespace(keys=torch.ones(2)) for _ in range(2)]
    cache = SimpleNamespace(layers=layers, shared=torch.ones(2))
    graph = capture(Reads(), (cache,), mode="inference")
    assert graph.op_names[:3] == (
        "input.0.layers.0.keys",
        "input.0.layers.1.keys",
        "input.0.shared",
    )


def test_a_step_with_a_cache_runs_as_in_pytorch() -> None:
    model, given = Attention("index_copy_"), inputs()
    step = executable_step(model, given, mode="inference")
    token, keys, place = (each.clone() for each in given)
    with torch.no_grad():
        expected = model(token, keys, place)
    for seed in range(3):
        run = placed_run(step, random_devices(step.graph, 2, seed), 2, seed)
        torch.testing.assert_close(run.results["output.0"], expected)
        torch.testing.assert_close(run.results["input.1"], keys)


def test_a_caller_gets_a_cache_back_as_it_was() -> None:
    cache = nx.DiGraph()  # an object of another library, as a cache of transformers is
    cache.layers = [SimpleNamespace(keys=None, seen=0)]
    layer = nn.Linear(4, 4)

    def step(rows: torch.Tensor) -> torch.Tensor:
        (kept, *_) = cache.layers
        new = layer(rows)
        kept.keys = new if kept.keys is None else torch.cat([kept.keys, new])
        kept.seen += 1
        cache.layers.append(SimpleNamespace(keys=new))
        cache.values = new
        total: torch.Tensor = kept.keys.sum()
        return total

    for before in (None, torch.ones(2, 4)):
        cache.layers[0].keys = before
        capture_function(step, layer, example_inputs=(torch.ones(3, 4),))
        (kept,) = cache.layers
        assert kept.keys is before
        assert kept.seen == 0
        assert not hasattr(cache, "values")
        assert not isinstance(kept.keys, FakeTensor)
