"""A PyTorch module that is trained on several devices, each op where a placement puts it."""

import copy
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from placeto.errors import InputError
from placeto.placing.place_problem import PlaceSettings, place_problem
from placeto.problems.making import make_problem
from placeto.problems.options import ClusterName, read_cluster
from placeto.problems.sources import Source
from placeto.progress import PlainProgress
from placeto_capture import ExecutableTraining, executable_training
from placeto_execution import ExecutedStep, Executor
from placeto_graphs import PlacementProblem
from placeto_simulator import Simulator

CPU = "cpu:"


class PlacedModule:
    """A module whose training steps run as placed; `place_module` makes one.

    Parameters
    ----------
    training
        The step.
    problem, placement : `PlacementProblem`, int32[G]
        Problem, and the device of each group of its ops.
    devices
        Real devices of the problem's cluster.
    module
        Module, of which the weights and buffers have their names.

    Attributes
    ----------
    problem, placement
        As given.
    optimizer : torch.optim.Optimizer
        Optimizer to make a schedule of learning rates for; its weights stand for the module's.
    """

    def __init__(
        self,
        training: ExecutableTraining,
        problem: PlacementProblem,
        placement: NDArray[np.int32],
        devices: Sequence[str],
        module: nn.Module,
    ) -> None:
        self.problem = problem
        self.placement = placement
        self.optimizer = training.optimizer
        self._training = training
        self._module = module
        simulator = Simulator(problem, num_threads=1)
        self._executor = Executor(problem, training, devices, schedule=simulator.timeline)
        self._last_step: ExecutedStep | None = None  # has the weights, in its processes
        self._last_placement = placement

    def step(self, batch: Any) -> float:
        """Train for one step with a batch like the example, and return its loss.

        Raises
        ------
        CaptureError
            If the batch is not as large as the example, or an earlier step has failed.
        ExecutionError
            If an op fails, or the process of a device ends. The weights are lost then; steps are
            refused until `load_checkpoint` puts others in their place.
        """
        if not np.array_equal(self.placement, self._last_placement):
            self.close()
            self._last_placement = self.placement.copy()
        self._training.load(batch)
        self._last_step = None
        step = self._executor.execute(self.placement)
        loss = self._training.finish(step.results(["loss"]))
        self._last_step = step
        return loss

    def __call__(self, *inputs: Any) -> Any:
        """Return what the module returns for inputs of any size with the weights as they now are.

        It is evaluated as a whole in this process, without gradients and dropout; this trains
        nothing.
        """
        module = copy.deepcopy(self._module).eval()
        module.load_state_dict(self.state_dict())
        with torch.no_grad():
            return module(*inputs)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the weights and buffers, which the module can load."""
        return self._state(list(self._module.state_dict()))

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Return copies of weights, buffers, and of what the optimizer keeps for each weight."""
        return self._state(self._training.names_of_state)

    def load_checkpoint(self, checkpoint: dict[str, torch.Tensor]) -> None:
        """Resume from what `checkpoint` returned.

        Raises
        ------
        CaptureError
            If it is of another module.
        """
        self._training.load_state(checkpoint)
        self._last_step = None
        self._executor.close()  # the next processes begin with what this one has

    def close(self) -> None:
        """End the processes of the devices; the weights are kept, and the next step begins anew."""
        if self._last_step is not None:
            self.load_checkpoint(self.checkpoint())
        self._executor.close()

    def _state(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        if self._last_step is not None:
            return dict(self._last_step.results(names))
        state = self._training.state()
        return {name: state[name] for name in names}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def place_module(
    module: nn.Module,
    example_inputs: Any,
    loss_fn: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] | None = None,
    *,
    devices: Sequence[str],
    cluster: ClusterName | None = None,
    mask_fraction: float | None = None,
    seconds: float = 10.0,
    seed: int = 0,
    threads_per_device: int = 1,
    quiet: bool = False,
    autocast: torch.dtype | None = None,
) -> PlacedModule:
    """Search a placement for the ops of a training step, and return the placed module.

    Parameters
    ----------
    module
        Module to train, from the weights that it has; it stays as it is.
    example_inputs, loss_fn, optimizer
        As of `placeto_capture.capture`.
    devices
        Devices of this machine, such as ``["cpu:0", "cpu:1"]``. Each CPU is a process, forked from
        this one; this process runs all GPUs.
    cluster
        Description of the devices for the simulator: a spec, a cluster file or a `Cluster`, with
        as many devices. By default CPUs have transfers that take no time; the command ``placeto
        calibrate`` measures them. GPUs need a cluster.
    mask_fraction
        As of `placeto_capture.capture`.
    seconds
        Seconds of the search for a placement.
    seed
        Seed of that search, and of random ops.
    threads_per_device
        Number of threads of an op on a CPU.
    quiet
        True to show no progress.
    autocast
        As of `placeto_capture.capture`.

    Raises
    ------
    InputError
        If the cluster has another number of devices, or is missing for GPUs.
    CaptureError
        As of `placeto_capture.executable_training`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> example = torch.ones(4, 8)
    >>> with place_module(model, example, devices=["cpu:0", "cpu:1"], seconds=0.1) as placed:
    ...     losses = [placed.step(batch) for batch in torch.ones(20, 4, 8)]
    >>> losses[-1] < losses[0]
    True
    >>> model.load_state_dict(placed.state_dict())
    <All keys matched successfully>
    """
    only_cpus = all(device.startswith(CPU) for device in devices)
    if cluster is None and not only_cpus:
        raise InputError(
            f"cluster: expected one with the kinds of {', '.join(devices)}, such as 2xv100"
        )
    described = read_cluster(cluster or f"{len(devices)}xcpu")
    if described.num_devices != len(devices):
        raise InputError(
            f"cluster: expected {len(devices)} devices, as many as are real, "
            f"got {described.num_devices}"
        )
    training = executable_training(
        module,
        example_inputs,
        loss_fn=loss_fn,
        optimizer=optimizer,
        target="cpu" if only_cpus else "gpu",
        mask_fraction=mask_fraction,
        autocast=autocast,
        seed=seed,
        threads_per_device=threads_per_device,
    )
    name = type(module).__name__
    with torch.autocast("cpu", enabled=False):  # the policy computes, too
        placed = place_problem(
            make_problem(Source(name, training.graph), described),
            PlaceSettings(seconds=seconds, seed=seed),
            PlainProgress(None if quiet else sys.stderr),
        )
    placement = placed.result.placement
    return PlacedModule(training, placed.problem, placement, devices, module)
