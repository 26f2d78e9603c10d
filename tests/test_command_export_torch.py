"""``placeto export --to torch``: the stages of the file train as the whole model does."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exported_models import saved
from numpy.typing import NDArray
from pipeline_training import MODELS, model_and_words, train

from command_runs import succeed
from placeto.exporting.layers import ModelChain
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_capture import capture
from placeto_graphs import PlacementProblem, colocate, colocate_by_id, parse_cluster


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "schedules"), [(3, ["1f1b", "gpipe"]), (4, ["1f1b"])])
def test_stages_train_as_the_whole_model_does(
    stages: int, schedules: list[str], tmp_path: Path
) -> None:
    """Two steps by each schedule, where stages read what is made two or three stages before."""
    files = {}
    for name in MODELS:
        if name == "llama" and importlib.util.find_spec("transformers") is None:
            continue
        problem, placement = in_stages(name, stages)
        folder = tmp_path / name
        folder.mkdir()
        files[name] = folder / "stages.py"
        paths = saved(folder, problem, placement)
        text = succeed("export", *paths, "--to", "torch", "-o", files[name])
        assert ": as placed\n" in text
    train(files, stages, schedules)


def in_stages(name: str, stages: int) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Return the problem of a model, and a placement of about as many layers on each device."""
    model, batch = model_and_words(name)
    graph = capture(model, *batch) if len(batch) == 1 else capture(model, batch)
    problem = make_problem(Source(name, graph), parse_cluster(f"{stages}xv100"))
    apart = colocate(graph, [colocate_by_id])
    problem = replace(problem, grouping=apart, hierarchy=None, rules=None)
    chain = ModelChain(problem)
    device_of_layer = np.arange(chain.num_layers) * stages // chain.num_layers
    return problem, problem.placement_of_ops(device_of_layer[chain.labels].astype(np.int32))
