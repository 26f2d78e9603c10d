"""Trials that place one graph, each with another placer."""

import time
from dataclasses import dataclass
from typing import TypedDict

from placeto.placing.costs import cost_of_result
from placeto.placing.placements import run_placer
from placeto.placing.placers import fitting, make_placer
from placeto.placing.warming import warm_up_placer
from placeto.trials.comparison import CPU, on_a_cpu
from placeto.trials.curves import evaluations_to_best, short_curve
from placeto.trials.records import Placed, Record, finite
from placeto.trials.trials import Graph, Watch, Workspace
from placeto_baselines import (
    RnnPlacer,
    RnnSettings,
)
from placeto_graphs import PlacementProblem, PlacementResult, Placer
from placeto_policy import PlacetoPlacer, Settings


class Labels(TypedDict):
    """Labels of a record: the placer, the graph and the seed."""

    scheme: str
    graph: str
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Places a graph; others say with which placer."""

    scheme: str  # name of the placer in records
    graph: Graph
    seed: int | None  # seed that fixes every random choice; None where there is none
    budget: int | None = None  # number of placements that it samples, if that is known

    @property
    def kind(self) -> str:
        """The name of the placer, which takes about as long on another graph."""
        return self.scheme

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Place, and return what came of it; the clock runs while the placer places."""
        problem = self.problem(workspace)
        placer = self.placer(workspace, problem)
        warm_up_placer(placer)
        began = time.perf_counter()
        result = run_placer(
            placer,
            problem,
            watch,
            seed=self.seed or 0,
            budget=self.budget,
            label=self.scheme,
            num_threads=1,
        )
        seconds = time.perf_counter() - began
        watch.update("done")
        return self.placed(problem, result, seconds)

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return what is placed."""
        return workspace.problem(self.graph)

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:
        """Return the placer."""
        raise NotImplementedError

    def labels(self) -> Labels:
        """Return the labels of its record."""
        return {"scheme": self.scheme, "graph": self.graph.label, "seed": self.seed}

    def placed(self, problem: PlacementProblem, result: PlacementResult, seconds: float) -> Placed:
        """Return the record of a run of a placer."""
        return Placed(
            **self.labels(),
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


@dataclass(frozen=True, kw_only=True)
class PlaceByName(Place):
    """Places with one of the placers of `placeto.placing.placers`."""

    name: str

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return what is placed: for CPU only the same groups on a CPU, if there is none."""
        problem = workspace.problem(self.graph)
        return on_a_cpu(problem) if self.name == CPU else problem

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return make_placer(self.name, problem, self.budget)


@dataclass(frozen=True, kw_only=True)
class PlaceOptimized(Place):
    """Trains a policy on the graph."""

    settings: Settings

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return PlacetoPlacer(training_evaluations=self.budget or 1, settings=self.settings)


@dataclass(frozen=True, kw_only=True)
class PlaceRnnOptimized(Place):
    """Trains an RNN on the graph."""

    settings: RnnSettings

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return RnnPlacer(fitting(self.settings, [problem]))
