"""``placeto export --to torch``: the stages of the file train as the whole model does."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from command_runs import blocks, succeed, succeed_json
from exported_models import Chain, features, problem_of_ops, saved
from pipeline_training import MODELS, model_and_words, run_page, train
from placeto.exporting.formats import FORMATS
from placeto.exporting.layers import ModelChain
from placeto.placing.evaluators import STEP
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_capture import capture
from placeto_graphs import (
    PlacementProblem,
    colocate,
    colocate_by_id,
    micro_batched_problem,
    parse_cluster,
    scheduled,
)
from placeto_simulator import Simulator


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


@pytest.mark.slow
def test_the_lines_of_the_page_train(tmp_path: Path) -> None:
    problem, placement = in_stages("skips", 3)
    file = tmp_path / "stages.py"
    file.write_text(FORMATS["torch"].export(problem, placement, STEP).content)
    (block,) = blocks(Path("docs/training-large.md"), "py")
    run_page(block, file, 3)


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


def test_a_split_is_priced_with_the_waits_of_its_own_stages(tmp_path: Path) -> None:
    """Blocks in turn on two devices are no stages; what is exported has others."""
    whole = problem_of_ops(Chain(), features(8), "2xv100")
    problem = micro_batched_problem(whole, 4)
    device_of = {"blocks.0": 0, "blocks.1": 1, "blocks.2": 0, "last": 1}
    devices = [device_of.get(scope[:8].rstrip("."), 0) for scope in problem.graph.scopes]
    placement = problem.placement_of_ops(np.array(devices, np.int32))
    arguments = ["export", *saved(tmp_path, problem, placement), "--to", "torch"]
    report = succeed_json(*arguments, "--schedule=1f1b", "-o", tmp_path / "stages.py")
    exported = FORMATS["torch"].export(problem, placement, replace(STEP, schedule="1f1b"))
    assert exported.op_devices is not None
    stages = problem.placement_of_ops(exported.op_devices)

    def runtime(of_waits: NDArray[np.int32]) -> float:
        """Simulate the exported stages with the waits of a placement."""
        simulator = Simulator(scheduled(problem, "1f1b", of_waits), num_threads=1)
        return float(simulator.evaluate(stages[None]).runtime[0])

    assert report["runtime"] == pytest.approx(runtime(stages), rel=1e-9)
    assert report["runtime"] != pytest.approx(runtime(placement), rel=1e-3)
