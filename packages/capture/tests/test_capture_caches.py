"""A step of inference with a cache: what it keeps, writes and reads, and what is left of it."""

from types import SimpleNamespace

import networkx as nx
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import scaled_dot_product_attention

from placed_runs import placed_run, random_devices
from placeto_capture import capture, capture_function, executable_step

SEQUENCES, HEADS, ROOM, WIDTH = 2, 3, 32, 8


class Attention(nn.Module):
    """Attention of one token to those in a cache, into which it is put."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, token: torch.Tensor, keys: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        keys.index_copy_(2, place, token)
        attended: torch.Tensor = self.output(scaled_dot_product_attention(token, keys, keys))
        return attended


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    token = torch.randn(SEQUENCES, HEADS, 1, WIDTH)
    keys = torch.randn(SEQUENCES, HEADS, ROOM, WIDTH)
    return token, keys, torch.tensor([ROOM - 1])


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
    paths = "layers.0.keys", "layers.1.keys", "shared", "3"  # the last has none
    assert graph.op_names[:4] == tuple(f"input.0.{path}" for path in paths)


def test_a_step_with_a_cache_runs_as_in_pytorch() -> None:
    model, given = Attention(), inputs()
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
