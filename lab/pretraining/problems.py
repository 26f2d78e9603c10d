"""The problems: graphs of many kinds on random clusters, with random groups and micro-batches.

README.md has the distributions. `GraphEntry` and `ProblemEntry` are built when needed.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from placeto import capture_step, family_graph, load_model_graph
from placeto_capture import CaptureWarning
from placeto_capture.costs.roofline import cost_models
from placeto_graphs import (
    DEFAULT_RULES,
    LEVEL_SIZES,
    Cluster,
    OpGraph,
    Phase,
    PlacementProblem,
    colocate,
    merge_and_colocate,
    micro_batched_problem,
    nested_groupings,
    parse_cluster,
)
from placeto_workloads import MODELS, family, library_step
from placeto_workloads.families.family import PAPER_FAMILIES
from placeto_workloads.registry import ColocationRule
from pretraining.random_steps import SHAPES, random_step

Part = Literal["training", "validation", "test"]

# Number of random steps of each shape in a part; its seeds follow those of the parts before.
RANDOM_STEPS: dict[Part, int] = {"training": 200, "validation": 8, "test": 8}
# Number of the 16 training graphs of a family that are for validation.
GRAPHS_FOR_VALIDATION = 4
# By type of model: no type is in two parts, whatever its size.
TRANSFORMERS: dict[Part, tuple[str, ...]] = {
    "training": ("bart", "bert", "mamba", "opt", "resnet", "t5", "vit"),
    "validation": ("llama", "swin"),
    "test": ("clip", "convnext", "gpt2", "mixtral", "whisper"),
}

KINDS = ("k80", "p100", "v100", "a100", "h100")
COUNTS = (2, 3, 4, 5, 6, 8)
LINKS = ("bus", "pcie", "pcie-shared")
SHARE_OF_EQUAL_GPUS = 0.6
SHARE_WITH_CPU = 0.15  # the others have two kinds of GPU
SHARE_WITH_SCARCE_MEMORY = 0.25
SCARCE = (1.2, 2.0)  # memory of all GPUs, relative to the bytes that the step keeps
GROUPS = (32, 64, 128, 128, 256)
MICRO_BATCHES = (1, 1, 1, 1, 1, 2, 4)


@dataclass(frozen=True)
class GraphEntry:
    """A graph of the problem set, which is built when needed; its name is unique."""

    name: str
    part: Part
    build: Callable[[], OpGraph]
    colocation_rules: tuple[ColocationRule, ...] = DEFAULT_RULES


def problem_set_graphs(part: Part) -> tuple[GraphEntry, ...]:
    """Return the graphs of one part of the problem set.

    Parts have no model in common: the test part is for neither training nor validation. Graphs of
    the families nmt, ptb and cifar10 are in the part that the family gives them. The models of the
    registry, which are those of the paper, are all in the test part.
    """
    if part not in get_args(Part):
        raise ValueError(f"part: expected one of {', '.join(get_args(Part))}, got {part!r}")
    found = [*_random_graphs(part), *_family_graphs(part)]
    if part == "test":
        found += [
            GraphEntry(name, part, partial(load_model_graph, name), model.colocation_rules)
            for name, model in MODELS.items()
        ]
    return (*found, *_library_models(part))


def _random_graphs(part: Part) -> list[GraphEntry]:
    parts = list(RANDOM_STEPS)
    first = sum(RANDOM_STEPS[earlier] for earlier in parts[: parts.index(part)])
    return [
        GraphEntry(f"{shape}-{seed}", part, partial(random_step, shape, seed))
        for seed in range(first, first + RANDOM_STEPS[part])
        for shape in SHAPES
    ]


def _family_graphs(part: Part) -> list[GraphEntry]:
    found = []
    for name in PAPER_FAMILIES:
        chosen = family(name)
        kept = len(chosen.training) - GRAPHS_FOR_VALIDATION
        members = {
            "training": chosen.training[:kept],
            "validation": chosen.training[kept:],
            "test": chosen.test,
        }[part]
        found += [
            GraphEntry(member.name, part, partial(family_graph, member), chosen.colocation_rules)
            for member in members
        ]
    return found


def _library_models(part: Part) -> list[GraphEntry]:
    return [
        GraphEntry(f"transformers-{name}", part, partial(_captured, f"transformers:{name}"))
        for name in TRANSFORMERS[part]
    ]


def _captured(source: str) -> OpGraph:
    return capture_step(library_step(source))


@dataclass(frozen=True)
class ProblemEntry:
    """A problem of the problem set, which is built when needed."""

    graph: GraphEntry
    variant: int

    @property
    def name(self) -> str:
        """Unique in the problem set."""
        return f"{self.graph.name}.{self.variant}"

    def problem(self) -> PlacementProblem:
        """Return the problem, with op times of the cost model."""
        return self.problem_of(self.graph.build())

    def problem_of(self, graph: OpGraph) -> PlacementProblem:
        """Return the problem of the graph that was built before."""
        generator = np.random.default_rng(_seed_of(self.name))
        cluster = with_drawn_memory(random_cluster(generator), graph, generator)
        num_groups = int(generator.choice(GROUPS))
        micro_batches = int(generator.choice(MICRO_BATCHES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)  # of types that have no class
            seconds = cost_models(graph, dict.fromkeys(device.kind for device in cluster.devices))
        small_groups = colocate(graph, self.graph.colocation_rules)
        grouping = merge_and_colocate(graph, small_groups, num_groups=num_groups)
        problem = PlacementProblem(
            graph=graph,
            cluster=cluster,
            compute_time=np.stack([seconds[device.kind] for device in cluster.devices], axis=1),
            grouping=grouping,
            hierarchy=nested_groupings(graph, small_groups, [*LEVEL_SIZES, grouping.num_groups]),
        )
        return micro_batched_problem(problem, micro_batches)


def problem_set(part: Part, *, variants: int = 1) -> tuple[ProblemEntry, ...]:
    """Return the problems of one part of the problem set.

    Problems are reproducible; README.md has their distributions.
    """
    if variants < 1:
        raise ValueError(f"variants: expected at least 1, got {variants}")
    return tuple(
        ProblemEntry(graph, variant)
        for graph in problem_set_graphs(part)
        for variant in range(variants)
    )


def random_cluster(generator: np.random.Generator) -> Cluster:
    """Return a cluster of 2 to 8 devices."""
    count = int(generator.choice(COUNTS))
    first, second = generator.choice(KINDS, size=2, replace=False).tolist()
    mixture = generator.random()
    own = int(generator.integers(1, count))
    if mixture < SHARE_OF_EQUAL_GPUS:
        spec = f"{count}x{first}"
    elif mixture < SHARE_OF_EQUAL_GPUS + SHARE_WITH_CPU:
        spec = f"1xcpu+{count - 1}x{first}"
    else:
        spec = f"{own}x{first}+{count - own}x{second}"
    return parse_cluster(spec, link=str(generator.choice(LINKS)))


def with_drawn_memory(cluster: Cluster, graph: OpGraph, generator: np.random.Generator) -> Cluster:
    """Return the cluster, or one whose GPUs have just enough memory for a graph."""
    gpus = [device for device in cluster.devices if not device.is_cpu]
    scarce, times = generator.random(), generator.uniform(*SCARCE)
    if scarce >= SHARE_WITH_SCARCE_MEMORY:
        return cluster
    kept = int(graph.parameter_bytes.sum()) + activation_bytes(graph)
    each = max(1, int(kept * times / len(gpus)))
    return replace(
        cluster,
        devices=tuple(
            device if device.is_cpu else replace(device, memory_bytes=each)
            for device in cluster.devices
        ),
    )


def _seed_of(name: str) -> int:
    return int.from_bytes(re.sub(r"\s", "", name).encode(), "big") % (2**63 - 25)


def activation_bytes(graph: OpGraph) -> int:
    """Return the bytes of the tensors that forward ops make and backward ops read.

    A step keeps them from its forward pass for its backward pass. Inputs of the step count;
    parameters and buffers do not.
    """
    producer_phase = graph.phases[graph.tensor_producer]
    read_by_backward = np.zeros(graph.num_tensors, np.bool_)
    tensors, readers = graph.edges.T
    read_by_backward[tensors[graph.phases[readers] == Phase.BACKWARD]] = True
    kept = read_by_backward & (producer_phase == Phase.FORWARD) & ~graph.lives_in_weights
    return int(graph.tensor_bytes[kept].sum())
