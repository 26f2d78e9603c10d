"""Small transformers: what is captured, and what device processes compute, is what PyTorch runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from capture_checks import check_parameter_bytes, check_replay, compared
from captured_models import Case
from eager_step import plain_kernels
from placed_runs import check_placements, prepared
from placeto_capture import cost_model
from placeto_execution import Executor
from placeto_graphs import PlacementProblem, parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import library_step, training_step
from small_transformers import SMALL

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the library
NMT_SIZES = {"steps": 3, "batch_size": 4, "units": 8, "vocabulary_size": 20}


class ByPosition(nn.Module):
    """Calls a model with keyword arguments, in the order of their names."""

    def __init__(self, model: nn.Module, keywords: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = list(keywords)

    def forward(self, *values: Any) -> Any:
        return self.model(**dict(zip(self.names, values, strict=True)))


def small(name: str) -> Case:
    lengths = {} if name in {"vit", "convnext"} else {"sequence_length": 6}
    sizes = {"batch_size": 2, "device": "cpu", "seed": 3, **SMALL[name], **lengths}
    step = library_step(f"transformers:{name}", **sizes)
    keywords = step.example_inputs
    return Case(ByPosition(step.model, keywords), tuple(keywords.values()))


@pytest.mark.parametrize("name", sorted(SMALL.keys() - {"bart", "electra"}))  # as t5 and bert
def test_a_replayed_step_of_a_small_transformer(name: str) -> None:
    step = compared(small(name))
    check_replay(step, num_orders=1)
    check_parameter_bytes(step)
    if name in {"t5", "mixtral"}:
        check_placements(step, num_placements=4)


@pytest.mark.parametrize("name", ["nmt-2", "gpt2"])
def test_processes_compute_what_pytorch_computes_and_hold_what_the_simulator_says(
    name: str,
) -> None:
    if name == "gpt2":
        case = small(name)
    else:
        step = training_step(name, device="cpu", **NMT_SIZES)
        case = Case(step.model, tuple(step.example_inputs))
    expected = compared(case)
    ready = prepared(expected)
    for num_devices, seed in ((1, 0), (2, 1), (4, 2)):
        cluster = parse_cluster(f"{num_devices}xcpu")
        times = np.stack([cost_model(ready.graph, "cpu")] * num_devices, axis=1)
        problem = PlacementProblem(graph=ready.graph, cluster=cluster, compute_time=times)
        placement = np.random.default_rng(seed).integers(
            0, num_devices, problem.num_groups, np.int32
        )
        names = [f"cpu:{index}" for index in range(num_devices)]
        with plain_kernels(), Executor(problem, ready, names) as executor:
            computed = executor.execute(placement).results()
            if num_devices == 1:  # runs ops in one order, whatever they take
                peaks = executor.evaluate(placement[None]).peak_memory
                simulated = Simulator(problem, num_threads=1).evaluate(placement[None]).peak_memory
                np.testing.assert_allclose(peaks, simulated, rtol=0.05)
        for key, value in expected.after.items():
            torch.testing.assert_close(computed[key], value, msg=f"{key} on {num_devices}")


def test_on_the_meta_device_weights_take_no_memory() -> None:
    step = library_step("transformers:llama", batch_size=1, sequence_length=4)
    weights = list(step.model.parameters())
    assert sum(weight.numel() for weight in weights) == step.model.num_parameters() > 6e9  # type: ignore[operator]
    assert all(weight.is_meta for weight in weights)
    assert not step.model.config.use_cache  # type: ignore[union-attr]


def test_the_seed_fixes_weights_and_inputs_and_nothing_else() -> None:
    rng_state = torch.get_rng_state()
    first, again = small("bert"), small("bert")
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert all(map(torch.equal, first.inputs, again.inputs))
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))
