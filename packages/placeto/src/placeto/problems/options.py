"""Options of a problem: the sizes of its source, the devices, the ops that stay together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from placeto_graphs import (
    DEFAULT_RULES,
    LEVEL_SIZES,
    NAMED_RULES,
    Grouping,
    OpGraph,
    colocate,
    colocate_by_id,
    colocate_scopes,
    merge_and_colocate,
    nested_groupings,
)

Rule = Callable[[OpGraph], Grouping]

DEFAULT_NUM_GROUPS = 128
TRAINING = "training"
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
    def says_nothing(self) -> bool:
        """True if no option is set."""
        return self == GroupingOptions()

    @property
    def says_only_how_many(self) -> bool:
        """True if only the number of groups is set."""
        return self.num_groups is not None and self == GroupingOptions(num_groups=self.num_groups)

    @property
    def fixes_how_many(self) -> bool:
        """True if an option decides the number of groups."""
        return bool(self.num_groups or self.min_output_bytes or not self.merging)

    def chosen_rules(self, rules: tuple[Rule, ...] = DEFAULT_RULES) -> tuple[Rule, ...]:
        """Return the rules of a graph: those that suit it, unless the user named others."""
        if self.rules:
            named = (NAMED_RULES[name] for name in self.rules if name != "none")
            rules = tuple(dict.fromkeys((colocate_by_id, *named)))
        return (*rules, *(partial(colocate_scopes, pattern=pattern) for pattern in self.patterns))

    def grouping(
        self, graph: OpGraph, rules: tuple[Rule, ...] = DEFAULT_RULES, num_groups: int | None = None
    ) -> Grouping:
        """Return the groups of a graph; rules and a number of groups are those that suit it."""
        return self._merged(graph, colocate(graph, self.chosen_rules(rules)), num_groups)

    def levels(
        self, graph: OpGraph, rules: tuple[Rule, ...] = DEFAULT_RULES, num_groups: int | None = None
    ) -> tuple[Grouping, tuple[Grouping, ...]]:
        """Return the groups of a graph as `grouping` does, and all levels of which they are one."""
        small = colocate(graph, self.chosen_rules(rules))
        groups = self._merged(graph, small, num_groups)
        return groups, nested_groupings(graph, small, [*LEVEL_SIZES, groups.num_groups])

    def _merged(self, graph: OpGraph, small: Grouping, num_groups: int | None) -> Grouping:
        if not self.merging:
            return small
        wanted = self.num_groups
        if wanted is None and self.min_output_bytes is None:
            wanted = num_groups or DEFAULT_NUM_GROUPS
        return merge_and_colocate(
            graph, small, num_groups=wanted, min_output_bytes=self.min_output_bytes
        )


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source: its sizes, its seed, and assumptions about it."""

    sizes: Mapping[str, Any] = field(default_factory=dict)  # of the model or its configuration
    family_seed: int = 0  # of the draw of a family's graphs
    trust: bool = False  # whether a file may be loaded that can run code, as a .pt2 file can
    # Part of all elements that masks of unknown values pick; None for that of the source.
    mask_fraction: float | None = None
    mode: str = TRAINING  # or a step of inference, see `placeto_workloads.inference_step`
    context: int | None = None  # tokens of the cache of such a step
    weight_bits: int | None = None  # of each weight of such a step; None for those of its dtype


@dataclass(frozen=True)
class ProblemOptions:
    """All options of a problem besides its source; defaults are those of the source."""

    cluster: str | None = None  # the devices
    link: str | None = None  # the links between them
    choice: SourceOptions = field(default_factory=SourceOptions)
    micro_batches: int = 1  # number of parts of its batch in which a step runs
    grouping: GroupingOptions = field(default_factory=GroupingOptions)

    @property
    def says_nothing(self) -> bool:
        """True if no option is set."""
        return self == ProblemOptions()


def group_counts(usual: int, granularities: int) -> list[int]:
    """Return numbers of groups of one graph, one for each granularity; the first is the usual one.

    A policy that also learns from more and fewer groups of a graph places other graphs better.

    Examples
    --------
    >>> group_counts(128, 1), group_counts(128, 4)
    ([128], [128, 90, 117, 154])
    """
    shares = np.geomspace(FEWEST, MOST, granularities - 1).tolist()
    return [usual, *(max(1, round(usual * share)) for share in shares)]
