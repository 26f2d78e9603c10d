"""The graphs of the corpus, by name, and which part of it each belongs to."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from placeto import capture_step, family_graph, load_model_graph
from placeto_experiments.problem_set.random_steps import random_step
from placeto_experiments.problem_set.shapes import SHAPES
from placeto_graphs import DEFAULT_RULES, OpGraph
from placeto_workloads.colocation import ColocationRule
from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.family import PAPER_FAMILIES, family
from placeto_workloads.libraries.named import library_step
from placeto_workloads.registry import MODELS

Part = Literal["training", "validation", "test"]

# How many random steps of each shape a part has; its seeds come after those of the parts before.
RANDOM_STEPS: dict[Part, int] = {"training": 200, "validation": 8, "test": 8}
# Of the 16 members of a family for training, so many are left for validation.
MEMBERS_FOR_VALIDATION = 4
# By type of model: no type is in two parts, whatever its size.
TRANSFORMERS: dict[Part, tuple[str, ...]] = {
    "training": ("bart", "bert", "mamba", "opt", "resnet", "t5", "vit"),
    "validation": ("llama", "swin"),
    "test": ("clip", "convnext", "gpt2", "mixtral", "whisper"),
}


@dataclass(frozen=True)
class CorpusGraph:
    """A graph of the corpus; nothing is built before it is asked for.

    Attributes
    ----------
    name
        Unique, such as ``"grid-7"``, ``"nmt-03"`` or ``"transformers-gpt2"``.
    part
        ``"training"``, ``"validation"`` or ``"test"``.
    build
        What makes the graph.
    colocation_rules
        The rules that suit it.

    Examples
    --------
    See `corpus_graphs`.
    """

    name: str
    part: Part
    build: Callable[[], OpGraph]
    colocation_rules: tuple[ColocationRule, ...] = DEFAULT_RULES


def corpus_graphs(part: Part) -> tuple[CorpusGraph, ...]:
    """Return the graphs of one part of the corpus.

    Parts have no model in common: what is in the test part is neither trained on nor chosen by.
    Members of the families nmt, ptb and cifar10 are in the part for which the family has them;
    the models of the registry, which are those of the paper, are all in the test part.

    Parameters
    ----------
    part
        ``"training"``, ``"validation"`` or ``"test"``.

    Raises
    ------
    WorkloadError
        When there is no such part.

    Examples
    --------
    >>> graphs = corpus_graphs("test")
    >>> graphs[0].name, len(graphs)
    ('chain-208', 97)
    >>> graphs[0].build()
    OpGraph(ops=628, tensors=655, edges=1179)
    """
    if part not in get_args(Part):
        raise WorkloadError(f"part: expected one of {', '.join(get_args(Part))}, got {part!r}")
    found = [*_random_graphs(part), *_members(part)]
    if part == "test":
        found += [
            CorpusGraph(name, part, partial(load_model_graph, name), model.colocation_rules)
            for name, model in MODELS.items()
        ]
    return (*found, *_library_models(part))


def _random_graphs(part: Part) -> list[CorpusGraph]:
    parts = list(RANDOM_STEPS)
    first = sum(RANDOM_STEPS[earlier] for earlier in parts[: parts.index(part)])
    return [
        CorpusGraph(f"{shape}-{seed}", part, partial(random_step, shape, seed))
        for seed in range(first, first + RANDOM_STEPS[part])
        for shape in SHAPES
    ]


def _members(part: Part) -> list[CorpusGraph]:
    found = []
    for name in PAPER_FAMILIES:
        chosen = family(name)
        kept = len(chosen.training) - MEMBERS_FOR_VALIDATION
        members = {
            "training": chosen.training[:kept],
            "validation": chosen.training[kept:],
            "test": chosen.test,
        }[part]
        found += [
            CorpusGraph(member.name, part, partial(family_graph, member), chosen.colocation_rules)
            for member in members
        ]
    return found


def _library_models(part: Part) -> list[CorpusGraph]:
    return [
        CorpusGraph(f"transformers-{name}", part, partial(_captured, f"transformers:{name}"))
        for name in TRANSFORMERS[part]
    ]


def _captured(source: str) -> OpGraph:
    return capture_step(library_step(source))


def seed_of(name: str) -> int:
    """Return a seed that follows from a name.

    Examples
    --------
    >>> seed_of("grid-7") == seed_of("grid-7"), seed_of("grid-7") == seed_of("grid-8")
    (True, False)
    """
    return int.from_bytes(re.sub(r"\s", "", name).encode(), "big") % (2**63 - 25)
