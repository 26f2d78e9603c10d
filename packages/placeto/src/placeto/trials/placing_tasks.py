"""Trials that place one graph with one placer."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from placeto.placing.costs import cost_of_result
from placeto.placing.evaluators import STEP, evaluator_spec
from placeto.placing.place_problem import run_placer
from placeto.placing.placers import PlacerSpec, fitting, placer_spec, trained, warm_up
from placeto.problems.making import compute_times
from placeto.progress import cpu_seconds
from placeto.trials.records import Placed, TrialRecord, evaluations_to_best, finite, short_curve
from placeto.trials.tables import CPU
from placeto.trials.trials import Graph, Watch, Workspace
from placeto_baselines import Limits, RnnPlacer, RnnSettings
from placeto_graphs import PlacementProblem, Placer, parse_cluster
from placeto_policy import Settings

OF_KIND = ("memory_bytes", "op_overhead", "transfer_overhead")  # what a device has of its kind


@dataclass(frozen=True, kw_only=True)
class Place:
    """Places a graph with the placer of a subclass."""

    warms_as: ClassVar[str] = ""  # placer of the command that calls the same code

    label: str  # name of the placer in the results
    graph: Graph
    seed: int | None  # seed that fixes every random choice; None where there is none
    evaluator: str = STEP.name
    limits: Limits = field(default_factory=Limits)
    modules: tuple[str, ...] = ()  # of a user's own placer or evaluator: part of the key

    @property
    def kind(self) -> str:
        """Name of the placer, which takes about as long on another graph."""
        return self.label

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Return the result of the placer; only CPU seconds of its search count."""
        problem = self.problem(workspace)
        spec = self.spec(workspace, problem)
        evaluator = evaluator_spec(self.evaluator)
        warm_up(spec.warms_as or spec.name, evaluator)
        priced = workspace.evaluator(problem, evaluator)
        began = cpu_seconds()
        result = run_placer(
            spec,
            problem,
            watch.update,
            seed=self.seed or 0,
            label=self.label,
            evaluator=evaluator,
            priced=priced,
            limits=self.limits,
        )
        seconds = cpu_seconds() - began
        watch.update("done")
        return Placed(
            runtime=finite(result.runtime),
            cost=finite(cost_of_result(problem, result)),
            fits=result.fits(problem.cluster),
            evaluations=result.evaluations,
            seconds=seconds,
            peak_memory=result.peak_memory.tolist(),
            evaluations_to_best=evaluations_to_best(result.curve),
            curve=short_curve(result.curve),
            placement=result.placement.tolist(),
        )

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return the problem."""
        return workspace.problem(self.graph)

    def spec(self, workspace: Workspace, problem: PlacementProblem) -> PlacerSpec:
        """Return the placer with what is known of it."""
        placer = self.placer(workspace, problem)
        return PlacerSpec(placer.name, self.label, lambda *_: placer, warms_as=self.warms_as)

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:
        """Return the placer."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PlaceByName(Place):
    """Places with one of the placers of `placeto.placing.placers`."""

    name: str
    settings: Settings | RnnSettings | None = None  # of one that trains, if not its usual ones

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return the problem; for CPU only the same groups on a CPU, if it has none."""
        problem = workspace.problem(self.graph)
        return on_a_cpu(problem) if self.name == CPU else problem

    def spec(self, workspace: Workspace, problem: PlacementProblem) -> PlacerSpec:  # noqa: ARG002
        """Return the placer with what is known of it."""
        spec, settings = placer_spec(self.name), self.settings
        if isinstance(settings, RnnSettings):
            return replace(spec, make=lambda *_: RnnPlacer(fitting(settings, [problem])))
        if settings is not None:
            return replace(spec, make=partial(trained, settings=settings))
        return spec


def on_a_cpu(problem: PlacementProblem) -> PlacementProblem:
    """Return the same groups on a CPU alone, as the cluster describes it, unless it has one."""
    cluster = problem.cluster
    if any(device.is_cpu for device in cluster.devices):
        return problem
    cpu_cluster = replace(parse_cluster(f"1x{CPU}"), queue=cluster.queue, kinds=cluster.kinds)
    for kind in cluster.kinds:
        if kind.name == CPU:
            of_kind = {name: getattr(kind, name) for name in OF_KIND}
            cpu_cluster = replace(
                cpu_cluster, devices=(replace(cpu_cluster.devices[0], **of_kind),)
            )
    return PlacementProblem(
        graph=problem.graph,
        cluster=cpu_cluster,
        compute_time=compute_times(problem.graph, cpu_cluster),
        grouping=problem.grouping,
    )
