"""Policies of a few logits, whose gradients follow from a formula, and a problem of two steps."""

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

from placeto_graphs import EvaluationBatch
from placeto_policy import GraphFeatures, PlacementPolicy, Settings, States, Trainer
from scheduled_problems import ListSchedule, problem_of


class LogitPolicy(PlacementPolicy):
    """Has the logit of the second of two devices as parameters, whatever the placement is.

    One for all groups, or one for each.
    """

    def __init__(self, logits: list[float], settings: Settings | None = None) -> None:
        super().__init__(2, settings)
        del self.scores
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, states: Any) -> torch.Tensor:
        assert isinstance(states, States)
        logits = self.logits.expand(states.graph_features.num_groups)[states.current]
        return torch.log_softmax(torch.stack([torch.zeros_like(logits), logits], dim=1), dim=1)

    def on_graph(self, _: GraphFeatures) -> Callable[[States], torch.Tensor]:
        return self.forward


class CountSeconds(ListSchedule):
    """The runtime is 8 seconds less 3 and 2 for the two groups, where they are on device 1."""

    def evaluate(self, placements: np.ndarray) -> EvaluationBatch:
        runtime = 8.0 - placements @ np.array([3.0, 2.0])
        return EvaluationBatch(
            runtime=runtime, peak_memory=np.zeros((len(placements), 2), np.int64)
        )


def two_steps() -> CountSeconds:
    return CountSeconds(problem_of(nx.DiGraph([("a", "b")])))


def gradients_of_update(monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> list[torch.Tensor]:
    """Make an update, and return d(gain)/d(parameters) of its parts before clipping and Adam."""
    gradients: list[torch.Tensor] = []
    monkeypatch.setattr(trainer.processes, "sum", lambda flat: gradients.append(-flat[:-1].clone()))
    trainer.update()
    return gradients
