"""The problems of the corpus: its graphs on drawn clusters, in drawn groups and micro-batches."""

import warnings
from dataclasses import dataclass

import numpy as np

from placeto_capture.costs.roofline import cost_models
from placeto_experiments.problem_set.clusters import random_cluster, with_drawn_memory
from placeto_experiments.problem_set.graphs import CorpusGraph, Part, corpus_graphs, seed_of
from placeto_graphs import (
    OpGraph,
    PlacementProblem,
    colocate,
    merge_and_colocate,
    micro_batched_problem,
)
from placeto_workloads.errors import WorkloadError, WorkloadWarning

GROUPS = (32, 64, 128, 128, 256)
MICRO_BATCHES = (1, 1, 1, 1, 1, 2, 4)


@dataclass(frozen=True)
class CorpusProblem:
    """A problem of the corpus; nothing is built before it is asked for.

    Attributes
    ----------
    graph : `CorpusGraph`
        What is placed.
    variant : int
        Which of the problems of that graph this is: each has a cluster of its own.

    Examples
    --------
    >>> from placeto_experiments.problem_set.graphs import corpus_graphs
    >>> CorpusProblem(corpus_graphs("test")[0], variant=1).problem()
    PlacementProblem(ops=628, groups=155, devices=8)
    """

    graph: CorpusGraph
    variant: int

    @property
    def name(self) -> str:
        """Unique in the corpus."""
        return f"{self.graph.name}.{self.variant}"

    def problem(self) -> PlacementProblem:
        """Return the problem, with op times of the cost model."""
        return self.problem_of(self.graph.build())

    def problem_of(self, graph: OpGraph) -> PlacementProblem:
        """Return the problem of the graph that was built before."""
        generator = np.random.default_rng(seed_of(self.name))
        cluster = with_drawn_memory(random_cluster(generator), graph, generator)
        num_groups = int(generator.choice(GROUPS))
        micro_batches = int(generator.choice(MICRO_BATCHES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WorkloadWarning)  # of types that have no class
            seconds = cost_models(graph, dict.fromkeys(device.kind for device in cluster.devices))
        small_groups = colocate(graph, self.graph.colocation_rules)
        problem = PlacementProblem(
            graph=graph,
            cluster=cluster,
            compute_time=np.stack([seconds[device.kind] for device in cluster.devices], axis=1),
            grouping=merge_and_colocate(graph, small_groups, num_groups=num_groups),
        )
        return micro_batched_problem(problem, micro_batches)


def corpus(part: Part, *, variants: int = 1) -> tuple[CorpusProblem, ...]:
    """Return the problems of one part of the corpus.

    A problem is the same whenever and wherever it is made; docs/corpus.md says what is drawn.

    Parameters
    ----------
    part
        ``"training"``, ``"validation"`` or ``"test"``; see `corpus_graphs`.
    variants
        How many problems each graph has: on another cluster, in other groups.

    Raises
    ------
    WorkloadError
        When there is no such part, or the number is below 1.

    Examples
    --------
    >>> problems = corpus("validation", variants=2)
    >>> len(problems), problems[1].name
    (108, 'chain-200.1')
    """
    if variants < 1:
        raise WorkloadError(f"variants: expected at least 1, got {variants}")
    return tuple(
        CorpusProblem(graph, variant)
        for graph in corpus_graphs(part)
        for variant in range(variants)
    )
