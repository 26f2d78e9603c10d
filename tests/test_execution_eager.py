"""What several devices compute of a step is what PyTorch computes of it, wherever its ops run."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placeto_capture import cost_model, executable_step
from placeto_execution import Executor
from placeto_graphs import ExecutableStep, PlacementProblem, parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import TrainingStep, library_step, training_step

NUM_PLACEMENTS = 3
ADAM = partial(torch.optim.Adam, foreach=False)
NMT_SIZES = {"steps": 3, "batch_size": 4, "units": 8, "vocabulary_size": 20}


def gpt2() -> TrainingStep:
    pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 30}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    inputs = {"batch_size": 2, "sequence_length": 6}
    return library_step("transformers:gpt2", device="cpu", seed=3, **sizes, **drop, **inputs)


STEPS: dict[str, Callable[[], TrainingStep]] = {
    "nmt-2": partial(training_step, "nmt-2", device="cpu", **NMT_SIZES),
    "gpt2": gpt2,
}


class EagerTraining:
    """Steps of a model as PyTorch runs them."""

    def __init__(self, step: TrainingStep) -> None:
        self.model = step.model
        self._step = step
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # masks would be others
        self._optimizer = ADAM(self.model.parameters())

    def train(self) -> dict[str, torch.Tensor]:
        """Train for a step; return loss and gradients, and all values after it."""
        self._optimizer.zero_grad()
        inputs = self._step.example_inputs
        by_name = isinstance(inputs, Mapping)
        outputs: Any = self.model(**inputs) if by_name else self.model(*inputs)
        loss = outputs if isinstance(outputs, torch.Tensor) else outputs["loss"]
        loss.backward()
        self._optimizer.step()
        gradients = {
            f"{name}.grad": weight.grad
            for name, weight in self.model.named_parameters()
            if weight.grad is not None
        }
        return {"loss": loss.detach(), **gradients, **self.model.state_dict(), **self.state()}

    def names_of_gradients(self) -> list[str]:
        """Return the names of the gradients that `train` returns."""
        weights = self.model.named_parameters()
        return [f"{name}.grad" for name, weight in weights if weight.grad is not None]

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of what the optimizer keeps, by name."""
        return {
            f"{name}.{key}": value.clone()
            for name, weight in self.model.named_parameters()
            for key, value in self._optimizer.state[weight].items()
        }


def problem_of(step: ExecutableStep, num_devices: int) -> PlacementProblem:
    cluster = parse_cluster(f"{num_devices}xcpu")
    return PlacementProblem(
        graph=step.graph,
        cluster=cluster,
        compute_time=np.stack([cost_model(step.graph, "cpu")] * num_devices, axis=1),
    )


def executor_of(step: ExecutableStep, num_devices: int) -> Executor:
    names = [f"cpu:{number}" for number in range(num_devices)]
    return Executor(problem_of(step, num_devices), step, names)


def check_placements(step: TrainingStep, num_placements: Mapping[int, int]) -> None:
    """Check as many random placements as there are to be on each number of devices."""
    training = EagerTraining(step)
    training.train()
    prepared = executable_step(
        step.model,
        step.example_inputs,
        loss_fn=step.loss_fn,
        optimizer=ADAM,
        target="cpu",
        values=training.state(),
        results=["loss", *training.names_of_gradients()],
    )
    expected = training.train()
    for num_devices, count in num_placements.items():
        with executor_of(prepared, num_devices) as executor:
            for seed in range(count):
                generator = np.random.default_rng(seed)
                placement = generator.integers(0, num_devices, executor.problem.num_groups)
                found = executor.execute(placement.astype(np.int32)).results()
                for key, value in expected.items():
                    torch.testing.assert_close(found[key], value, msg=partial(_named, key))


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("name", STEPS)
def test_random_placements_compute_what_pytorch_computes(name: str) -> None:
    check_placements(STEPS[name](), {1: 1, 2: NUM_PLACEMENTS, 4: NUM_PLACEMENTS})


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("name", STEPS)
def test_memory_is_given_back_as_the_simulator_says(name: str) -> None:
    """On one device no time matters: it runs ops in one order, whatever they take."""
    step = STEPS[name]()
    prepared = executable_step(
        step.model,
        step.example_inputs,
        loss_fn=step.loss_fn,
        target="cpu",
    )
    with executor_of(prepared, 1) as executor:
        placement = np.zeros((1, executor.problem.num_groups), np.int32)
        found = executor.evaluate(placement).peak_memory
    simulated = Simulator(executor.problem, num_threads=1).evaluate(placement).peak_memory
    np.testing.assert_allclose(found, simulated, rtol=0.05)


def _named(name: str, message: str) -> str:
    return f"{name}: {message}"
