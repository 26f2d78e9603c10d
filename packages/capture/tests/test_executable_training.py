"""Training on several devices follows training in eager PyTorch, batch after batch."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from captured_models import Net
from placed_runs import begin_devices, random_devices, results_of, send
from placeto_capture import CaptureError, ExecutableTraining, executable_training
from placeto_graphs import OpGraph

BATCH = (6, 4)
SGD = partial(torch.optim.SGD, lr=0.1)


def in_groups(weights: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Return Adam with a learning rate of matrices."""
    parameters = list(weights)
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in parameters if weight.dim() == 2], "lr": 0.1},
        {"params": [weight for weight in parameters if weight.dim() != 2]},
    ]
    return torch.optim.Adam(groups, lr=0.03)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam in groups": in_groups,
    "Adam": torch.optim.Adam,
    "AdamW with all moments": partial(torch.optim.AdamW, lr=0.02, amsgrad=True),
    "NAdam": partial(torch.optim.NAdam, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.3, lr_decay=0.1),
    "Adamax": torch.optim.Adamax,
    "Muon": partial(torch.optim.Muon, lr=0.05),
    "RMSprop": partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    "Rprop": partial(torch.optim.Rprop, lr=0.01),
    "SGD": SGD,
    "SGD with dampening": partial(SGD, momentum=0.9, dampening=0.5),
    "SGD with Nesterov's momentum": partial(SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
}


def model(*, has_vectors: bool = True) -> nn.Module:
    """Return what normalises a batch, which changes buffers, and uses and ties weights twice."""

    def forward(net: Any, inputs: torch.Tensor) -> Any:
        hidden = net.norm(torch.tanh(net.first(net.first(inputs))))
        narrow = net.last(hidden)
        return (net.tied(narrow) - net.untied(narrow.sin())).square().mean()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        sizes = {"first": (4, 4), "last": (4, 3), "tied": (3, 4), "untied": (3, 4)}
        layers = {name: nn.Linear(*size, bias=has_vectors) for name, size in sizes.items()}
        layers["untied"].weight = layers["tied"].weight
        return Net(forward, **layers, norm=nn.BatchNorm1d(4, affine=has_vectors))


def batches(count: int) -> torch.Tensor:
    return torch.randn(count, *BATCH, generator=torch.Generator().manual_seed(5))


def train_on(step: ExecutableTraining, batch: object, op_device: np.ndarray) -> float:
    step.load(batch)
    devices = begin_devices(step, op_device, 2)
    with devices[0].entered():
        for op in range(step.graph.num_ops):
            devices[op_device[op]].run(op)
            for tensor in step.graph.tensors_of_op[op].tolist():
                for _ in send(step.graph, op_device, devices, tensor):
                    pass
    return step.finish(results_of(step, devices))


def on_one_device(graph: OpGraph) -> np.ndarray:
    return np.zeros(graph.num_ops, np.int32)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_many_steps_follow_eager_ones(name: str) -> None:
    eager, factory = model(has_vectors=name != "Muon"), OPTIMIZERS[name]
    step = executable_training(eager, batches(1)[0], optimizer=factory, target="cpu")
    optimizer = factory(eager.parameters())
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(scheduled, lambda epoch: 0.9**epoch)
        for scheduled in (optimizer, step.optimizer)
    ]
    for index, batch in enumerate(batches(40)):
        optimizer.zero_grad()
        loss = eager(batch)
        loss.backward()
        optimizer.step()
        # Weights move to wherever the next run wants them.
        devices = random_devices(step.graph, 2, index // 10)
        assert train_on(step, batch, devices) == pytest.approx(loss.item(), rel=1e-3, abs=1e-6)
        for schedule in schedules:
            schedule.step()
    state = step.state()
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-2, atol=1e-4)
    for weight, parameter in eager.named_parameters():
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(state[f"{weight}.{key}"], value, rtol=1e-2, atol=1e-4)


def test_masks_are_others_in_each_step_and_the_same_for_a_seed() -> None:
    dropout = nn.Sequential(nn.Linear(4, 64), nn.Dropout(), nn.Linear(64, 1))

    def losses(seed: int) -> list[float]:
        step = executable_training(dropout, torch.ones(BATCH), optimizer=SGD, seed=seed)
        for group in step.optimizer.param_groups:
            group["lr"] = 0.0  # nothing changes but the masks
        return [train_on(step, torch.ones(BATCH), on_one_device(step.graph)) for _ in range(4)]

    assert len(set(losses(1))) == 4
    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_the_state_can_be_kept_and_put_back() -> None:
    batch = batches(1)[0]
    step, resumed = (executable_training(model(), batch, target="cpu") for _ in range(2))
    everything = on_one_device(step.graph)
    for _ in range(3):
        train_on(step, batch, everything)
    state = step.state()
    resumed.load_state(state)
    for _ in range(3):  # the second loss is of the weights that the first update gave
        assert train_on(resumed, batch, everything) == train_on(step, batch, everything)
    assert not torch.equal(step.state()["last.weight"], state["last.weight"])


def test_after_a_step_that_failed_the_weights_are_not_trusted() -> None:
    batch = batches(1)[0]
    step = executable_training(model(), batch, target="cpu")
    state = step.state()
    step.load(batch)
    step.feed()  # and nothing runs
    with pytest.raises(CaptureError, match=r"^weights: expected those that a whole step has left"):
        step.load(batch)
    with pytest.raises(CaptureError, match=r"^weights: expected those that a whole step has left"):
        step.state()
    step.load_state(state)
    train_on(step, batch, on_one_device(step.graph))


def test_bad_batches_are_said_in_one_line() -> None:
    batch = batches(1)[0]
    step = executable_training(model(), batch, target="cpu")
    with pytest.raises(CaptureError, match=r"^batch: expected one to be loaded before each run"):
        step.feed()
    for wrong, line in (
        (batch[1:], r"input\.0: expected float32\(6, 4\) as in.*, got float32\(5, 4\); a Data"),
        (batch.double(), r"input\.0: expected float32.*got float64\(6, 4\)$"),
        ((batch, batch), r"batch: expected input\.0, got input\.0, input\.1$"),
    ):
        with pytest.raises(CaptureError, match=f"^{line}"):
            step.load(wrong)
    state = step.state()
    for bad_state, line in (
        ({"gain": batch}, "state: expected names of this step, got 'gain'$"),
        ({}, "state: expected a tensor for 'first.weight', got"),
        ({**state, "last.bias": batch[0, :1]}, r"last\.bias: expected shape \(3,\), got \(1,\)$"),
    ):
        with pytest.raises(CaptureError, match=f"^{line}"):
            step.load_state(bad_state)


class Clipping(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        """Update all weights, with gradients whose common norm is at most one."""
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


class Counting(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        """Update weights, and keep their number of updates as no tensor."""
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["count"] = self.state[weight].get("count", 0) + 1
        return super().step(closure)


def test_optimizers_that_cannot_run_by_weight_are_refused() -> None:
    eager, batch = model(), batches(1)[0]
    for factory, message in (
        (lambda _: SGD(eager.parameters()), "a function that makes one for the weights"),
        (Clipping, "one that updates each weight by itself, got Clipping"),
    ):
        with pytest.raises(CaptureError, match=rf"^optimizer: expected {message}"):
            executable_training(eager, batch, optimizer=factory)
    step = executable_training(eager, batch, optimizer=Counting, target="cpu")
    with pytest.raises(CaptureError, match=r"^optimizer: expected .* tensors .* keeps count = 1$"):
        train_on(step, batch, on_one_device(step.graph))
