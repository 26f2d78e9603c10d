"""From a source to a problem: the cluster, the times of ops on it, the groups; and its step."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.problems.options import (
    ClusterName,
    GroupingOptions,
    ProblemOptions,
    SourceOptions,
    group_counts,
)
from placeto.problems.restrictions import Restrictions, divided_problem
from placeto.problems.sources import (
    WHAT_CAN_RUN,
    Source,
    SourceModel,
    files_of_sources,
    is_graph_file,
    load_source,
    source_model,
)
from placeto_capture import cost_models, fused
from placeto_graphs import (
    DEVICE_KINDS,
    BatchDivision,
    Cluster,
    ExecutableStep,
    OpGraph,
    PlacementProblem,
    colocate,
    copied,
    copies_of,
    load_problem,
    measured_compute_time,
    merge_and_colocate,
    micro_batched_problem,
    names_of_rules,
    parse_cluster,
    parts_of_batch,
    repeat_micro_batch_problem,
    sharded,
)
from placeto_graphs.errors import not_among, within

if TYPE_CHECKING:
    from placeto_execution.devices import RealDevices

DEFAULT_NUM_GPUS = 2
METAL = "metal"  # backend of Macs
COPY = re.compile(r".*#([0-9]{1,4})", re.DOTALL)  # name of a group of a copy
KEYS_OR_VALUES = re.compile(r"input\..*\.layers\.[0-9]+\.(keys|values)")  # names of buffers
# Seconds that a kernel of a server for language models takes on top of its bytes and FLOPs, with
# its launch and the time to the next one: of NVIDIA's and AMD's GPUs, and of Macs. Fitted by
# lab/decode.py.
SECONDS_OF_KERNEL, SECONDS_OF_KERNEL_OF_MAC = 6e-6, 12e-6
LAUNCH_OVERHEAD = DEVICE_KINDS["a100"].launch_overhead  # of all GPUs, which is in their costs
# Seconds in which PyTorch's host issues an op of a language model of transformers, for which a
# faster GPU waits. Three published rates have 10 to 26 (lab/decode.py).
EAGER_SECONDS_PER_OP = 20e-6


def kinds_text(cluster: Cluster) -> str:
    """Return how many devices of each kind there are, such as ``1xcpu+2xk80``."""
    counts = Counter(device.kind for device in cluster.devices)
    return "+".join(f"{count}x{kind}" for kind, count in counts.items())


def compute_times(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Return float64[V, D], the seconds of each op: measured if known, else of a cost model."""
    if all(device.kind in graph.measured_time for device in cluster.devices):
        return measured_compute_time(graph, cluster)
    kinds = dict.fromkeys(device.kind for device in cluster.devices)
    described = {kind.name: kind for kind in cluster.kinds}
    seconds = cost_models(graph, [described.get(kind, kind) for kind in kinds])
    times = np.stack([seconds[device.kind] for device in cluster.devices], axis=1)
    return times if graph.cache is None else _issued(graph, cluster, times)


def make_problem(
    source: Source,
    cluster: Cluster | None = None,
    grouping: GroupingOptions | None = None,
    *,
    is_sharded: bool = False,
    devices_of_copies: Sequence[str] = (),
) -> PlacementProblem:
    """Return the problem of a source in its micro-batches and copies.

    By default it is on the devices of the source. If it is sharded, the copies divide the weights.
    Devices are the first of each copy, by default spread over all accelerators.
    """
    if source.copies:
        problem_of_copy = {
            copy: make_problem(copy, cluster, grouping) for copy in dict.fromkeys(source.copies)
        }
        problems = [problem_of_copy[copy] for copy in source.copies]
        return problem_of_copies(
            problems,
            devices_of_copies or first_devices(problems[0].cluster, len(problems)),
            is_sharded=is_sharded,
            is_captured=source.is_micro_batch,
        )
    source_problem, groups = source.problem, _groups(source, grouping or GroupingOptions())
    if source_problem is not None and cluster is None:
        problem = replace(source_problem, **groups)
    else:
        devices = cluster or parse_cluster(f"{DEFAULT_NUM_GPUS}x{source.kind}")
        if source_problem is not None and source_problem.cluster.queue == "backward-first":
            devices = replace(devices, queue="backward-first")  # as of micro-batches
        if copies_of(source.graph) is not None:
            devices = devices.for_collectives
        seconds = _times_of_source(source, devices)
        problem = PlacementProblem(
            graph=source.graph, cluster=devices, compute_time=seconds, **groups
        )
    if problem.graph.cache is not None and problem.graph.cache.on_cpu:
        problem = with_cache_on_cpu(problem)
    if not source.is_micro_batch:
        problem = parts_of_batch(problem, [count for count in source.part if count])[0]
        return micro_batched_problem(problem, source.micro_batches)
    whole = repeat_micro_batch_problem(problem, source.micro_batches)
    return whole if whole is problem else _with_modelled_times(whole)


def problem_of_copies(
    problems: Sequence[PlacementProblem],
    devices: Sequence[str],
    *,
    is_sharded: bool,
    is_captured: bool = True,
) -> PlacementProblem:
    """Return the problem of copies, the first devices of which have names.

    If their steps were captured, all ops have the times of the cost model.
    """
    cluster = problems[0].cluster
    for device in devices:
        if device not in cluster.device_names:
            raise InputError(f"copies: {not_among(device, cluster.device_names)}")
    machines = [int(cluster.machine[cluster.device_names.index(device)]) for device in devices]
    whole = (sharded if is_sharded else copied)(problems, machines=machines)
    return _with_modelled_times(whole) if is_captured else whole


def _with_modelled_times(problem: PlacementProblem) -> PlacementProblem:
    """Return a problem with times of the cost model; one of measured times stays as it is."""
    if problem.graph.measured_time:
        return problem
    with warnings.catch_warnings():  # what there is to say of its ops has been said
        warnings.simplefilter("ignore")
        return replace(problem, compute_time=compute_times(problem.graph, problem.cluster))


def _times_of_source(source: Source, cluster: Cluster) -> NDArray[np.float64]:
    """Return float64[V, D], the seconds of each op: those of the source for kinds that it has.

    A graph of a user's own may have times and nothing to compute others from.
    """
    problem = source.problem
    if problem is not None and problem.cluster.kinds == cluster.kinds:
        columns: dict[str, NDArray[np.float64]] = {}
        for device, seconds in zip(problem.cluster.devices, problem.compute_time.T, strict=True):
            if not np.array_equal(columns.setdefault(device.kind, seconds), seconds):
                return compute_times(source.graph, cluster)  # one of them is barred
        if columns.keys() >= {device.kind for device in cluster.devices}:
            return np.stack([columns[device.kind] for device in cluster.devices], axis=1)
    return compute_times(source.graph, cluster)


def first_devices(cluster: Cluster, copies: int) -> list[str]:
    """Return the name of the first device of each copy, if each has as many accelerators."""
    devices = cluster.accelerators
    if copies > len(devices):
        raise InputError(
            f"--copies: expected at most {len(devices)}, one for each device, got {copies}"
        )
    indices = devices[np.arange(copies) * len(devices) // copies].tolist()
    return [cluster.device_names[index] for index in indices]


def placement_by_copies(problem: PlacementProblem) -> NDArray[np.int32] | None:
    """Return int32[V], each copy of a step on its first device; None if there are no copies."""
    matches = [COPY.fullmatch(name) for name in problem.grouping.group_names]
    copy = np.array([int(match[1]) for match in matches if match])
    most_copies = len(problem.cluster.accelerators)
    if len(copy) < len(matches) or copy.max() >= most_copies:
        return None
    names = first_devices(problem.cluster, int(copy.max()) + 1)
    devices = np.array([problem.cluster.device_names.index(name) for name in names], np.int32)
    start: NDArray[np.int32] = devices[copy][problem.grouping.group_of]
    return start


def backends(cluster: Cluster) -> list[str]:
    """Return the backend of each device's kind; nothing where that has none."""
    kinds = DEVICE_KINDS | {kind.name: kind for kind in cluster.kinds}
    return [
        kinds[device.kind].backend if device.kind in kinds else "" for device in cluster.devices
    ]


def is_served(graph: OpGraph) -> bool:
    """Return whether kernels of a step of inference are fused already, as a server has them."""
    return fused(graph).num_ops == graph.num_ops


def _issued(graph: OpGraph, cluster: Cluster, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[V, D], times of ops of inference as a server, or eager PyTorch, issues them.

    A server has fused kernels. Times that were measured are those of the ops, whatever issues them.
    """
    has_fused_kernels = is_served(graph)
    issued = seconds.copy()
    for index, (device, backend) in enumerate(zip(cluster.devices, backends(cluster), strict=True)):
        if device.is_cpu or device.kind in graph.measured_time:
            continue
        takes_time = seconds[:, index] > 0
        if has_fused_kernels:
            of_kernel = SECONDS_OF_KERNEL_OF_MAC if backend == METAL else SECONDS_OF_KERNEL
            issued[takes_time, index] += max(0.0, of_kernel - LAUNCH_OVERHEAD - device.op_overhead)
        else:
            least = EAGER_SECONDS_PER_OP - device.op_overhead
            issued[takes_time, index] = np.maximum(issued[takes_time, index], least)
    return issued


def with_cache_on_cpu(problem: PlacementProblem) -> PlacementProblem:
    """Return a problem whose cache of keys and values, and the attention, can run on CPUs alone.

    What shares a group with them otherwise is a group of its own.
    """
    is_tied = tied_to_cache(problem.graph)
    is_cpu = np.array([device.is_cpu for device in problem.cluster.devices])
    if not is_cpu.any():
        raise InputError(
            "--cache-device cpu: expected a cluster with a CPU, such as 1xcpu+1xrtx3090, got "
            f"{kinds_text(problem.cluster)}"
        )
    seconds = problem.compute_time.copy()
    seconds[np.ix_(is_tied, ~is_cpu)] = np.inf
    return divided_problem(problem, is_tied.astype(np.int64), seconds)


def caches(graph: OpGraph) -> NDArray[np.bool_]:
    """Return bool[V], the ops that hold keys and values of earlier tokens."""
    return np.array(
        [
            kind == "buffer" and KEYS_OR_VALUES.fullmatch(name) is not None
            for kind, name in zip(graph.op_types, graph.op_names, strict=True)
        ]
    )


def tied_to_cache(graph: OpGraph) -> NDArray[np.bool_]:
    """Return bool[V], the ops that have to be with a cache of keys and values, and that."""
    is_cache, is_tied = caches(graph), graph.colocation >= 0
    of_caches = np.isin(graph.colocation, graph.colocation[is_cache & is_tied])
    tied: NDArray[np.bool_] = is_cache | (is_tied & of_caches)
    return tied


def _groups(source: Source, options: GroupingOptions) -> dict[str, Any]:
    """Return the grouping, rules and hierarchy of a problem: those that it has, or others."""
    problem, num_groups = source.problem, options.num_groups
    if problem is not None and options == GroupingOptions():
        return {
            "grouping": problem.grouping,
            "rules": problem.rules,
            "hierarchy": problem.hierarchy,
        }
    if problem is not None and num_groups and options == GroupingOptions(num_groups=num_groups):
        for level in problem.levels:
            if level.num_groups == num_groups:
                return {"grouping": level, "rules": problem.rules, "hierarchy": problem.levels}
        if problem.rules is None and num_groups <= problem.num_groups:
            merged = merge_and_colocate(source.graph, problem.grouping, num_groups=num_groups)
            return {"grouping": merged, "rules": None, "hierarchy": None}
    groups, levels = options.levels(source.graph, source.rules, source.num_groups)
    rules = names_of_rules(options.chosen_rules(source.rules))
    return {"grouping": groups, "rules": rules, "hierarchy": levels}


def read_source(text: str, options: ProblemOptions) -> Source:
    """Return the source of a name, with the sizes and devices of the options."""
    return load_source(text, options.choice, options.micro_batches, options.target, options.samples)


def problem_of(source: Source, options: ProblemOptions) -> PlacementProblem:
    """Return the problem of a source, with the devices and groups of the options."""
    if options.shard and not source.copies:
        raise InputError("--shard: needs --copies of at least 2")
    devices, is_given = options.devices, options.gpus or options.gpu_kind
    if devices is None and (is_given or options.link):
        if source.problem is not None and not is_given:
            raise InputError(f"--link: needs --cluster, as {source.name} has its own devices")
        spec = f"{options.gpus or DEFAULT_NUM_GPUS}x{options.gpu_kind or source.kind}"
        devices = parse_cluster(spec, link=options.link)
    division = options.copies
    problem = make_problem(
        source,
        devices,
        options.grouping,
        is_sharded=options.shard,
        devices_of_copies=division.devices if isinstance(division, BatchDivision) else (),
    )
    return options.restrictions.applied(problem)


def options_with_devices(
    options: ProblemOptions, problem: PlacementProblem, added: str
) -> ProblemOptions:
    """Return the options of a problem with more devices, which a text such as +1xv100 names."""
    if not added.startswith("+"):
        raise InputError(f"--what-if: expected devices to add, such as +1xv100, got {added!r}")
    present = options.cluster or kinds_text(problem.cluster)
    if not isinstance(present, str) or Path(present).is_file():
        raise InputError(f"--what-if: needs --cluster as a text such as 1xv100, got {present}")
    described = replace(parse_cluster(present, link=options.link), queue=problem.cluster.queue)
    if problem.cluster not in (described, described.for_collectives):
        raise InputError("--what-if: needs --cluster, as the file describes its own devices")
    with within(f"--what-if {added}: "):
        parse_cluster(present + added, link=options.link)
    return replace(options, cluster=present + added, gpus=None, gpu_kind=None)


def read_problem(
    source: str | os.PathLike[str], cluster: ClusterName | None = None, **options: Any
) -> PlacementProblem:
    """Return the problem of a file or any other source, as ``placeto build`` makes it.

    Parameters
    ----------
    source
        Source of ``placeto build``, such as ``"nmt-2"``, ``"model.gguf"`` or ``"graph.txt"``.
    cluster
        Devices: a spec, a TOML file or a `placeto_graphs.Cluster`; by default those of the source.
    **options
        Options of ``placeto build``: ``link``, ``micro_batches``, ``copies`` (a number, or the
        samples of each), ``shard``, ``gpus``, ``gpu_kind``, and those of `SourceOptions`,
        `GroupingOptions` and `Restrictions`, such as ``sizes={"batch_size": 8}``,
        ``mode="decode"``, ``num_groups`` or
        ``pins=(("encoder", "k80:0"),)``.

    Raises
    ------
    InputError
        If there is no such source, or it has no such options.

    Examples
    --------
    >>> read_problem("nmt:0", cluster="2xv100", num_groups=16)
    PlacementProblem(ops=..., groups=16, devices=2)
    """
    problem_options = ProblemOptions.of(cluster, **options)
    return problem_of(read_source(os.fspath(source), problem_options), problem_options)


def read_training_problems(
    sources: Sequence[str], granularities: int, options: ProblemOptions | None = None
) -> dict[str, PlacementProblem]:
    """Return problems as `read_problem` does, and then the same graphs at other granularities.

    A folder stands for the graph files in it.
    """
    options = options or ProblemOptions()
    files = [text for text, _ in files_of_sources(sources)]
    if not files:
        raise InputError(f"{', '.join(sources)}: expected a file of a graph, got none")
    read_sources = {text: read_source(text, options) for text in files}
    restrictions = options.restrictions
    unrestricted = replace(options, restrictions=Restrictions())
    usual_problems = {
        text: problem_of(source, unrestricted) for text, source in read_sources.items()
    }
    problems = {text: restrictions.applied(problem) for text, problem in usual_problems.items()}
    for text, source in read_sources.items():
        usual = usual_problems[text]
        for count in group_counts(usual.num_groups, granularities)[1:]:
            problem = regrouped(source, usual, count, options.grouping)
            if problem.num_groups != usual.num_groups:
                problem = restrictions.applied(problem, (usual.hierarchy or (usual.grouping,))[-1])
                problems[f"{text} in {problem.num_groups} groups"] = problem
    return problems


def regrouped(
    source: Source,
    problem: PlacementProblem,
    num_groups: int,
    options: GroupingOptions | None = None,
) -> PlacementProblem:
    """Return a problem in another number of groups, by its rules if any, else merged further.

    It is that of the source and the options.
    """
    rules = (options or GroupingOptions()).chosen_rules(source.rules)
    has_rules = source.problem is None or problem.rules is not None
    small = colocate(problem.graph, rules) if has_rules else problem.grouping
    grouping = merge_and_colocate(problem.graph, small, num_groups=num_groups)
    return replace(problem, grouping=grouping, hierarchy=None)


def runnable_source(text: str, choice: SourceOptions) -> SourceModel:
    """Return a model that a user named; what has no model is an `InputError`."""
    if is_graph_file(text):
        raise InputError(f"{text}: expected {WHAT_CAN_RUN}; other sources have no model to run")
    return source_model(text, choice)


def step_on(model: SourceModel, devices: "RealDevices") -> ExecutableStep:
    """Return the step of a model with the kernels of devices, ready to run; results are dropped."""
    from placeto_capture import executable_step  # noqa: PLC0415 (torch takes seconds to import)

    return executable_step(
        **model.make("cpu")._asdict(),
        target=devices.target,
        autocast=model.autocast,
        results=[],
        threads_per_device=devices.threads,
    )


def runnable_problem(
    model: SourceModel,
    options: ProblemOptions,
    devices: "RealDevices",
    problem_file: Path | None = None,
    *,
    is_measured: bool = False,
) -> tuple[PlacementProblem, ExecutableStep]:
    """Return the problem of placing the step of a model, and the step, ready to run.

    On CPUs alone the cluster is by default one of as many. If times are about to be measured, ops
    take none until then, so that devices may be of kinds that no cost model knows.
    """
    if options.gpus or options.gpu_kind:
        raise InputError("--gpus: expected --cluster, whose devices are those of --devices")
    if options.micro_batches != 1 or len(options.samples) > 1:
        raise InputError("--micro-batches, --copies: expected 1, as `placeto run` runs neither")
    problem = None if problem_file is None else load_problem(problem_file)
    if problem is None and options.cluster is None and devices.are_cpus:
        options = replace(options, cluster=f"{len(devices.names)}xcpu")
    cluster = options.devices if problem is None else problem.cluster
    if cluster is None:
        raise InputError(f"--cluster: expected one with the kinds of {', '.join(devices.names)}")
    if cluster.num_devices != len(devices.names):
        raise InputError(
            f"--devices: expected {cluster.num_devices}, one for each of "
            f"{', '.join(cluster.device_names)}, got {len(devices.names)}"
        )
    step = step_on(model, devices)
    if problem is None:
        graph = step.graph
        if is_measured:
            no_time = {device.kind: np.zeros(graph.num_ops) for device in cluster.devices}
            graph = replace(graph, measured_time=no_time)
        source = Source(model.name, graph, rules=model.rules, num_groups=model.num_groups)
        return problem_of(source, options), step
    if replace(problem.graph, measured_time={}) != replace(step.graph, measured_time={}):
        raise InputError(
            f"{problem_file}: expected a problem of the graph of {model.name} with these sizes on "
            f"these devices, {step.graph!r}, got {problem.graph!r}"
        )
    return problem, step
