"""Copies in the files of libraries: which processes there are, and what they share."""

import ast
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from exported_models import Chain, Mixed, features, problem_of_ops
from placeto.errors import InputError
from placeto.exporting.copies import copied_stages
from placeto.exporting.formats import FORMATS
from placeto.placing.evaluators import STEP
from placeto_graphs import PlacementProblem, copied, sharded
from placeto_simulator import Simulator


def on_devices(problem: PlacementProblem, devices: list[list[int]]) -> NDArray[np.int32]:
    """Return each copy on a device, or with blocks.1 and what follows on its second one."""
    of_ops = []
    for name, scope in zip(problem.graph.op_names, problem.graph.scopes, strict=True):
        of_copy = devices[int(name.rpartition("#")[2])]
        is_late = scope.startswith(("blocks.1", "blocks.2", "last", "loss"))
        of_ops.append(of_copy[-1] if is_late else of_copy[0])
    return problem.placement_of_ops(np.array(of_ops, np.int32))


def constants(content: str) -> dict[str, Any]:
    """Return what a file assigns."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(content).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def test_ranks_are_those_of_devices_by_machine() -> None:
    whole = problem_of_ops(Chain(), features(8), "2x(2xv100)")
    problem = copied([whole] * 3, machines=[1, 0, 1])
    placement = on_devices(problem, [[3], [1], [2]])
    exported = FORMATS["torch"].export(problem, placement, STEP)
    expected = {"MESH": [0, 1, 2], "PARTS": [1, 1, 1], "SHARD": False, "UNITS": []}
    names = [problem.cluster.device_names[device] for device in (1, 2, 3)]
    values = constants(exported.content)
    assert values == expected | {"DEVICES": names, "BUCKET_MB": None, "RESHARD": True}
    assert exported.details == {name.lower(): value for name, value in values.items()}
    first, second = problem.cluster.machine_names
    nodes = f"--nnodes 2 --node-rank 0 --master-addr {first} train.py"
    assert exported.remarks[2:] == (
        f"on {first}: CUDA_VISIBLE_DEVICES=1 torchrun --nproc-per-node 1 {nodes}",
        f"on {second}: torchrun --nproc-per-node 2 {nodes.replace('rank 0', 'rank 1')}",
    )
    assert exported.price is not None
    simulated = Simulator(problem, num_threads=1).runtimes(placement[None])[0]
    assert exported.price.runtime == pytest.approx(simulated)


def test_parts_are_in_the_order_of_ranks() -> None:
    problems = [problem_of_ops(Chain(), features(count), "2xv100") for count in (6, 2)]
    problem = copied(problems)
    exported = FORMATS["torch"].export(problem, on_devices(problem, [[1], [0]]), STEP)
    assert constants(exported.content)["PARTS"] == [1, 3]


@pytest.mark.parametrize("within_machines", [False, True])
def test_units_are_modules_whose_weights_no_other_module_reads(within_machines: bool) -> None:
    """The model has a weight of its own, tied ones, and attention that reads those of a module."""
    whole = problem_of_ops(Mixed(), features(8, 3), "2x(2xv100)")
    problem = sharded([whole] * 4, machines=[0, 0, 1, 1], within_machines=within_machines)
    placement = on_devices(problem, [[0], [1], [2], [3]])
    values = constants(FORMATS["torch"].export(problem, placement, STEP).content)
    assert values["MESH"] == ([[0, 1], [2, 3]] if within_machines else [0, 1, 2, 3])
    assert values["SHARD"]
    assert values["RESHARD"]
    modules = dict(Mixed().named_modules())
    assert set(values["UNITS"]) <= modules.keys()
    assert {"blocks.0", "blocks.1", "blocks.2", "norm"} <= set(values["UNITS"])
    assert not {"first", "last", "position", "attention.out_proj"} & set(values["UNITS"])


def test_copies_in_stages_have_a_row_of_ranks_each() -> None:
    whole = problem_of_ops(Chain(), features(8), "4xv100")
    problem = copied([whole] * 2)
    placement = on_devices(problem, [[0, 1], [3, 2]])
    exported = FORMATS["torch"].export(problem, placement, STEP)
    assert ", each of 2 stages with 1, 3 layers, on " in exported.remarks[0]
    assert exported.remarks[0].endswith(": as placed")
    values = constants(exported.content)
    assert values["MESH"] == [[0, 1], [3, 2]]
    assert values["SPLIT_POINTS"] == ["blocks.1"]
    assert "def placed_stage(" in exported.content


def test_copies_get_equal_stages_or_a_device_each() -> None:
    """One copy is placed in two stages; PyTorch sums over processes with the same weights."""
    whole = problem_of_ops(Chain(), features(8), "3xv100")
    problem = copied([whole] * 2)
    placement = on_devices(problem, [[0, 1], [2]])
    split, price = copied_stages(problem, placement, STEP)
    assert split.devices.tolist() in ([[0], [2]], [[1], [2]])
    assert not split.as_placed
    alone = on_devices(problem, split.devices.tolist())
    simulated = Simulator(problem, num_threads=1).runtimes(alone[None])[0]
    assert price.runtime == pytest.approx(simulated)


def test_stages_of_one_copy_are_those_of_all() -> None:
    """The first copy has blocks.1 and what follows on its second device, the other one blocks.2."""
    whole = problem_of_ops(Chain(), features(8), "4xv100")
    problem = copied([whole] * 2)
    placement = on_devices(problem, [[0, 1], [2, 3]])
    moved = np.flatnonzero(
        [name.endswith("#1") for name in problem.graph.op_names]
        & np.array([scope.startswith("blocks.1") for scope in problem.graph.scopes])
    )
    of_ops = problem.expand(placement)
    of_ops[moved] = 2
    split, _ = copied_stages(problem, problem.placement_of_ops(of_ops), STEP)
    assert not split.as_placed
    assert split.devices.tolist() in ([[0, 1], [2, 3]], [[0], [2]], [[1], [2]], [[0], [3]])


def test_what_cannot_be_exported_is_refused() -> None:
    whole = problem_of_ops(Chain(), features(8), "2x(2xv100)")
    shared = copied([whole] * 2)
    with pytest.raises(InputError, match=r"PLACEMENT: expected devices of its own for each copy"):
        FORMATS["torch"].export(shared, on_devices(shared, [[1], [1]]), STEP)
    unequal = sharded([whole] * 2, parts=[3, 1])
    with pytest.raises(InputError, match=r"equal parts of the weights of each copy, got 7\d:2\d"):
        FORMATS["torch"].export(unequal, on_devices(unequal, [[0], [1]]), STEP)
    six = problem_of_ops(Chain(), features(8), "2x(3xv100)")
    hybrid = sharded([six] * 4, machines=[0, 0, 1, 1], within_machines=True)
    with pytest.raises(InputError, match=r"as many copies in each machine, got 3, 1"):
        FORMATS["torch"].export(hybrid, on_devices(hybrid, [[0], [1], [2], [3]]), STEP)
    for form in ("accelerate", "deepspeed"):
        one_machine = copied([problem_of_ops(Chain(), features(8), "2xv100")] * 2)
        placement = on_devices(one_machine, [[0], [1]])
        with pytest.raises(InputError, match=r"expected one copy of the model, as .*, got 2"):
            FORMATS[form].export(one_machine, placement, STEP)
    with pytest.raises(InputError, match="expected copies, got one step"):
        FORMATS["deepspeed-zero"].export(whole, np.zeros(whole.num_groups, np.int32), STEP)


@pytest.mark.parametrize(("keep_weights", "stage"), [(None, 0), (True, 2), (False, 3)])
def test_deepspeed_has_a_stage_of_zero(keep_weights: bool | None, stage: int) -> None:
    whole = problem_of_ops(Chain(), features(8), "2xv100")
    problem = copied([whole] * 2)
    if keep_weights is not None:
        problem = sharded([whole] * 2, keep_weights=keep_weights)
    exported = FORMATS["deepspeed-zero"].export(problem, on_devices(problem, [[0], [1]]), STEP)
    config = json.loads(exported.content)
    assert config["zero_optimization"]["stage"] == stage
    assert config["gradient_accumulation_steps"] == 1
    if stage:
        numbers = [sum(map(torch.numel, block.parameters())) for block in Chain().blocks]
        assert config["zero_optimization"]["reduce_bucket_size"] == max(numbers)
