"""Published results: steps of the paper and of an RTX 3090, and what one K80 has no memory for.

The first are what efficiencies of old devices were fitted to (docs/costs.md). The nets of the
others were not fitted: lab/costs/published.py has all of timm's, and their source.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from placeto import capture_step, load_model_graph
from placeto.placing.placers import expert_scopes
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_baselines import ExpertPlacer, LocalSearch, SingleDevice
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS, OpGraph, parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import MODELS, library_step


def step_seconds(graph: OpGraph, kind: str) -> float:
    seconds = cost_model(graph, kind)
    return float(seconds.sum() + np.count_nonzero(seconds) * DEVICE_KINDS[kind].op_overhead)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model", "published"),
    [
        ("k80", "inception-v3", 1.56),
        ("k80", "nasnet", 1.28),
        ("cpu", "inception-v3", 12.5),
        ("cpu", "nasnet", 37.5),
    ],
)
def test_a_step_on_one_device_takes_about_as_long_as_published(
    kind: str, model: str, published: float
) -> None:
    assert step_seconds(load_model_graph(model), kind) == pytest.approx(published, rel=0.02)


REGNETY_032 = {"hidden_sizes": [72, 216, 576, 1512], "depths": [2, 5, 13, 1], "groups_width": 24}


@pytest.mark.parametrize(
    ("model", "sizes", "batch", "images_per_second"),
    [
        ("regnet", REGNETY_032, 384, 696.58),  # grouped convolutions
        pytest.param("convnext", {}, 256, 819.24, marks=pytest.mark.slow),  # depthwise ones
        pytest.param("mobilenet_v2", {}, 512, 2313.1, marks=pytest.mark.slow),
    ],
)
def test_training_in_half_precision_is_as_fast_as_published(
    model: str, sizes: dict[str, Any], batch: int, images_per_second: float
) -> None:
    step = library_step(f"transformers:{model}", batch_size=batch, **sizes)
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    graph = capture_step(step._replace(optimizer=make), autocast=torch.float16)
    published = batch / images_per_second
    assert step_seconds(graph, "rtx3090") == pytest.approx(published, rel=0.3)


@pytest.mark.slow
def test_translation_on_one_gpu_or_by_an_expert_runs_out_of_memory() -> None:
    model = "nmt-2"
    source = Source(model, load_model_graph(model), rules=MODELS[model].colocation_rules)
    problem = make_problem(source, parse_cluster("1xcpu+2xk80"))
    expert = ExpertPlacer(expert_scopes(problem.graph.scopes))
    placers = SingleDevice(), expert, LocalSearch(budget=300)
    placed = (placer.place(problem, Simulator(problem)) for placer in placers)
    assert [result.fits(problem.cluster) for result in placed] == [False, False, True]
