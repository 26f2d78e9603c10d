"""From a model that a user named to a step that runs op by op, and the problem of placing it."""

from dataclasses import replace
from pathlib import Path

from placeto.errors import InputError, reading
from placeto.problems.making import problem_of
from placeto.problems.models import executable
from placeto.problems.options import ProblemOptions, SourceOptions
from placeto.problems.sources import (
    WHAT_CAN_RUN,
    Source,
    SourceModel,
    Target,
    is_graph_file,
    source_model,
)
from placeto_execution.measuring.real_devices import CPU, RealDevices
from placeto_graphs import ExecutableStep, PlacementProblem, load_problem


def runnable_source(text: str, choice: SourceOptions) -> SourceModel:
    """Return a model that a user named; what has no model is an `InputError`."""
    if is_graph_file(text):
        raise InputError(f"{text}: expected {WHAT_CAN_RUN}; other sources have no model to run")
    return source_model(text, choice)


def runnable_problem(
    model: SourceModel,
    asked: ProblemOptions,
    devices: RealDevices,
    problem_file: Path | None = None,
) -> tuple[PlacementProblem, ExecutableStep]:
    """Return the problem of placing the step of a model, and the step, ready to run.

    On CPUs alone the cluster is by default one of as many. A problem file may know measured times.

    Raises
    ------
    InputError
        When the problem is of another graph or of other devices, nothing says what devices are
        that are no CPUs, or the step is one in micro-batches.
    """
    if asked.micro_batches != 1:
        raise InputError("--micro-batches: expected 1, as steps in micro-batches are not run")
    if problem_file is None and asked.cluster is None:
        if not devices.are_cpus:
            raise InputError(
                f"--cluster: expected one that says what {', '.join(devices.names)} are"
            )
        asked = replace(asked, cluster=f"{len(devices.names)}x{CPU}")
    target: Target = "cpu" if devices.are_cpus else "gpu"
    step = executable(model.make(CPU), target, devices.threads)
    if problem_file is None:
        graph = Source(model.name, step.graph, rules=model.rules, num_groups=model.num_groups)
        problem = problem_of(graph, asked)
    else:
        problem = _problem_of_file(problem_file, model.name, step)
    if problem.num_devices != len(devices.names):
        raise InputError(
            f"--devices: expected {problem.num_devices}, one for each of "
            f"{', '.join(problem.cluster.device_names)}, got {len(devices.names)}"
        )
    return problem, step


def _problem_of_file(path: Path, name: str, step: ExecutableStep) -> PlacementProblem:
    with reading(path):
        problem = load_problem(path)
    if replace(problem.graph, measured_time={}) != replace(step.graph, measured_time={}):
        raise InputError(
            f"{path}: expected a problem of the graph of {name} with these sizes on these devices, "
            f"{step.graph!r}, got {problem.graph!r}"
        )
    return problem
