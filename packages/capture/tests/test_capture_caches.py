"""Caches, as of keys and values: what their tensors are called, and what is left of them."""

from types import SimpleNamespace

import networkx as nx
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from placeto_capture import capture, capture_function


def test_what_is_in_an_object_is_named_by_its_path() -> None:
    class Reads(nn.Module):
        def forward(self, cache: SimpleNamespace) -> torch.Tensor:
            total: torch.Tensor = cache.layers[1].keys + cache.shared + cache.slots.keys
            return total

    class Slots:
        __slots__ = ("keys",)

    layers = [SimpleNamespace(keys=torch.ones(2)) for _ in range(2)]
    cache = SimpleNamespace(layers=layers, shared=torch.ones(2), slots=Slots())
    cache.slots.keys = torch.ones(2)
    graph = capture(Reads(), (cache,), mode="inference")
    paths = "layers.0.keys", "layers.1.keys", "shared", "slots.keys"
    assert graph.op_names[:4] == tuple(f"input.0.{path}" for path in paths)


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
