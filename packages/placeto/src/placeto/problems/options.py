"""Options of a problem: the sizes of its source, the devices, the ops that stay together."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from placeto.errors import InputError, check_count
from placeto.problems.restrictions import Restrictions
from placeto_graphs import (
    LEVEL_SIZES,
    NAMED_RULES,
    BatchDivision,
    Cluster,
    Grouping,
    OpGraph,
    colocate,
    colocate_by_id,
    colocate_scopes,
    load_cluster,
    merge_and_colocate,
    nested_groupings,
    parse_cluster,
)
from placeto_graphs.errors import not_among

Target = Literal["gpu", "cpu"]  # whose kernels what is captured runs
ClusterName = str | os.PathLike[str] | Cluster  # a spec, a file, or the cluster itself
Rule = Callable[[OpGraph], Grouping]

DEFAULT_NUM_GROUPS = 128
TRAINING, DECODE = "training", "decode"
LONGEST = "longest"  # context
AUTO = "auto"  # copies: those of a placement, or what `placeto place` chooses; else one
ANY, CPU = "any", "cpu"  # devices of a cache
CACHE_DEVICES = (ANY, CPU)
# Number of granularities in which a policy learns each of several graphs.
GRANULARITIES_OF_MANY = 4
# Numbers of groups at the other granularities of a graph: least and most, as fractions of the usual
FEWEST, MOST = 0.7, 1.2


@dataclass(frozen=True)
class GroupingOptions:
    """Options of co-location and merging."""

    # Names of rules, none for those that suit the source; "none" is none but the colocation ids.
    rules: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()  # regular expressions of scopes that stay together
    num_groups: int | None = None  # at which merging stops; None for what suits the source
    min_output_bytes: int | None = None  # from which size on groups are left alone
    merging: bool = True  # whether groups are merged at all

    @property
    def fixes_num_groups(self) -> bool:
        """True if an option decides the number of groups."""
        return bool(self.num_groups or self.min_output_bytes or not self.merging)

    def chosen_rules(self, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        """Return the rules of a graph: those that suit it, unless the user named others."""
        if self.rules:
            named = (NAMED_RULES[name] for name in self.rules if name != "none")
            rules = tuple(dict.fromkeys((colocate_by_id, *named)))
        return (*rules, *(partial(colocate_scopes, pattern=pattern) for pattern in self.patterns))

    def levels(
        self, graph: OpGraph, rules: tuple[Rule, ...], num_groups: int | None
    ) -> tuple[Grouping, tuple[Grouping, ...]]:
        """Return the groups of a graph, by default those that suit it, and all their levels."""
        groups = small = colocate(graph, self.chosen_rules(rules))
        if self.merging:
            min_output_bytes = self.min_output_bytes
            if self.num_groups is not None or min_output_bytes is not None:
                num_groups = self.num_groups
            else:
                num_groups = num_groups or DEFAULT_NUM_GROUPS
            groups = merge_and_colocate(
                graph, small, num_groups=num_groups, min_output_bytes=min_output_bytes
            )
        return groups, nested_groupings(graph, small, [*LEVEL_SIZES, groups.num_groups])


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source: its sizes, its seed, and assumptions about it."""

    sizes: Mapping[str, Any] = field(default_factory=dict)  # of the model or its configuration
    family_seed: int = 0  # of the draw of a family's graphs
    trust: bool = False  # whether a file may be loaded that can run code, as a .pt2 file can
    # Part of all elements that masks of unknown values pick; None for that of the source.
    mask_fraction: float | None = None
    mode: str = TRAINING  # or a step of inference, see `placeto_workloads.inference_step`
    # Tokens of the cache of such a step, or LONGEST for as many as the configuration allows.
    context: int | str | None = None
    weight_bits: int | None = None  # of each weight of such a step; None for those of its dtype
    cache_bits: int | None = None  # of keys and values, as of weights
    cache_device: str = ANY  # of keys and values: that of the attention, or "cpu" with it
    eager: bool = False  # whether ops of such a step are issued one by one
    autocast: str | None = None  # dtype of torch.autocast around the forward pass


@dataclass(frozen=True)
class ProblemOptions:
    """All options of a problem besides its source; defaults are those of the source."""

    cluster: ClusterName | None = None  # the devices
    link: str | None = None  # the links between them
    choice: SourceOptions = field(default_factory=SourceOptions)
    micro_batches: int = 1  # number of parts of its batch in which a step runs
    # Number of copies of the model, the samples of the batch that each has, or both and more; AUTO.
    copies: str | int | Sequence[int] | BatchDivision = AUTO
    shard: bool = False  # whether the copies divide the weights among them
    grouping: GroupingOptions = field(default_factory=GroupingOptions)
    gpus: int | None = None  # number of GPUs, instead of the devices
    gpu_kind: str | None = None  # of these; by default that of the source
    restrictions: Restrictions = field(default_factory=Restrictions)  # of devices

    def __post_init__(self) -> None:
        if self.cluster and (self.gpus or self.gpu_kind):
            raise InputError("--cluster: excludes --gpus and --gpu-kind")
        check_count("micro_batches", self.micro_batches)
        for count in self.samples:
            check_count("copies", count)
        if isinstance(self.copies, int):
            check_count("copies", self.copies)
        if isinstance(self.copies, str) and self.copies != AUTO:
            raise InputError(f'copies: expected "{AUTO}", a number or samples, got {self.copies!r}')
        if self.shard and self.copies != AUTO and len(self.samples) == 1:
            raise InputError("shard: expected several copies, which divide the weights, got one")

    @classmethod
    def of(cls, cluster: ClusterName | None = None, **options: Any) -> "ProblemOptions":
        """Return options of which those of the source and of the groups are given by name."""
        of_source = [option.name for option in fields(SourceOptions)]
        of_grouping = [option.name for option in fields(GroupingOptions)]
        of_devices = [option.name for option in fields(Restrictions)]
        of_problem = [
            option.name
            for option in fields(cls)
            if option.name not in ("cluster", "choice", "grouping", "restrictions")
        ]
        names = [*of_problem, *of_source, *of_grouping, *of_devices]
        for name in options:
            if name not in names:
                raise InputError(f"options: {not_among(name, names)}")
        return cls(
            cluster,
            choice=SourceOptions(**_only(options, of_source)),
            grouping=GroupingOptions(**_only(options, of_grouping)),
            restrictions=Restrictions(**_only(options, of_devices)),
            **_only(options, of_problem),
        )

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples of each copy, in relation to those of the others."""
        if isinstance(self.copies, str):
            return (1,)
        if isinstance(self.copies, BatchDivision):
            return self.copies.samples
        return (1,) * self.copies if isinstance(self.copies, int) else tuple(self.copies)

    @property
    def before_copies(self) -> "ProblemOptions":
        """The options of the problem of one copy, if it is open how many there are."""
        return replace(self, shard=False) if self.copies == AUTO else self

    def of_copies(self, copies: BatchDivision) -> "ProblemOptions":
        """Return the options of a problem that consists of copies."""
        micro_batches = copies.micro_batches
        return replace(self, copies=copies, shard=copies.shard, micro_batches=micro_batches)

    @cached_property
    def devices(self) -> Cluster | None:
        """The devices that are named, if there are any."""
        return read_cluster(self.cluster, self.link) if self.cluster else None

    @property
    def target(self) -> Target:
        """The device whose kernels a step runs on the devices."""
        return "gpu" if self.devices is None else target_of(self.devices)


def _only(options: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}


def target_of(cluster: Cluster) -> Target:
    """Return the device whose kernels a step runs on a cluster."""
    return "cpu" if all(device.is_cpu for device in cluster.devices) else "gpu"


def read_cluster(cluster: ClusterName, link: str | None = None) -> Cluster:
    """Return a cluster from a spec such as ``1xcpu+2xk80``, or from a TOML file with its links."""
    if isinstance(cluster, Cluster) and link is None:
        return cluster
    if not isinstance(cluster, str | os.PathLike):
        raise InputError(
            "cluster: expected a spec such as 1xcpu+2xk80, a TOML file, or a Cluster without a "
            f"link, got {type(cluster).__name__}"
        )
    text = os.fspath(cluster)
    if text.endswith(".toml") or Path(text).is_file():
        if link is not None:
            raise InputError(f"--link: excludes the cluster file {text}, which has its own links")
        return load_cluster(text)
    return parse_cluster(text, link=link)


def group_counts(usual: int, granularities: int) -> list[int]:
    """Return numbers of groups of one graph, one for each granularity, the usual one first."""
    shares = np.geomspace(FEWEST, MOST, granularities - 1).tolist()
    return [usual, *(max(1, round(usual * share)) for share in shares)]
