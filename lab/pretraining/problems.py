"""The problems: graphs of many kinds on random clusters, with random groups and micro-batches.

README.md has the distributions. The problem of a `ProblemEntry` is built when needed.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from placeto import capture_step, family_graph, load_model_graph
from placeto.problems.making import compute_times
from placeto_capture import CaptureWarning
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

Split = Literal["training", "validation", "test"]

# Number of random steps of each shape in a split; its seeds follow those of earlier splits.
RANDOM_STEPS: dict[Split, int] = {"training": 200, "validation": 8, "test": 8}
# Number of the 16 training graphs of a family that are for validation.
GRAPHS_FOR_VALIDATION = 4
# By type of model: no type is in two splits, whatever its size.
TRANSFORMERS: dict[Split, tuple[str, ...]] = {
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
class ProblemEntry:
    """A problem of the problem set, which is built when needed."""

    graph_name: str  # unique in the problem set
    build_graph: Callable[[], OpGraph]
    colocation_rules: tuple[ColocationRule, ...] = DEFAULT_RULES

    @property
    def name(self) -> str:
        """Name of the problem: that of the first cluster of its graph."""
        return f"{self.graph_name}.0"

    def problem(self) -> PlacementProblem:
        """Return the problem, with op times of the cost model."""
        graph = self.build_graph()
        generator = np.random.default_rng(_seed_of(self.name))
        cluster = with_random_memory(random_cluster(generator), graph, generator)
        num_groups = int(generator.choice(GROUPS))
        micro_batches = int(generator.choice(MICRO_BATCHES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)  # of types that have no class
            compute_time = compute_times(graph, cluster)
        small_groups = colocate(graph, self.colocation_rules)
        grouping = merge_and_colocate(graph, small_groups, num_groups=num_groups)
        problem = PlacementProblem(
            graph=graph,
            cluster=cluster,
            compute_time=compute_time,
            grouping=grouping,
            hierarchy=nested_groupings(graph, small_groups, [*LEVEL_SIZES, grouping.num_groups]),
        )
        return micro_batched_problem(problem, micro_batches)


def problem_set(split: Split) -> list[ProblemEntry]:
    """Return the problems of one split of the problem set.

    Splits have no model in common: the test split is for neither training nor validation. Graphs of
    the families nmt, ptb and cifar10 are in the split that the family gives them. The models of the
    registry, which are those of the paper, are all in the test split. Problems are reproducible;
    README.md has their distributions.
    """
    if split not in get_args(Split):
        raise ValueError(f"split: expected one of {', '.join(get_args(Split))}, got {split!r}")
    entries = [*_random_graphs(split), *_family_graphs(split)]
    if split == "test":
        entries += [
            ProblemEntry(name, partial(load_model_graph, name), model.colocation_rules)
            for name, model in MODELS.items()
        ]
    return [*entries, *_library_models(split)]


def _random_graphs(split: Split) -> list[ProblemEntry]:
    splits = list(RANDOM_STEPS)
    first_seed = sum(RANDOM_STEPS[earlier] for earlier in splits[: splits.index(split)])
    return [
        ProblemEntry(f"{shape}-{seed}", partial(random_step, shape, seed))
        for seed in range(first_seed, first_seed + RANDOM_STEPS[split])
        for shape in SHAPES
    ]


def _family_graphs(split: Split) -> list[ProblemEntry]:
    entries = []
    for name in PAPER_FAMILIES:
        graphs = family(name)
        num_training = len(graphs.training) - GRAPHS_FOR_VALIDATION
        members = {
            "training": graphs.training[:num_training],
            "validation": graphs.training[num_training:],
            "test": graphs.test,
        }[split]
        entries += [
            ProblemEntry(member.name, partial(family_graph, member), graphs.colocation_rules)
            for member in members
        ]
    return entries


def _library_models(split: Split) -> list[ProblemEntry]:
    return [
        ProblemEntry(f"transformers-{name}", partial(_captured, f"transformers:{name}"))
        for name in TRANSFORMERS[split]
    ]


def _captured(source: str) -> OpGraph:
    return capture_step(library_step(source))


def random_cluster(generator: np.random.Generator) -> Cluster:
    """Return a cluster of 2 to 8 devices."""
    count = int(generator.choice(COUNTS))
    first, second = generator.choice(KINDS, size=2, replace=False).tolist()
    mixture = generator.random()
    num_first = int(generator.integers(1, count))
    if mixture < SHARE_OF_EQUAL_GPUS:
        spec = f"{count}x{first}"
    elif mixture < SHARE_OF_EQUAL_GPUS + SHARE_WITH_CPU:
        spec = f"1xcpu+{count - 1}x{first}"
    else:
        spec = f"{num_first}x{first}+{count - num_first}x{second}"
    return parse_cluster(spec, link=str(generator.choice(LINKS)))


def with_random_memory(cluster: Cluster, graph: OpGraph, generator: np.random.Generator) -> Cluster:
    """Return the cluster, or one whose GPUs have just enough memory for a graph."""
    gpus = [device for device in cluster.devices if not device.is_cpu]
    scarce, times = generator.random(), generator.uniform(*SCARCE)
    if scarce >= SHARE_WITH_SCARCE_MEMORY:
        return cluster
    step_bytes = int(graph.parameter_bytes.sum()) + activation_bytes(graph)
    memory_bytes = max(1, int(step_bytes * times / len(gpus)))
    return replace(
        cluster,
        devices=tuple(
            device if device.is_cpu else replace(device, memory_bytes=memory_bytes)
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
    is_activation = read_by_backward & (producer_phase == Phase.FORWARD) & ~graph.lives_in_weights
    return int(graph.tensor_bytes[is_activation].sum())
