"""``placeto export --to torch``: the stages of the file train as the whole model does."""

import networkx as nx
import numpy as np
import pytest
import torch

from exported_models import features, problem_of_ops
from gpipe_pipelines import devices_without_overheads
from placeto.errors import InputError
from placeto.exporting.layers import pipeline_stages
from placeto.exporting.passing import PASSING, passed_on
from placeto_graphs import (
    PlacementProblem,
    from_networkx,
)
from placeto_simulator import Simulator


def test_what_is_read_two_stages_later_crosses_two_links_and_lives_between() -> None:
    """Each op takes a second, 4 GB take 4 s; the stage between has them until its backward op."""
    step = nx.DiGraph()
    for name, phase in (("a", 0), ("b", 0), ("c", 0), ("c'", 1), ("b'", 1)):
        step.add_node(name, phase=phase)
    step.add_edge("a", "c", bytes=4 * 10**9)
    for producer, consumer in (("b", "c"), ("c", "c'"), ("c'", "b'")):
        step.add_edge(producer, consumer, bytes=10)
    problem = PlacementProblem(
        graph=from_networkx(step),
        cluster=devices_without_overheads(3, 1e9),
        compute_time=np.ones((5, 3)),
    )
    stages = np.array([0, 1, 2, 2, 1])
    pipeline, stages_with_copies = passed_on(problem, stages)
    direct, passing = (
        Simulator(divided, num_threads=1).evaluate(
            divided.placement_of_ops(devices.astype(np.int32))[None]
        )
        for divided, devices in ((problem, stages), (pipeline, stages_with_copies))
    )
    assert direct.runtime[0] == pytest.approx(1 + 4 + 3)
    assert passing.runtime[0] == pytest.approx(1 + 4 + 4 + 3)
    assert direct.peak_memory[0, 1] < 100
    assert 4 * 10**9 <= passing.peak_memory[0, 1] <= 8 * 10**9 + 100
    (copy,) = [op for op, kind in enumerate(pipeline.graph.op_types) if kind == PASSING]
    (tensor,) = pipeline.graph.tensors_of_op[copy].tolist()
    readers = pipeline.graph.consumers_of_tensor[tensor].tolist()
    assert {pipeline.graph.op_names[op] for op in readers} == {"c", "b'"}
    alone, _ = passed_on(problem, np.zeros(5, np.int64))
    assert alone.graph == problem.graph


class Hidden(torch.nn.Module):
    """Layers that return what each of them makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, values: torch.Tensor) -> list[torch.Tensor]:
        results = [values]
        for layer in self.layers:
            results.append(layer(results[-1]))
        return results[1:]


def test_a_loss_of_an_earlier_stage_is_refused_by_name() -> None:
    """The loss is the mean of both outputs, as no other is named."""
    problem = problem_of_ops(Hidden(), features(4), "2xv100")
    devices = [int(scope in ("layers.1", "loss")) for scope in problem.graph.scopes]
    placement = problem.placement_of_ops(np.array(devices, np.int32))
    error = r"expected a loss of what the last stage makes, but it reads layers\.0.* of stage 0: "
    with pytest.raises(InputError, match=error):
        pipeline_stages(problem, placement)
