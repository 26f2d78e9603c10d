"""Copies of a model, for a training script of PyTorch (`torchrun`) or DeepSpeed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from placeto.errors import InputError
from placeto.exporting.copies import CopiedStages, copied_stages
from placeto.exporting.forms import (
    Exported,
    ModuleScopes,
    Placement,
    gpus_of_machines,
    is_within,
)
from placeto.exporting.layers import check_torch_stages
from placeto.outputs import json_text
from placeto.placing.evaluators import EvaluatorSpec
from placeto_baselines.search.layers import path_of
from placeto_graphs import Cluster, OpGraph, Phase, PlacementProblem
from placeto_graphs.copies.collectives import GATHER

MEBIBYTE = 2**20
BYTES_PER_NUMBER = 4
ROUNDED = 1.01  # what equal parts of the weights differ by at most
HEAD = '"""Copies of a model, for a training script that torchrun starts."""\n\n'
COMMENTS = {
    "DEVICES": "of ranks",
    "MESH": "of ranks",
    "PARTS": "of the batch, of each copy, in relation to those of the others",
    "SHARD": "whether copies divide weights, gradients and optimizer state",
    "UNITS": "modules that fully_shard gathers one by one",
    "RESHARD": "whether weights are gathered again for the backward pass",
    "MICRO_BATCHES": "of each copy",
    "BUCKET_MB": "of gradients; None for those of DistributedDataParallel",
}


def torchrun(problem: PlacementProblem, placement: Placement, evaluator: EvaluatorSpec) -> Exported:
    """Return what a script needs of copies, and `placed_stages` if they have several stages."""
    split, price = copied_stages(problem, placement, evaluator)
    graph, cluster, copies = problem.graph, problem.cluster, split.copies
    _check_weights(graph, split)
    ranks = np.unique(split.devices)
    ranks = ranks[np.argsort(cluster.machine[ranks], kind="stable")]
    names = [cluster.device_names[device] for device in ranks]
    rank_of_device = {device: rank for rank, device in enumerate(ranks.tolist())}
    rows = [[rank_of_device[device] for device in row] for row in split.devices.tolist()]
    order = sorted(range(copies.count), key=rows.__getitem__)
    values: dict[str, Any] = {
        "DEVICES": names,
        "MESH": [rows[copy] for copy in order],
        "PARTS": [copies.parts[copy] for copy in order],
        "SHARD": bool(copies.layers),
        "BUCKET_MB": copies.bucket_bytes and copies.bucket_bytes / MEBIBYTE,
    }
    content = HEAD
    if split.num_stages > 1:
        if copies.within_machines:
            raise InputError(
                "PROBLEM: expected copies that divide weights among all, as each has several "
                "stages, got weights divided within machines"
            )
        check_torch_stages(ModuleScopes(graph), split.stage_of_op)
        values["MICRO_BATCHES"] = num_micro_batches(graph)
        content = Path(__file__).with_name("placed_stages.py").read_text()
        content = content.replace("DEVICES: list[str] = []  # of the stages\n", _text(values), 1)
        points = f"SPLIT_POINTS = {json_text(split.split_points, 0)}"
        content = content.replace("SPLIT_POINTS: list[str] = []", points, 1)
    else:
        values["MESH"] = _mesh_of_machines(cluster, split, ranks.tolist())
        values["UNITS"] = _units(graph, split)
        values["RESHARD"] = not copies.keeps_weights
        content += _text(values)
    details = {name.lower(): value for name, value in values.items()}
    remarks = (_copies_text(split, names), price.remark, *_commands(cluster, names))
    return Exported(content, remarks, price, details, split.op_devices)


def deepspeed_zero(
    problem: PlacementProblem, placement: Placement, evaluator: EvaluatorSpec
) -> Exported:
    """Return the JSON of ``deepspeed.initialize`` for copies, each on a device, of equal parts."""
    split, price = copied_stages(problem, placement, evaluator)
    copies = split.copies
    _check_weights(problem.graph, split)
    if split.num_stages > 1 or copies.within_machines or len(set(copies.parts)) > 1:
        raise InputError(
            "PROBLEM: expected copies with equal parts of the batch, each on one device, and "
            "weights divided among all, as ZeRO has them; export these with --to torch"
        )
    is_gathered = np.array([kind == GATHER for kind in problem.graph.op_types])
    largest = problem.graph.bytes_accessed[is_gathered].max() // (2 * BYTES_PER_NUMBER)
    zero: dict[str, object] = {"stage": 0}
    if copies.layers:
        zero = {"stage": 2 if copies.keeps_weights else 3, "overlap_comm": True}
        zero["reduce_bucket_size"] = int(largest)
        if not copies.keeps_weights:
            zero["stage3_prefetch_bucket_size"] = int(largest)
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": num_micro_batches(problem.graph),
        "zero_optimization": zero,
    }
    names = [problem.cluster.device_names[device] for device in split.devices.ravel()]
    remarks = (_copies_text(split, names), price.remark)
    return Exported(json_text(config) + "\n", remarks, price, config, split.op_devices)


def num_micro_batches(graph: OpGraph) -> int:
    """Return the number of micro-batches of a step; 1 if it is not in micro-batches."""
    return max(int(graph.micro_batch.max()) + 1, 1)


def _check_weights(graph: OpGraph, split: CopiedStages) -> None:
    """Refuse unequal parts of the weights, which no library divides so."""
    if split.copies.layers:
        weights = np.bincount(split.copies.copy_of_op, graph.parameter_bytes)
        if weights.max() > ROUNDED * weights.min():
            parts = ":".join(f"{part:.0f}" for part in 100 * weights / weights.sum())
            raise InputError(
                f"PROBLEM: expected equal parts of the weights of each copy, got {parts}"
            )


def _mesh_of_machines(cluster: Cluster, split: CopiedStages, devices: list[int]) -> list[Any]:
    """Return the ranks of copies, in a row for each machine if each machine has all weights."""
    if not split.copies.within_machines:
        return list(range(len(devices)))
    counts = np.bincount(cluster.machine[devices])
    counts = counts[counts > 0]
    if len(set(counts.tolist())) > 1:
        raise InputError(
            "PLACEMENT: expected as many copies in each machine, got "
            + ", ".join(map(str, counts.tolist()))
        )
    mesh: list[Any] = np.arange(len(devices)).reshape(len(counts), -1).tolist()
    return mesh


def _units(graph: OpGraph, split: CopiedStages) -> list[str]:
    """Return the layers to shard one by one: modules whose weights no other module reads.

    The others belong to the whole model, which is sharded last. Inner modules come first.
    """
    modules = {module for scope in graph.scopes for module in path_of(scope)[1:]}
    units = [layer for layer in split.copies.layers if layer in modules]
    is_gather = np.array([kind == GATHER for kind in graph.op_types])
    reads = is_gather[graph.edge_producers] & ~is_gather[graph.edge_consumers]
    reads &= graph.phases[graph.edge_consumers] == Phase.FORWARD
    reads &= split.copies.copy_of_op[graph.edge_consumers] == 0
    for gather, reader in zip(
        graph.edge_producers[reads].tolist(), graph.edge_consumers[reads].tolist(), strict=True
    ):
        layer = graph.op_names[gather].removeprefix(f"{GATHER}/forward/").rpartition("#")[0]
        layer = layer.removesuffix("/machines")
        if layer in units and not is_within(graph.scopes[reader], layer):
            units.remove(layer)
    return sorted(units, key=lambda unit: -unit.count("."))


def _text(values: Mapping[str, Any]) -> str:
    """Return the assignments of constants in Python."""
    lines = []
    for name, value in values.items():
        literal = json_text(value, 0) if isinstance(value, list) else repr(value)
        lines.append(f"{name} = {literal}  # {COMMENTS[name]}\n")
    return "".join(lines)


def _copies_text(split: CopiedStages, names: list[str]) -> str:
    parts = split.copies.parts
    text = f"{split.copies.count} copies"
    if len(set(parts)) > 1:
        text += f" with {':'.join(map(str, parts))} of the batch"
    if split.num_stages > 1:
        text += (
            f", each of {split.num_stages} stages with {', '.join(map(str, split.sizes))} layers"
        )
    origin = "as placed" if split.as_placed else "the best split found"
    return f"{text}, on {', '.join(names)}: {origin}"


def _commands(cluster: Cluster, names: list[str]) -> list[str]:
    """Return the command of each machine."""
    devices = [cluster.device_names.index(name) for name in names]
    machines = dict.fromkeys(cluster.machine[devices].tolist())
    gpus = gpus_of_machines(cluster, devices)
    commands = []
    for rank, machine in enumerate(machines):
        name = cluster.machine_names[machine]
        count = int((cluster.machine[devices] == machine).sum())
        numbers = gpus.get(name, [])
        command = f"torchrun --nproc-per-node {count}"
        if len(machines) > 1:
            first = cluster.machine_names[next(iter(machines))]
            command += f" --nnodes {len(machines)} --node-rank {rank} --master-addr {first}"
        if numbers != list(range(len(numbers))):
            command = f"CUDA_VISIBLE_DEVICES={','.join(map(str, numbers))} {command}"
        where = f"on {name}: " if len(machines) > 1 else ""
        commands.append(f"{where}{command} train.py")
    return commands
