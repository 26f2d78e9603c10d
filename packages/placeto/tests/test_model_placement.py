"""`placeto.place`: from a model to a placement, and on to other libraries, in Python."""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils.modeling import check_device_map
from numpy.typing import NDArray
from torch import nn

import placeto
from dispatched_models import dispatch_on_cpu, forward_on_fake_gpus
from exported_models import Chain, Mixed, Residual, features, mean_square
from placeto import ModelPlacement
from placeto.errors import InputError
from placeto_capture import capture
from placeto_simulator import Simulator

quick_place = partial(placeto.place, seconds=0.1, quiet=True)


@pytest.fixture(scope="module")
def placed() -> ModelPlacement:
    return placeto.place(
        Mixed(), features(4, 3), mean_square, cluster="2xv100", seconds=0.2, quiet=True
    )


def elsewhere(placed: ModelPlacement, placement: NDArray[np.int32]) -> ModelPlacement:
    return replace(placed, result=replace(placed.result, placement=placement))


def drawn(placed: ModelPlacement, seed: int) -> ModelPlacement:
    generator = np.random.default_rng(seed)
    return elsewhere(placed, generator.integers(0, 2, placed.problem.num_groups, np.int32))


def test_what_was_found_is_what_the_simulator_says(placed: ModelPlacement) -> None:
    batch = Simulator(placed.problem).evaluate(placed.placement[None])
    assert placed.lower_bound <= placed.runtime == batch.runtime[0] == placed.timeline().runtime
    assert list(placed.peak_memory) == ["v100:0", "v100:1"]
    assert list(placed.peak_memory.values()) == batch.peak_memory[0].tolist()
    assert placed.fits
    assert repr(placed).startswith("ModelPlacement(Mixed on v100:0, v100:1: ")


def test_each_module_and_each_parameter_has_its_devices(placed: ModelPlacement) -> None:
    ops = drawn(placed, 4)
    names, graph = ops.problem.cluster.device_names, ops.problem.graph
    of_ops = [names[device] for device in ops.problem.expand(ops.placement)]
    device = dict(zip(graph.op_names, of_ops, strict=True))
    model = Mixed()
    assert ops.devices_of_parameters == {
        name: device[name.replace("last.weight", "first.weight")]
        for name, _ in model.named_parameters(remove_duplicate=False)
    }
    modules = ops.devices_of_modules
    assert modules.keys() <= dict(model.named_modules()).keys()
    for block in range(3):
        rows = zip(of_ops, graph.scopes, graph.phases, strict=True)
        inside = {at for at, scope, phase in rows if scope[:8] == f"blocks.{block}" and phase == 0}
        assert set(modules[f"blocks.{block}"]) == inside
    assert modules[""] == names


def test_a_group_is_explained_as_in_the_shell(placed: ModelPlacement) -> None:
    name = placed.problem.grouping.group_names[0]
    explained = placed.explain(name)
    assert explained.group == name
    current_row = next(row for row in explained.devices if row.device == explained.device)
    assert current_row.alone == explained.cost == explained.runtime == placed.runtime
    with pytest.raises(InputError, match=r"^GROUP: expected a group .* got 'nothing'$"):
        placed.explain("nothing")


def test_forms_are_priced_as_the_placement_was_and_a_loss_is_no_module_of_them() -> None:
    target = torch.zeros(4, 2)
    placed = quick_place(
        Chain(),
        features(4),
        lambda outputs: (outputs - target).square().mean(),
        cluster="2xv100",
        evaluator="throughput",
    )
    assert placed.device_map().price.runtime_as_placed == placed.runtime < placed.timeline().runtime
    module_names = {name for name, _ in Chain().named_modules()}
    for seed in range(3):
        assert drawn(placed, seed).device_map().modules.keys() <= module_names


def test_steps_run_on_devices_of_this_machine(placed: ModelPlacement) -> None:
    measured = drawn(placed, 0).run(["cpu:0", "cpu:1"], steps=3)
    assert len(measured.runtimes) == 3
    assert set(np.unique(measured.typical.op_device)) == {0, 1}
    with pytest.raises(InputError, match=r"^devices: expected 2, one for each of v100:0, v100:1"):
        placed.run(["cpu:0"])


def test_copies_divide_the_first_dimension_of_inputs(tmp_path: Path) -> None:
    place = partial(quick_place, Mixed(), features(8, 3), mean_square, cluster="2xv100")
    placed = place(copies=[3, 1])
    assert placed.copies is not None
    assert placed.copies.parts == (3, 1)
    for copy, samples in enumerate((6, 2)):
        captured = capture(Mixed(), features(samples, 3), loss_fn=mean_square)
        ops = slice(copy * captured.num_ops, (copy + 1) * captured.num_ops)
        assert placed.problem.graph.flops[ops].tolist() == captured.flops.tolist()
    assert placed.devices_of_parameters.keys() == {
        f"{name}#{copy}"
        for name, _ in Mixed().named_parameters(remove_duplicate=False)
        for copy in "01"
    }
    placed.export(tmp_path / "copies.py", "torch")
    assert re.search(r"PARTS = \[(3, 1|1, 3)\]", (tmp_path / "copies.py").read_text())
    of_one_copy: list[Callable[[], object]] = [
        placed.device_map,
        placed.pipeline_stages,
        lambda: placed.run(["cpu:0", "cpu:1"]),
    ]
    for call in of_one_copy:
        with pytest.raises(InputError, match=r"one copy of the model, .* got 2; export"):
            call()
    with pytest.raises(InputError, match=r"divides the batch size 8 of Mixed, .* got 3$"):
        place(copies=3)
    with pytest.raises(InputError, match="expected example inputs with a dimension of samples"):
        quick_place(nn.Linear(1, 1), (), cluster="2xv100", copies=2)
    with pytest.raises(InputError, match="expected 1 in mode 'inference', got 2"):
        place(copies=2, mode="inference", optimizer=None)
    with pytest.raises(InputError, match="shard: expected several copies"):
        place(shard=True)
    with pytest.raises(InputError, match="shard: expected a search"):
        place(copies="auto", shard=True, placer="heft")
    with pytest.raises(InputError, match="shard: expected a training step"):
        place(copies="auto", shard=True, cluster="1xv100")


def test_copies_are_chosen_if_they_are_fastest() -> None:
    """A step takes seconds, and the sum of gradients milliseconds."""
    model = nn.Sequential(nn.Linear(2**12, 2**12))
    inputs = torch.ones(2**17, 2**12, device="meta")
    place = partial(placeto.place, model, inputs, cluster="2xk80", max_evaluations=20, quiet=True)
    one, chosen, sharded = place(), place(copies="auto"), place(copies="auto", shard=True)
    assert one.copies is None
    assert chosen.copies is not None
    assert chosen.copies.parts == (1, 1)
    assert chosen.runtime < 0.6 * one.runtime
    assert sharded.copies is not None
    assert sharded.copies.layers


def test_files_are_those_of_the_shell(placed: ModelPlacement, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    placed.export(path, "accelerate")
    assert json.loads(path.read_text()) == placed.device_map().modules
    with pytest.raises(InputError, match="exists; --force"):
        placed.export(path, "accelerate")
    placed.export(path, "accelerate", force=True)
    with pytest.raises(InputError, match=r"^to: expected torch, or another of accelerate, "):
        placed.export(path, "torhc")


class Renamed(nn.Module):
    """A model with several names for a module, and for a weight of one that computes nothing."""

    offset: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.blocks = nn.ModuleList([Residual(), nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))])
        self.also = self.blocks
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.first.weight
        self.unread = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.ones(8))
        self.register_buffer("mask", torch.ones(8), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features [batch, 8]."""
        features = self.first(features) * self.mask
        for block in self.blocks:
            features = block(features)
        return features + self.offset


@pytest.mark.parametrize("seed", range(3))
def test_a_device_map_covers_every_name_of_a_parameter_and_a_buffer(
    seed: int, tmp_path: Path
) -> None:
    model, inputs = Renamed().eval(), features(4)
    drawn_placement = drawn(quick_place(model, inputs, cluster="2xv100"), seed)
    drawn_placement.export(tmp_path / "map.json", "accelerate")
    modules = json.loads((tmp_path / "map.json").read_text())
    with warnings.catch_warnings():  # of weights that are directly in the model
        warnings.filterwarnings("ignore", "The following device_map keys do not match")
        check_device_map(model, modules)
    names = [*model.state_dict(), "mask"]
    of_name = {}
    for name in names:
        prefixes = [key for key in modules if f"{name}.".startswith(f"{key}.") or not key]
        of_name[name] = modules[max(prefixes, key=len)]
    assert of_name["tied.weight"] == of_name["first.weight"]
    for name in names:
        if name.startswith("blocks."):
            assert of_name[name.replace("blocks", "also")] == of_name[name]
    expected = model(inputs)
    dispatch_on_cpu(model, modules)
    torch.testing.assert_close(model(inputs), expected)
    forward_on_fake_gpus(model, modules, drawn_placement.device_map().main_device, [inputs])


def test_one_device_is_one_stage(placed: ModelPlacement) -> None:
    everything = elsewhere(placed, np.ones_like(placed.placement))
    stages = everything.pipeline_stages()
    assert (stages.split_points, stages.devices) == ((), ("v100:1",))
    assert everything.device_map().modules == {"": 1}


def test_autocast_around_the_call_and_other_arguments_are_those_of_the_step() -> None:
    model, batch = nn.Linear(8, 4), torch.ones(2, 8)
    settings: dict[str, Any] = {"mask_fraction": 0.5, "mode": "inference", "updates": "as-ready"}
    settings |= {"parameter_bytes": {"weight": 16}, "experts_per_token": 2}
    from_argument = quick_place(model, batch, cluster="2xcpu", autocast=torch.bfloat16, **settings)
    assert {name: getattr(from_argument.step, name) for name in settings} == settings
    with torch.autocast("cpu", torch.bfloat16):
        from_context = quick_place(model, batch, cluster="2xcpu", **settings)
    assert from_argument.problem.graph == from_context.problem.graph
    product = from_argument.problem.graph.op_types.index("aten.addmm")
    assert from_argument.problem.graph.dtype[product] == "bfloat16"
    assert len(from_context.run(["cpu:0", "cpu:1"], steps=1).runtimes) == 1
