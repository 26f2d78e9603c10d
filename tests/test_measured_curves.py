"""Learning on device processes, where an update may take minutes."""

from pathlib import Path

import pytest

from placeto.placing import watching
from placeto.trials.trials import Graph, StoppedError, Watch, Workspace
from placeto_experiments.paper import fidelity_tasks
from placeto_experiments.paper.fidelity import SMOKE_MODELS
from placeto_experiments.paper.fidelity_tasks import RunnableModel, profiling
from placeto_experiments.paper.measured_curves import PROCESSES, LearnOn
from placeto_experiments.paper.placers import without_simulated_features
from placeto_policy import Settings


def test_a_training_tells_how_far_it_is_and_stops_within_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SECONDS_BETWEEN_REPORTS", 0.0)
    monkeypatch.setattr(fidelity_tasks, "PROFILE_RUNS", 2)
    model, graph = RunnableModel("nmt-2", tuple(SMOKE_MODELS["nmt-2"].items()), 8), Graph("nmt-2")
    workspace = Workspace(tmp_path)
    profiling(graph, model).task.run(workspace, Watch(lambda: False))
    settings = without_simulated_features(Settings(workers=2))
    assert settings.reward == "counterfactual"  # many runs an update
    lines: list[str] = []
    task = LearnOn(PROCESSES, graph, model, settings, 1000, 0)
    with pytest.raises(StoppedError):
        task.run(workspace, Watch(lambda: len(lines) == 3, lines.append))
    counts = [int(line.partition(" evaluations, 0 updates, best ")[0]) for line in lines]
    assert len(counts) == 3
    assert counts == sorted(set(counts))
