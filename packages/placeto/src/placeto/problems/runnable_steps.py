"""From a source that a user named to a training step that can be run: a model with its values."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placeto.errors import InputError, reading
from placeto.problems.factories import find_factory, made_step
from placeto.problems.making import problem_of
from placeto.problems.options import ProblemOptions, Rule, SourceOptions
from placeto.problems.sources import FACTORY, LIBRARY, MEMBER, PROGRAM_SUFFIXES, Source
from placeto_capture import executable_step, program_step
from placeto_execution.measuring.real_devices import CPU, RealDevices
from placeto_graphs import DEFAULT_RULES, ExecutableStep, PlacementProblem, load_problem
from placeto_workloads import MODELS, TrainingStep, family, library_step, training_step

WHAT_CAN_RUN = (
    "a model (inception-v3), a member of a family (nmt:7), a model of a library "
    "(transformers:gpt2), an ONNX file, an exported program (.pt2), or package.module:factory"
)


@dataclass(frozen=True)
class RunnableSource:
    """A step with its values, and what suits its graph; see `Source`."""

    name: str
    step: TrainingStep
    rules: tuple[Rule, ...] = DEFAULT_RULES
    num_groups: int | None = None

    def executable(self, devices: RealDevices) -> ExecutableStep:
        """Return the step, ready to run; what it computes is thrown away."""
        return executable_step(
            self.step.model,
            self.step.example_inputs,
            loss_fn=self.step.loss_fn,
            optimizer=self.step.optimizer,
            mode=self.step.mode,
            target="cpu" if devices.are_cpus else "gpu",
            results=[],
            threads_per_device=devices.threads,
        )


def runnable_source(text: str, choice: SourceOptions) -> RunnableSource:
    """Return a step that a user named, with values for its weights and inputs.

    Raises
    ------
    InputError
        When it is nothing that has a model.
    """
    sizes: dict[str, Any] = dict(choice.sizes)
    if text in MODELS:
        step = training_step(text, device=CPU, **sizes)
        return RunnableSource(text, step, MODELS[text].colocation_rules)
    if LIBRARY.fullmatch(text):
        return RunnableSource(text, library_step(text, device=CPU, seed=0, **sizes))
    if text.endswith(PROGRAM_SUFFIXES):
        with reading(text):
            return RunnableSource(Path(text).stem, TrainingStep(*program_step(text, **sizes)))
    member = MEMBER.fullmatch(text)
    if member:
        chosen = family(member[1], seed=choice.family_seed, sampler=None, **sizes)
        found = {each.name: each for each in (*chosen.training, *chosen.test)}
        name = f"{member[1]}-{int(member[2]):02}"
        if name in found:
            step = found[name].training_step(device=CPU)
            return RunnableSource(name, step, chosen.colocation_rules, chosen.num_groups)
    elif FACTORY.fullmatch(text):
        return RunnableSource(text, made_step(text, find_factory(text), sizes))
    raise InputError(f"{text}: expected {WHAT_CAN_RUN}; other sources have no model that could run")


def runnable_problem(
    source: RunnableSource,
    asked: ProblemOptions,
    devices: RealDevices,
    problem_file: Path | None = None,
) -> tuple[PlacementProblem, ExecutableStep]:
    """Return the problem of placing a step, and the step, ready to run.

    Parameters
    ----------
    source
        The step.
    asked
        What the user said of the problem; on CPUs alone the cluster is by default one of as many.
    devices
        Where it runs.
    problem_file
        The problem, if it is not to be made anew; it may know measured times.

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
    step = source.executable(devices)
    if problem_file is None:
        graph = Source(source.name, step.graph, rules=source.rules, num_groups=source.num_groups)
        problem = problem_of(graph, asked)
    else:
        problem = _problem_of_file(problem_file, source.name, step)
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
