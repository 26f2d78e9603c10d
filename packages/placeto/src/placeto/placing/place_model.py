"""From a model to a placement of its ops, in one call."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from placeto.errors import InputError
from placeto.exporting.device_map import DeviceMap, device_map, with_all_names
from placeto.exporting.formats import ACCELERATE, FORMATS, exported_map
from placeto.exporting.forms import ModuleScopes, check_one_copy
from placeto.exporting.layers import LayerSplit, pipeline_stages
from placeto.outputs import check_file, write_text
from placeto.placing.copies import place_source
from placeto.placing.cost_texts import overflow_text
from placeto.placing.evaluators import STEP, EvaluatorSpec, evaluator_spec
from placeto.placing.explanation import GroupExplanation, explain_group, group_number
from placeto.placing.place_problem import PlaceSettings
from placeto.problems.making import problem_of
from placeto.problems.models import check_optimizer
from placeto.problems.options import TRAINING, ClusterName, ProblemOptions, read_cluster
from placeto.problems.sources import Batches, Source, in_copies
from placeto.progress import PlainProgress
from placeto_capture import StepSpec, Updates, capture_step, make_executable
from placeto_graphs import (
    Copies,
    Evaluator,
    OpGraph,
    PlacementProblem,
    PlacementResult,
    Placer,
    TokenCache,
    copies_of,
)
from placeto_graphs.errors import not_among
from placeto_simulator import Simulator, Timeline

if TYPE_CHECKING:  # loaded by the method that needs it
    from placeto_execution.measuring import MeasuredSteps


@dataclass(frozen=True, eq=False, repr=False)
class ModelPlacement:
    """Placement of the ops of a step of a model, as `place` found it.

    Attributes
    ----------
    step : `placeto_capture.StepSpec`
        The model with its example inputs, and how its step was captured.
    problem : `placeto_graphs.PlacementProblem`
        The graph of the step, the devices, and the G groups that were placed; of copies, if there
        are several.
    result : `placeto_graphs.PlacementResult`
        The placement, its costs, and the curve of the search.
    lower_bound : float
        Lower bound of the runtime of all placements of these groups, in seconds; 0 if none is known
        for the evaluator. If copies were chosen, it is that of one copy.
    evaluator : `placeto.placing.evaluators.EvaluatorSpec`
        Evaluator of placements, here and in other forms.
    """

    step: StepSpec
    problem: PlacementProblem
    result: PlacementResult
    lower_bound: float
    evaluator: EvaluatorSpec = STEP

    def __repr__(self) -> str:
        devices = ", ".join(self.problem.cluster.device_names)
        name = type(self.step.model).__name__
        overflow = overflow_text(self.problem.cluster, self.result.peak_memory)
        return f"ModelPlacement({name} on {devices}: {self.runtime:.3g} s{overflow})"

    @property
    def placement(self) -> NDArray[np.int32]:
        """int32[G], the device of each group."""
        return self.result.placement

    @property
    def runtime(self) -> float:
        """Simulated seconds of a step; with another evaluator, the cost that it returns."""
        return self.result.runtime

    @property
    def peak_memory(self) -> dict[str, int]:
        """Simulated peak memory of each device, in bytes."""
        peaks = self.result.peak_memory.tolist()
        return dict(zip(self.problem.cluster.device_names, peaks, strict=True))

    @property
    def fits(self) -> bool:
        """True if no device holds more than its memory."""
        return self.result.fits(self.problem.cluster)

    @property
    def copies(self) -> Copies | None:
        """Copies of the model, of which each op has a number, as in ``"layer#1"``; None if one."""
        return copies_of(self.problem.graph)

    @property
    def devices_of_modules(self) -> dict[str, tuple[str, ...]]:
        """The devices that the forward pass of each module runs on; ``""`` is the whole model."""
        names = self.problem.cluster.device_names
        devices = ModuleScopes(self.problem.graph).forward_values(self._op_devices.tolist())
        return {
            module: tuple(names[device] for device in sorted(devices[module]))
            for module, _ in self.step.model.named_modules()
            if module in devices
        }

    @property
    def devices_of_parameters(self) -> dict[str, str]:
        """The device that holds each parameter; tied ones are on one device.

        Parameters of copies have their numbers, as in ``"layer.weight#1"``.
        """
        names = self.problem.cluster.device_names
        ops = {name: op for op, name in enumerate(self.problem.graph.op_names)}
        named = list(self.step.model.named_parameters(remove_duplicate=False))
        copies = [f"#{copy}" for copy in range(self.copies.count)] if self.copies else [""]
        # The graph names tied parameters once; they share a storage.
        name_of_storage = {
            value.untyped_storage()._cdata: name
            for name, value in named
            if f"{name}{copies[0]}" in ops
        }
        devices = self._op_devices
        return {
            f"{name}{copy}": names[
                devices[ops[f"{name_of_storage[value.untyped_storage()._cdata]}{copy}"]]
            ]
            for copy in copies
            for name, value in named
        }

    def timeline(self) -> Timeline:
        """Simulate a step, and return its timeline."""
        return Simulator(self.problem, num_threads=1).timeline(self.placement)

    def explain(self, group: str) -> GroupExplanation:
        """Return the cost of a group of ``problem`` on each device, and its waits.

        Raises
        ------
        InputError
            If there is no such group.
        """
        group_index = group_number(self.problem, group)
        return explain_group(Simulator(self.problem), self.placement, self.timeline(), group_index)

    def device_map(self) -> DeviceMap:
        """Return the devices of whole modules, for ``dispatch_model`` of accelerate.

        Raises
        ------
        InputError
            If the model has no modules inside, or there are several copies.
        """
        by_module = device_map(self.problem, self.placement, self.evaluator)
        modules = with_all_names(by_module.modules, by_module.main_device, self.step.model)
        return replace(by_module, modules=modules)

    def pipeline_stages(self) -> LayerSplit:
        """Return the stages of the model for `torch.distributed.pipelining`.

        Raises
        ------
        InputError
            If two stages would read one weight, or the loss reads what an earlier one than the last
            makes, or there are several copies.
        """
        check_one_copy(self.problem.graph, "a pipeline", "--to torch")
        return pipeline_stages(self.problem, self.placement, self.evaluator)

    def export(self, path: str | Path, to: str, *, force: bool = False) -> None:
        """Write the placement as ``placeto export`` does.

        Parameters
        ----------
        path
            File to write.
        to
            Form: ``"accelerate"``, ``"torch"``, ``"vllm"``, ``"deepspeed"``,
            ``"llama.cpp"``, ``"dot"`` or ``"graphml"``.
        force
            True to overwrite an existing file.

        Raises
        ------
        InputError
            If there is no such form, or it cannot express the placement.
        """
        if to not in FORMATS:
            raise InputError(f"to: {not_among(to, FORMATS)}")
        form, file = FORMATS[to], Path(path)
        check_file(file, force=force, suffixes=form.suffixes)
        if to == ACCELERATE:
            exported = exported_map(self.device_map())
        else:
            exported = form.export(self.problem, self.placement, self.evaluator)
        write_text(file, exported.content)

    def run(self, devices: Sequence[str], *, steps: int = 20, threads: int = 1) -> "MeasuredSteps":
        """Run steps as placed on devices of this machine, and measure them.

        One more step runs before them, which is not measured. The model stays as it is.
        `placeto.place_module` trains one.

        Parameters
        ----------
        devices
            Devices, as many as the cluster has, such as ``["cuda:0", "cpu:0"]``.
        steps
            Number of measured steps.
        threads
            Number of threads of an op on a CPU.

        Raises
        ------
        InputError
            If the number of devices differs, or there are several copies.
        ExecutionError
            If there is no such device, an op fails, or the process of a device ends.
        """
        from placeto_execution import Executor  # noqa: PLC0415
        from placeto_execution.measuring import MeasuredSteps  # noqa: PLC0415

        check_one_copy(self.problem.graph, "a run", "--to torch")
        if len(devices) != self.problem.num_devices:
            raise InputError(
                f"devices: expected {self.problem.num_devices}, one for each of "
                f"{', '.join(self.problem.cluster.device_names)}, got {len(devices)}"
            )
        step = make_executable(self.step, results=[], threads_per_device=threads)
        simulated = self.timeline()
        with Executor(self.problem, step, devices, schedule=lambda _: simulated) as executor:
            return MeasuredSteps(simulated, executor.measure(self.placement, steps))

    @property
    def _op_devices(self) -> NDArray[np.int32]:
        return self.problem.expand(self.placement)


def place(
    model: nn.Module,
    example_inputs: Any,
    loss_fn: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] | None = None,
    *,
    cluster: ClusterName,
    mode: str = "training",
    mask_fraction: float | None = None,
    updates: Updates = "after-backward",
    parameter_bytes: Mapping[str, int] | None = None,
    experts_per_token: int = 1,
    cache: TokenCache | None = None,
    copies: str | int | Sequence[int] = 1,
    shard: bool = False,
    seconds: float | None = None,
    max_evaluations: int | None = None,
    seed: int = 0,
    quiet: bool = False,
    autocast: torch.dtype | None = None,
    placer: str | Placer | None = None,
    evaluator: str | Callable[[PlacementProblem], Evaluator] = "latency",
) -> ModelPlacement:
    """Capture a step of a model, and search for a fast placement of its ops.

    Parameters
    ----------
    model
        Model on any device, also the meta device; it stays as it is.
    example_inputs, loss_fn, optimizer, mode, mask_fraction, updates
        As of `placeto_capture.capture`; an optimizer of the model's own weights will do, too.
    parameter_bytes, experts_per_token, cache
        As of `placeto_capture.capture`.
    cluster
        Devices: a spec such as ``"4xv100"`` or ``"1xcpu+2xk80"``, a TOML file, or a
        `placeto_graphs.Cluster`.
    copies
        Copies of the model: ``"auto"`` for those that ``placeto place`` tries besides one; a
        number of copies in equal parts; or the samples of each, such as ``[24, 12]``. They divide
        the first dimension of those example inputs that are as long there as the first one, and
        the loss takes outputs of any number of samples.
    shard
        True for copies that divide weights, gradients and optimizer state (ZeRO-3).
    seconds
        Seconds of the search. Ctrl-C ends it, and keeps the best so far. With a ``placer``, CPU
        seconds after which it is stopped; the best placement that it evaluated is the result. By
        default a search takes 10 seconds, and a placer as long as it likes.
    max_evaluations
        Maximum number of evaluations of the search or placer. With this alone a seed gives one
        result, the one of the command ``placeto place``.
    seed
        Seed of every random choice.
    quiet
        True to show no progress.
    autocast
        As of `placeto_capture.capture`; by default the autocast around this call.
    placer
        Placer instead of the search: a `placeto_graphs.Placer`, a name of the command such as
        ``"heft"``, or ``"package.module:Class"``.
    evaluator
        Objective: ``"latency"``, the simulated time of a step; ``"throughput"``, the time per
        sample of a pipeline; a class that makes a `placeto_graphs.Evaluator` of the problem; or
        ``"package.module:Class"``.

    Warns
    -----
    UserWarning
        If no placement was found that fits the memory of the devices.

    Raises
    ------
    InputError
        If the optimizer is not one, or there is no such placer or evaluator, or the copies do not
        divide the batch.
    GraphError
        If there is no such cluster.
    CaptureError
        If the step cannot be captured.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    >>> placed = place(model, torch.ones(16, 64), cluster="2xv100", seconds=0.1, quiet=True)
    >>> placed.fits, placed.runtime >= placed.lower_bound
    (True, True)
    >>> sorted(placed.devices_of_parameters)
    ['0.bias', '0.weight', '2.bias', '2.weight']

    Two copies, each with its part of 16 samples:

    >>> placed = place(
    ...     model, torch.ones(16, 64), cluster="2xv100", copies=[3, 1], seconds=0.1, quiet=True
    ... )
    >>> placed.copies.parts, placed.devices_of_parameters["0.weight#1"]
    ((3, 1), 'v100:1')
    """
    priced_by = evaluator_spec(evaluator)
    options = ProblemOptions(read_cluster(cluster), copies=copies, shard=shard)
    name = type(model).__name__
    check_optimizer(name, model, optimizer)
    step = StepSpec(
        model,
        example_inputs,
        loss_fn,
        optimizer,
        mode,
        updates,
        target=options.target,
        mask_fraction=mask_fraction,
        autocast=_autocast_of_caller() if autocast is None else autocast,
        parameter_bytes=parameter_bytes,
        experts_per_token=experts_per_token,
        cache=cache,
    )
    source = _source(name, step, options)
    with torch.autocast("cpu", enabled=False):  # a placer may compute, too
        settings = PlaceSettings(
            seconds=seconds,
            max_evaluations=max_evaluations,
            seed=seed,
            placer=placer,
            evaluator=priced_by,
        )
        problem = problem_of(source, options.before_copies)
        progress = PlainProgress(None if quiet else sys.stderr)
        placed_problem = place_source(source, problem, options, None, settings, progress)
    if placed_problem.no_copies:
        progress.say(placed_problem.no_copies)
    bound = placed_problem.bound or priced_by.lower_bound(placed_problem.problem)
    placed = ModelPlacement(step, placed_problem.problem, placed_problem.result, bound, priced_by)
    if not placed.fits:
        warnings.warn(f"no placement found fits the memory: {placed!r}", stacklevel=2)
    return placed


def _source(name: str, step: StepSpec, options: ProblemOptions) -> Source:
    """Return the source of a step, or of copies of it with parts of its batch."""
    inputs = step.example_inputs
    tree = dict(inputs) if isinstance(inputs, Mapping) else inputs
    lengths = [len(leaf) for leaf in pytree.tree_leaves(tree) if getattr(leaf, "ndim", 0)]

    def size() -> int:
        if not lengths:
            raise InputError(
                "copies: expected example inputs with a dimension of samples, got none"
            )
        return lengths[0]

    def captured(samples: int) -> OpGraph:
        def first_samples(leaf: torch.Tensor) -> torch.Tensor:
            return leaf[:samples] if leaf.ndim and len(leaf) == size() else leaf

        inputs_of_copy = pytree.tree_map_only(torch.Tensor, first_samples, tree)
        # A search runs without an autocast, which is that of the step.
        autocast = step.autocast or torch.float32
        return capture_step(replace(step, example_inputs=inputs_of_copy, autocast=autocast))

    batches, is_training = Batches(size, captured), step.mode == TRAINING
    if len(options.samples) > 1:
        if not is_training:
            raise InputError(f"copies: expected 1 in mode {step.mode!r}, got {options.copies}")
        counts = batches.divided(options.samples, name)
        return in_copies(
            lambda count: Source(name, batches.graph(count), is_micro_batch=True), counts
        )
    return Source(
        name, capture_step(step), is_micro_batch=True, batches=batches if is_training else None
    )


def _autocast_of_caller() -> torch.dtype | None:
    """Return the dtype of the autocast that is on, so that the step can run elsewhere, too."""
    on = [device for device in ("cuda", "cpu") if torch.is_autocast_enabled(device)]
    return torch.get_autocast_dtype(on[0]) if on else None
