"""From a source to a problem: the cluster, the times of ops on it, the groups."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, reading
from placeto.problems.options import GroupingOptions, ProblemOptions, group_counts
from placeto.problems.sources import Source, Target, load_source
from placeto_graphs import (
    Cluster,
    Grouping,
    OpGraph,
    PlacementProblem,
    load_cluster,
    measured_compute_time,
    merge_and_colocate,
    micro_batched_problem,
    names_of_rules,
    parse_cluster,
    repeat_micro_batch_problem,
)

DEFAULT_NUM_GPUS = 2


def read_cluster(text: str, link: str | None = None) -> Cluster:
    """Return a cluster from a spec such as ``1xcpu+2xk80``, or from a TOML file with its links."""
    if text.endswith(".toml") or Path(text).is_file():
        if link is not None:
            raise InputError(f"--link: excludes the cluster file {text}, which has its own links")
        with reading(text):
            return load_cluster(text)
    return parse_cluster(text, link=link)


def kinds_text(cluster: Cluster) -> str:
    """Return how many devices of each kind there are, such as ``1xcpu+2xk80``."""
    count = Counter(device.kind for device in cluster.devices)
    return "+".join(f"{number}x{kind}" for kind, number in count.items())


def default_cluster(source: Source, link: str | None = None) -> Cluster:
    """Return two GPUs of the kind that suits a source; a problem has its own devices."""
    if source.problem is not None:
        raise InputError(f"--link: needs --cluster, as {source.name} has its own devices")
    return parse_cluster(f"{DEFAULT_NUM_GPUS}x{source.kind}", link=link)


def target_of(cluster: Cluster) -> Target:
    """Return the device whose kernels a step runs on a cluster."""
    return "cpu" if all(device.is_cpu for device in cluster.devices) else "gpu"


def compute_times(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Return float64[V, D], the seconds of each op: measured if known, else of a cost model."""
    if all(device.kind in graph.measured_time for device in cluster.devices):
        return measured_compute_time(graph, cluster)
    from placeto_capture import cost_models  # noqa: PLC0415 (torch takes seconds to import)

    kinds = dict.fromkeys(device.kind for device in cluster.devices)
    described = {kind.name: kind for kind in cluster.kinds}
    seconds = cost_models(graph, [described.get(kind, kind) for kind in kinds])
    return np.stack([seconds[device.kind] for device in cluster.devices], axis=1)


def make_problem(
    source: Source, cluster: Cluster | None = None, grouping: GroupingOptions | None = None
) -> PlacementProblem:
    """Return the problem of a source, in its micro-batches; by default with its own devices."""
    problem = _problem_of_graph(source, cluster, grouping)
    if not source.is_part:
        return micro_batched_problem(problem, source.micro_batches)
    whole = repeat_micro_batch_problem(problem, source.micro_batches)
    if source.micro_batches == 1 or whole.graph.measured_time:
        return whole
    with warnings.catch_warnings():  # what there is to say of its ops has been said
        warnings.simplefilter("ignore")
        return replace(whole, compute_time=compute_times(whole.graph, whole.cluster))


def read_source(text: str, asked: ProblemOptions) -> Source:
    """Return the source of a name, with the sizes and devices of the options."""
    devices = _asked_cluster(asked)
    target = "gpu" if devices is None else target_of(devices)
    return load_source(text, asked.choice, asked.micro_batches, target)


def problem_of(source: Source, asked: ProblemOptions) -> PlacementProblem:
    """Return the problem of a source, with the devices and groups of the options."""
    devices = _asked_cluster(asked)
    if asked.link and devices is None:
        devices = default_cluster(source, asked.link)
    return make_problem(source, devices, asked.grouping)


def _asked_cluster(asked: ProblemOptions) -> Cluster | None:
    return read_cluster(asked.cluster, asked.link) if asked.cluster else None


def read_problem(text: str, asked: ProblemOptions | None = None) -> PlacementProblem:
    """Return the problem of a file or any other source, with the options."""
    wanted = asked or ProblemOptions()
    return problem_of(read_source(text, wanted), wanted)


def read_to_train_on(
    sources: Sequence[str], granularities: int, asked: ProblemOptions | None = None
) -> dict[str, PlacementProblem]:
    """Return problems as `read_problem` does, and then the same graphs at other granularities.

    Each graph has ``granularities`` numbers of groups, see `group_counts`. A small graph has fewer,
    and so has a problem file without rules, see `regrouped`.
    """
    wanted = asked or ProblemOptions()
    read = {text: read_source(text, wanted) for text in sources}
    found = {text: problem_of(source, wanted) for text, source in read.items()}
    for text, source in read.items():
        usual = found[text]
        for count in group_counts(usual.num_groups, granularities)[1:]:
            other = regrouped(source, usual, count)
            if other.num_groups != usual.num_groups:
                found[f"{text} in {other.num_groups} groups"] = other
    return found


def regrouped(source: Source, problem: PlacementProblem, num_groups: int) -> PlacementProblem:
    """Return a problem of a source in another number of groups.

    The rules of the graph make them anew. If a problem file has no rules, as that of a step in
    micro-batches, its groups are merged further.
    """
    if source.problem is not None and source.problem.rules is None:
        grouping = merge_and_colocate(problem.graph, problem.grouping, num_groups=num_groups)
    else:
        grouping = GroupingOptions(num_groups=num_groups).grouping(problem.graph, source.rules)
    return replace(problem, grouping=grouping, hierarchy=None)


def _problem_of_graph(
    source: Source, cluster: Cluster | None, grouping: GroupingOptions | None
) -> PlacementProblem:
    """Return the problem of the graph of a source, whatever its micro-batches."""
    options = grouping or GroupingOptions()
    old = source.problem
    groups = _groups(source, options)
    if old is not None and cluster is None:
        return replace(old, **groups._asdict())
    devices = cluster or default_cluster(source)
    if old is not None and old.cluster.queue == "backward-first":  # as of a step in micro-batches
        devices = replace(devices, queue="backward-first")
    return PlacementProblem(
        graph=source.graph,
        cluster=devices,
        compute_time=compute_times(source.graph, devices),
        **groups._asdict(),
    )


class _Groups(NamedTuple):
    """The groups of a problem, with what is known of where they come from."""

    grouping: Grouping
    rules: tuple[str, ...] | None
    hierarchy: tuple[Grouping, ...] | None


def _groups(source: Source, options: GroupingOptions) -> _Groups:
    old = source.problem
    if old is not None and options.says_nothing:
        return _Groups(old.grouping, old.rules, old.hierarchy)
    if old is not None and options.says_only_how_many:
        for level in old.levels:
            if level.num_groups == options.num_groups:
                return _Groups(level, old.rules, old.levels)
        if old.rules is None and (options.num_groups or 0) <= old.num_groups:
            wanted = options.num_groups
            merged = merge_and_colocate(source.graph, old.grouping, num_groups=wanted)
            return _Groups(merged, None, None)
    groups, levels = options.levels(source.graph, source.rules, source.num_groups)
    return _Groups(groups, names_of_rules(options.chosen_rules(source.rules)), levels)
