"""Models of several forms, to be placed module by module, and problems of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_capture import capture
from placeto_graphs import (
    PlacementProblem,
    colocate,
    colocate_by_id,
    parse_cluster,
    save_placement,
    save_problem,
)


class Residual(nn.Module):
    """Two layers, and what they read is added: a tensor from outside meets one from inside."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.activation = nn.ReLU()
        self.narrow = nn.Linear(16, 8)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = features + self.narrow(self.activation(self.wide(features)))
        return result


class Branches(nn.Module):
    """Two branches that are joined: all that the module itself reads is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.right = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def forward(self, features: Tensor) -> Tensor:
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
        for block in self.blocks:
            features = torch.relu(block(features))
        logits: Tensor = self.last(features)
        return logits


class Scale(nn.Module):
    """What is scaled by a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.weight


class Composite(nn.Module):
    """Parts that are put together in one of several ways, from 8 features to 8.

    ``"chain"``: one behind the other; ``"twice"``: that two times, with the same weights;
    ``"residual"``: that, and what was read is added; ``"sum"``: all of what was read, added.
    """

    def __init__(self, kind: str, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.kind = kind
        self.parts = nn.ModuleList(modules)

    def forward(self, features: Tensor) -> Tensor:
        if self.kind == "sum":
            return torch.stack([module(features) for module in self.parts]).sum(0)
        result = features
        for _ in range(2 if self.kind == "twice" else 1):
            for module in self.parts:
                result = module(result)
        return result + features if self.kind == "residual" else result


LEAVES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(8, 8),
    "relu": nn.ReLU,
    "scale": Scale,
}
Recipe = str | tuple[str, list[Any]]
RECIPES = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda recipes: st.tuples(
        st.sampled_from(["chain", "twice", "residual", "sum"]),
        st.lists(recipes, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def model_of(*recipes: Recipe) -> nn.Module:
    """Return a layer, and then what the recipes say, one behind the other."""
    return Composite("chain", [nn.Linear(8, 8), *map(_made, recipes)])


def _made(recipe: Recipe) -> nn.Module:
    if isinstance(recipe, str):
        return LEAVES[recipe]()
    kind, recipes = recipe
    return Composite(kind, [_made(member) for member in recipes])


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


def saved(folder: Path, problem: PlacementProblem, placement: NDArray[np.int32]) -> list[Path]:
    """Write the files of a problem and of a placement."""
    paths = [folder / "problem.json", folder / "placement.json"]
    save_problem(problem, paths[0])
    save_placement(placement, problem, paths[1])
    return paths


def with_memory(problem: PlacementProblem, num_bytes: int) -> PlacementProblem:
    """Return a problem whose devices have so much memory each."""
    devices = (replace(device, memory_bytes=num_bytes) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def drawn(problem: PlacementProblem, seed: int) -> NDArray[np.int32]:
    """Return a placement that a seed draws."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, problem.num_devices, problem.num_groups, np.int32)
