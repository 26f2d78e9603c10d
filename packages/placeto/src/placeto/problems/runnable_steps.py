"""From a model that a user named to a step that runs op by op, and the problem of placing it."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from placeto.errors import InputError, reading
from placeto.problems.making import problem_of, read_cluster
from placeto.problems.options import ProblemOptions, SourceOptions
from placeto.problems.sources import (
    WHAT_CAN_RUN,
    Source,
    SourceModel,
    is_graph_file,
    source_model,
)
from placeto_capture import StepSpec, executable_step
from placeto_execution.devices import CPU, RealDevices
from placeto_graphs import ExecutableStep, PlacementProblem, load_problem


def runnable_source(text: str, choice: SourceOptions) -> SourceModel:
    """Return a model that a user named; what has no model is an `InputError`."""
    if is_graph_file(text):
        raise InputError(f"{text}: expected {WHAT_CAN_RUN}; other sources have no model to run")
    return source_model(text, choice)


def executable(step: StepSpec, threads_per_device: int) -> ExecutableStep:
    """Return a step, ready to run op by op; what it computes is thrown away."""
    return executable_step(**vars(step), results=[], threads_per_device=threads_per_device)


def step_on(model: SourceModel, devices: RealDevices) -> ExecutableStep:
    """Return the step of a model with the kernels of devices, ready to run."""
    step = StepSpec(**model.make(CPU)._asdict(), target=devices.target)
    return executable(step, devices.threads)


def runnable_problem(
    model: SourceModel,
    asked: ProblemOptions,
    devices: RealDevices,
    problem_file: Path | None = None,
    *,
    is_measured: bool = False,
) -> tuple[PlacementProblem, ExecutableStep]:
    """Return the problem of placing the step of a model, and the step, ready to run.

    On CPUs alone the cluster is by default one of as many. A problem file may know measured times.
    If they are about to be measured, ops take no time until then, so that devices may be of kinds
    that no cost model knows.
    """
    if asked.micro_batches != 1:
        raise InputError("--micro-batches: expected 1, as steps in micro-batches are not run")
    if problem_file is not None:
        with reading(problem_file):
            problem = load_problem(problem_file)
        cluster = problem.cluster
    else:
        if asked.cluster is None and not devices.are_cpus:
            raise InputError(
                f"--cluster: expected one that says what {', '.join(devices.names)} are"
            )
        spec = asked.cluster or f"{len(devices.names)}x{CPU}"
        asked, cluster = replace(asked, cluster=spec), read_cluster(spec, asked.link)
    if cluster.num_devices != len(devices.names):
        raise InputError(
            f"--devices: expected {cluster.num_devices}, one for each of "
            f"{', '.join(cluster.device_names)}, got {len(devices.names)}"
        )
    step = step_on(model, devices)
    if problem_file is None:
        graph = step.graph
        if is_measured:
            no_time = {device.kind: np.zeros(graph.num_ops) for device in cluster.devices}
            graph = replace(graph, measured_time=no_time)
        source = Source(model.name, graph, rules=model.rules, num_groups=model.num_groups)
        return problem_of(source, asked), step
    if replace(problem.graph, measured_time={}) != replace(step.graph, measured_time={}):
        raise InputError(
            f"{problem_file}: expected a problem of the graph of {model.name} with these sizes on "
            f"these devices, {step.graph!r}, got {problem.graph!r}"
        )
    return problem, step
