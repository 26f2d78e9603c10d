"""The families nmt, ptb and cifar10 (Addanki et al. 2019)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from placeto_graphs import DEFAULT_RULES, Grouping, OpGraph, colocate, merge_and_colocate
from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.search_spaces import (
    Architecture,
    ArchitectureSampler,
    UniformSampler,
)
from placeto_workloads.families.trajectory import ControllerSampler
from placeto_workloads.models.cell_network import enas_image_network
from placeto_workloads.models.enas_recurrent import enas_language_model
from placeto_workloads.models.nmt import nmt
from placeto_workloads.models.training_step import TrainingStep, checked_sizes, default_sizes
from placeto_workloads.registry import RULES_OF_UNROLLED_NETWORKS, ColocationRule

NUM_MEMBERS = 32
MOST_REPEATED = 1_000  # draws in a row of architectures that the family has already
UNITS_OF_TRANSLATION = 1_024  # Wu et al. (2016)


@dataclass(frozen=True)
class FamilyMember:
    """One model of a family; nothing is built before it is needed.

    Attributes
    ----------
    name
        Name that is unique in the family and for its seed, such as ``"ptb-07"``.
    family
        Name of the family that the model is built as, such as ``"ptb"``.
    sizes
        Sampled and fixed sizes, by name.
    architecture
        Cells, in families whose graphs differ in them; else None.
    """

    name: str
    family: str
    sizes: Mapping[str, int]
    architecture: Architecture | None

    def training_step(self, *, device: torch.device | str = "meta", seed: int = 0) -> TrainingStep:
        """Build the training step.

        Parameters
        ----------
        device
            Device of weights and inputs; on the default, meta, they take no memory.
        seed
            Seed of weights and inputs on any other device.
        """
        build: Callable[..., TrainingStep] = _RECIPES[self.family].build
        if self.architecture is not None:
            build = partial(build, self.architecture)
        return build(**self.sizes, device=device, seed=seed)


@dataclass(frozen=True)
class Family:
    """Similar models, half for training and half for test, and how their ops are grouped.

    Attributes
    ----------
    name
        Name of the family.
    num_groups
        Number of groups that the ops of a member are grouped into.
    colocation_rules
        Co-location rules that are applied before groups are merged.
    training, test
        Members for training, and for test.
    """

    name: str
    num_groups: int
    colocation_rules: tuple[ColocationRule, ...]
    training: tuple[FamilyMember, ...]
    test: tuple[FamilyMember, ...]

    def grouping(self, graph: OpGraph) -> Grouping:
        """Return the groups of ops that merge-and-colocate makes.

        Parameters
        ----------
        graph
            Graph of a member's training step.
        """
        small_groups = colocate(graph, self.colocation_rules)
        return merge_and_colocate(graph, small_groups, num_groups=self.num_groups)


@dataclass(frozen=True)
class _Recipe:
    build: Callable[..., TrainingStep]
    sampled_sizes: Mapping[str, tuple[int, int]]  # smallest and largest, both included
    fixed_sizes: Mapping[str, int]
    draw_architecture: Callable[[ArchitectureSampler, np.random.Generator], Architecture | None]
    num_groups: int
    colocation_rules: tuple[ColocationRule, ...]


_RECIPES = {
    "nmt": _Recipe(
        build=partial(nmt, units=UNITS_OF_TRANSLATION),
        sampled_sizes={"steps": (16, 32), "batch_size": (64, 128)},
        fixed_sizes={"layers": 2},
        draw_architecture=lambda _sampler, _generator: None,
        num_groups=160,
        colocation_rules=RULES_OF_UNROLLED_NETWORKS,
    ),
    "ptb": _Recipe(
        build=enas_language_model,
        sampled_sizes={"steps": (25, 40), "batch_size": (1536, 3072)},
        fixed_sizes={},
        draw_architecture=lambda sampler, generator: sampler.recurrent_cell(generator),
        num_groups=128,
        colocation_rules=RULES_OF_UNROLLED_NETWORKS,
    ),
    "cifar10": _Recipe(
        build=enas_image_network,
        sampled_sizes={"batch_size": (240, 360)},
        fixed_sizes={},
        draw_architecture=lambda sampler, generator: sampler.convolutional_cells(generator),
        num_groups=128,
        colocation_rules=DEFAULT_RULES,
    ),
}


PAPER_FAMILIES = tuple(_RECIPES)
# The same families with the architectures that a training of a controller passed through.
CONTROLLER_FAMILIES = {"ptb-enas": "ptb", "cifar10-enas": "cifar10"}


def family_names() -> tuple[str, ...]:
    """Return the names that `family` takes."""
    return (*PAPER_FAMILIES, *CONTROLLER_FAMILIES)


def family(
    name: str,
    *,
    seed: int = 0,
    sampler: ArchitectureSampler | None = None,
    **sizes: int,
) -> Family:
    """Return 32 different models that have much in common, half for training and half for test.

    ``nmt``: translation with 2 layers, unrolled over 16 to 32 steps, 64 to 128 sentences a batch.
    ``ptb``: language models of sampled recurrent cells, 25 to 40 steps, 1,536 to 3,072 sequences.
    ``cifar10``: image networks of sampled cells, 240 to 360 images. Sizes are sampled uniformly
    (Addanki et al. 2019). All other sizes are those of `nmt` with 1,024 units, as in Wu et al.
    (2016), `enas_language_model` and `enas_image_network`.
    ``ptb-enas`` and ``cifar10-enas``: the same with a `ControllerSampler`.

    Parameters
    ----------
    name
        One of `family_names`.
    seed
        Seed of the models and of their split; the same seed gives the same family.
    sampler
        Source of architectures; by default a `UniformSampler`, or that of the name. If it has fewer
        than 32, one may be in both halves, in other sizes.
    **sizes
        Other sizes than the published ones, of those that are not sampled.

    Raises
    ------
    WorkloadError
        When there is no such family, or it has no such size to choose.

    Examples
    --------
    >>> ptb = family("ptb", seed=1)
    >>> len(ptb.training), len(ptb.test), ptb.num_groups
    (16, 16, 128)
    >>> len(ptb.training[0].training_step().model.cell.weights)
    12
    """
    if name not in family_names():
        raise WorkloadError(f"name: expected one of {', '.join(family_names())}, got {name!r}")
    base = CONTROLLER_FAMILIES.get(name, name)
    recipe = _RECIPES[base]
    defaults = default_sizes(recipe.build, {*recipe.fixed_sizes, *recipe.sampled_sizes})
    chosen = {**checked_sizes(name, defaults, sizes), **recipe.fixed_sizes}
    generator = np.random.default_rng(seed)
    if sampler is None:
        sampler = ControllerSampler() if name in CONTROLLER_FAMILIES else UniformSampler()
    members = _different_members(name, base, chosen, sampler, generator)
    order = generator.permutation(len(members))
    half = len(members) // 2
    return Family(
        name,
        recipe.num_groups,
        recipe.colocation_rules,
        training=tuple(members[index] for index in np.sort(order[:half])),
        test=tuple(members[index] for index in np.sort(order[half:])),
    )


def _different_members(
    name: str,
    base: str,
    chosen: Mapping[str, int],
    sampler: ArchitectureSampler,
    generator: np.random.Generator,
) -> list[FamilyMember]:
    """Sample members that differ, so that no model is in both halves of the family.

    An architecture comes again, in other sizes, only after `MOST_REPEATED` draws in a row gave no
    new one: the sampler then has no more.
    """
    recipe = _RECIPES[base]
    members: list[FamilyMember] = []
    sampled = set()
    repeated = 0
    while len(members) < NUM_MEMBERS:
        sizes_of_member = {
            size: int(generator.integers(minimum, maximum, endpoint=True))
            for size, (minimum, maximum) in recipe.sampled_sizes.items()
        }
        architecture = recipe.draw_architecture(sampler, generator)
        model = (*sizes_of_member.values(), architecture)
        if model in sampled:
            continue
        architectures = {member.architecture for member in members if member.architecture}
        if architecture in architectures and repeated < MOST_REPEATED:
            repeated += 1
            continue
        sampled.add(model)
        repeated = 0
        sizes = {**chosen, **sizes_of_member}
        members.append(FamilyMember(f"{name}-{len(members):02}", base, sizes, architecture))
    return members
