"""Models of several forms, to be placed module by module, and problems of them."""

from dataclasses import replace

import torch
from torch import Tensor
from torch import nn

from placeto_graphs import PlacementProblem
from placeto_graphs import colocate
from placeto_graphs import colocate_by_id
from placeto_graphs import parse_cluster
from placeto_tools.problems import make_problem
from placeto_tools.sources import Source
from placeto_workloads import capture


class Residual(nn.Module):
    """Two layers, and what they read is added: a tensor from outside meets one from inside."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.activation = nn.ReLU()
        self.narrow = nn.Linear(16, 8)

    def forward(self, features: Tensor) -> Tensor:
        """Return the sum."""
        result: Tensor = features + self.narrow(self.activation(self.wide(features)))
        return result


class Branches(nn.Module):
    """Two branches that are joined: all that the module itself reads is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.right = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs of both."""
        return torch.cat([self.left(features), self.right(features)], -1)


class Mixed(nn.Module):
    """A model with weights of its own, attention, tied and unused ones, and all of the above."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(8))
        self.first = nn.Linear(8, 8, bias=False)
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.branches = Branches()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of features [batch, tokens, 8]."""
        features = self.first(features) + self.position
        for block in self.blocks:
            features = torch.relu(block(features))
        features = self.branches(features)
        attended, _ = self.attention(features, features, features, need_weights=False)
        logits: Tensor = self.last(self.norm(attended.mean(1)))
        return logits


class Chain(nn.Module):
    """Blocks one behind the other, with an activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.last = nn.Linear(8, 2)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of features [batch, 8]."""
        for block in self.blocks:
            features = torch.relu(block(features))
        logits: Tensor = self.last(features)
        return logits


def seeded_chain() -> Chain:
    """Return the same chain each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Chain()


def mean_square(outputs: Tensor) -> Tensor:
    """Return a loss."""
    return (outputs - 1).square().mean()


def features(*shape: int) -> Tensor:
    """Return random features, each time the same."""
    return torch.randn(*shape, 8, generator=torch.Generator().manual_seed(1))


def problem_of_ops(model: nn.Module, inputs: Tensor, cluster: str) -> PlacementProblem:
    """Return the problem of a model, in which ops are apart that can be."""
    graph = capture(model, inputs)
    problem = make_problem(Source("model", graph), parse_cluster(cluster))
    return replace(problem, grouping=colocate(graph, [colocate_by_id]), hierarchy=None)
