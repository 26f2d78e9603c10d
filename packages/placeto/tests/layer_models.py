"""Models of layers that run one after another, and placements of them by layer."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_capture import capture
from placeto_graphs import (
    PlacementProblem,
    parse_cluster,
)


class Block(nn.Module):
    """A layer with layers inside, that adds what it reads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, width) for _ in range(2))
        self.down = nn.Linear(width, 8)

    def forward(self, features: Tensor) -> Tensor:
        wide = sum(expert(features) for expert in self.experts)
        result: Tensor = features + self.down(wide)
        return result


class Decoder(nn.Module):
    """Embeddings, layers of some widths, a norm and a head."""

    def __init__(self, *widths: int, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(map(Block, widths))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.embed(tokens) * 2
        for layer in self.layers:
            features = torch.tanh(layer(features))
        logits: Tensor = self.head(self.norm(features))
        return logits


def inference(model: nn.Module, inputs: Tensor, cluster: str) -> PlacementProblem:
    graph = capture(model.eval(), inputs, mode="inference")
    problem = make_problem(Source("model", graph), parse_cluster(cluster))
    return replace(problem, grouping=problem.levels[-1], hierarchy=None)


@cache
def decoder(*widths: int, cluster: str = "3xv100", tied: bool = False) -> PlacementProblem:
    tokens = torch.zeros(2, 3, dtype=torch.long)
    return inference(Decoder(*widths, tied=tied), tokens, cluster)


def placed(problem: PlacementProblem, device_of: dict[str, int]) -> NDArray[np.int32]:
    """A placement by the longest prefix of each scope."""
    names = sorted(device_of, key=len)
    devices = [0] * problem.graph.num_ops
    for op, scope in enumerate(problem.graph.scopes):
        for name in names:
            if f"{scope}.".startswith(f"{name}.") or not name:
                devices[op] = device_of[name]
    return problem.placement_of_ops(np.array(devices, np.int32))


def by_layer(problem: PlacementProblem, devices: list[int]) -> NDArray[np.int32]:
    """A placement by the device of each layer, what is before and behind them with these."""
    of_layer = {f"layers.{layer}": device for layer, device in enumerate(devices)}
    ends = {"": devices[0], "embed": devices[0], "norm": devices[-1], "head": devices[-1]}
    return placed(problem, ends | of_layer)
