"""Layers that run one after another: what vLLM and DeepSpeed read in what is exported."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations, product
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from exported_models import Composite, features, problem_of_ops
from layer_models import Block, Decoder, by_layer, decoder, inference, placed
from placeto.errors import InputError
from placeto.exporting.formats import FORMATS
from placeto.exporting.forms import ModuleScopes
from placeto.exporting.layers import ModelChain, layer_split, pipeline_stages
from placeto.placing.costs import costs
from placeto.placing.evaluators import STEP, THROUGHPUT, EvaluatorSpec
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_baselines import Stages
from placeto_baselines.search import chains
from placeto_baselines.search.chains import fastest_stages
from placeto_baselines.search.layers import layer_stacks
from placeto_capture import capture
from placeto_graphs import (
    EvaluationBatch,
    PlacementProblem,
    colocate,
    colocate_by_id,
    parse_cluster,
    placement_ranks,
)
from placeto_simulator import Simulator, ThroughputEvaluator
from placeto_workloads import library_step
from small_transformers import SMALL


def small(name: str) -> tuple[PlacementProblem, nn.Module]:
    """A small model of transformers, in which ops are apart that can be."""
    step = library_step(f"transformers:{name}", batch_size=1, sequence_length=4, **SMALL[name])
    graph = capture(step.model.eval(), step.example_inputs, mode="inference")
    problem = make_problem(Source(name, graph), parse_cluster("2xv100"))
    apart = replace(problem, grouping=colocate(graph, [colocate_by_id]), hierarchy=None)
    return apart, step.model


FOUR_LAYERS = decoder(8, 400, 8, 60)
FACTORS = st.lists(st.sampled_from([1.0, 3.0, 10.0]), min_size=3, max_size=3)


def test_layers_of_a_sequence_are_a_stack_without_a_name() -> None:
    plain = problem_of_ops(nn.Sequential(*map(Block, (8, 4))), features(4), "2xv100")
    assert layer_stacks(ModuleScopes(plain.graph)) == {"": ("0", "1")}


TWICE = [nn.Linear(8, 8), nn.Linear(8, 8)]


def of_features(model: nn.Module) -> PlacementProblem:
    return inference(model, features(4), "2xv100")


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: small("t5")[0], r"one, got encoder\.block \(2\), decoder\.block \(2\)$"),
        (
            lambda: of_features(Composite("twice", TWICE)),
            r"but parts\.0 reads what parts\.1 makes$",
        ),
        (lambda: of_features(nn.Linear(8, 8)), "expected ops whose scopes are names of modules"),
    ],
)
def test_what_is_no_stack_is_one_line(build: Callable[[], PlacementProblem], error: str) -> None:
    problem = build()
    everywhere = np.zeros(problem.num_groups, np.int32)
    with pytest.raises(InputError, match=error):
        FORMATS["vllm"].export(problem, everywhere, STEP)


def all_stages(layers: int, devices: range) -> list[Stages]:
    """Every way to cut layers into stages on different devices."""
    return [
        Stages((0, *cuts, layers), order)
        for count in range(1, min(layers, len(devices)) + 1)
        for order in permutations(devices, count)
        for cuts in product(range(1, layers), repeat=count - 1)
        if all(cut < later_cut for cut, later_cut in pairwise(cuts))
    ]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_stages_are_the_fastest_with_each_set_of_devices_and_last_one(data: st.DataObject) -> None:
    layers, devices = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    seconds = generator.integers(1, 9, (devices, layers)).astype(float)
    if data.draw(st.booleans()):
        seconds[0, generator.integers(layers)] = np.inf
    transfer = generator.integers(0, 4, (devices, devices, layers + 1)).astype(float)
    load = np.full((devices, layers + 1, layers + 1), np.inf)
    for device, begin in product(range(devices), range(layers)):
        load[device, begin, begin + 1 :] = np.cumsum(seconds[device, begin:])

    def cost(stages: Stages) -> float:
        between = zip(stages.devices, stages.devices[1:], stages.bounds[1:], strict=False)
        layer_seconds = [seconds[device] for device in stages.device_of_layer()]
        moved = [transfer[source, to, cut] for source, to, cut in between]
        return float(sum(row[layer] for layer, row in enumerate(layer_seconds)) + sum(moved))

    best: dict[tuple[frozenset[int], int], float] = {}
    for stages in all_stages(layers, range(devices)):
        ends = frozenset(stages.devices), stages.devices[-1]
        best[ends] = min(best.get(ends, np.inf), cost(stages))
    fastest = fastest_stages(load, transfer, range(devices))
    assert [paid for paid, _ in fastest] == sorted(
        cost_of_ends for cost_of_ends in best.values() if cost_of_ends < np.inf
    )
    assert [paid for paid, _ in fastest] == [cost(stages) for _, stages in fastest]
    # Equal devices are taken in their order; of many only the most promising sets are followed.
    load[:], transfer[:] = load[-1], transfer[0, 0]
    every = fastest_stages(load, transfer, range(devices))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "BEAM", 1)
        alike = fastest_stages(load, transfer, [0] * devices)
    assert [stages.devices[-1] for _, stages in alike] == [len(s.devices) - 1 for _, s in alike]
    assert {paid for paid, _ in alike} == {paid for paid, _ in every}


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_split_is_the_fastest_one_by_the_simulator(data: st.DataObject) -> None:
    """Each layer takes some time on each device, and each device has some memory."""
    problem = FOUR_LAYERS
    factor = np.ones((problem.graph.num_ops, 3))
    for layer, row in enumerate(data.draw(st.lists(FACTORS, min_size=4, max_size=4))):
        inside = [f"{scope}.".startswith(f"layers.{layer}.") for scope in problem.graph.scopes]
        factor[inside] = row
    bytes_of_all = int(problem.graph.parameter_bytes.sum())
    memory = data.draw(st.lists(st.sampled_from([0.3, 0.6, 2.0]), min_size=3, max_size=3))
    devices = tuple(
        replace(device, memory_bytes=int(size * bytes_of_all))
        for device, size in zip(problem.cluster.devices, memory, strict=True)
    )
    problem = replace(
        problem,
        compute_time=problem.compute_time * factor,
        cluster=replace(problem.cluster, devices=devices),
    )
    placement = np.arange(problem.num_groups, dtype=np.int32) % 3
    split = layer_split(problem, placement, range(3))
    every = [
        by_layer(problem, stages.device_of_layer().tolist()) for stages in all_stages(4, range(3))
    ]
    ops = replace(problem, grouping=colocate(problem.graph, []), hierarchy=None)
    price = Simulator(ops).evaluate(split.op_devices[None])
    memory_bytes = problem.cluster.memory_bytes
    [(lacks_memory, cost)] = placement_ranks(price, memory_bytes)
    best = min(placement_ranks(Simulator(problem).evaluate(np.stack(every)), memory_bytes))
    assert not split.as_placed
    assert split.price.runtime == pytest.approx(price.runtime[0])
    assert split.price.peak_memory == pytest.approx(price.peak_memory[0])
    assert lacks_memory == best[0]
    assert cost <= 1.02 * best[1]


@pytest.mark.parametrize("form", ["torch", "vllm", "deepspeed", "llama.cpp"])
def test_a_pipeline_stays_one_where_a_form_cannot_have_it_as_placed(form: str) -> None:
    """One step is fastest on one device, many are on both; layers in turn are no stages."""
    problem = decoder(400, 400, 400, 400, cluster="2xv100")
    placement = by_layer(problem, [0, 1, 0, 1])
    splits = [stages.device_of_layer().tolist() for stages in all_stages(4, range(2))]
    every = np.stack([by_layer(problem, devices) for devices in splits])
    loads = ThroughputEvaluator(problem).loads(every).max(axis=1)
    assert 1.7 * loads.min() < loads.max()
    exported = FORMATS[form].export(problem, placement, THROUGHPUT)
    assert exported.price is not None
    assert len(exported.details["devices"]) == 2  # type: ignore[arg-type]
    # llama.cpp has what runs between two layers with the output.
    assert exported.price.runtime <= (1.4 if form == "llama.cpp" else 1.02) * loads.min()
    placed_load = ThroughputEvaluator(problem).loads(placement[None]).max()
    assert exported.price.runtime_as_placed == pytest.approx(placed_load)
    assert exported.remarks[1].startswith("Time per sample: ")
    if form != "llama.cpp":
        price = FORMATS[form].export(problem, placement, STEP).price
        assert price is not None
        assert price.runtime <= 1.02 * costs(Simulator(problem), every).min()


def test_a_stage_that_gains_nothing_is_not_made() -> None:
    """All placements cost the same."""
    problem = decoder(400, 400, 400, 400, cluster="2xv100")

    def constant(problem: PlacementProblem, _num_threads: int | None) -> Any:
        def evaluate(rows: NDArray[np.int32]) -> EvaluationBatch:
            return replace(Simulator(problem).evaluate(rows), runtime=np.ones(len(rows)))

        return SimpleNamespace(problem=problem, evaluate=evaluate)

    spec = EvaluatorSpec("constant", "cost", constant)
    split = layer_split(problem, by_layer(problem, [0, 1, 0, 1]), range(2), spec, "a library")
    assert split.stages.sizes == (4,)


def test_a_tied_weight_is_on_the_devices_of_both_ends() -> None:
    (first, second), (tied_first, tied_second) = (
        [
            layer_split(problem, by_layer(problem, devices), range(3), library="a library").price
            for devices in ([0, 1], [1, 1])
        ]
        for problem in (decoder(8, 8), decoder(8, 8, tied=True))
    )
    assert first == tied_first
    assert second.peak_memory[1] - tied_second.peak_memory[1] == 4 * 20 * 8


# --- what libraries read -------------------------------------------------------------------------


def vllm_partition(line: str, num_layers: int) -> tuple[list[int], list[int] | None]:
    """Read a command as a shell and vLLM do; return the layers of each rank, and its GPU."""
    words = shlex.split(line)
    variables = {}
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    assert words[:3] == ["vllm", "serve", "MODEL"]
    ranks = int(words[words.index("--pipeline-parallel-size") + 1])
    partition = [int(layers) for layers in variables["VLLM_PP_LAYER_PARTITION"].split(",")]
    assert len(partition) == ranks
    assert sum(partition) == num_layers
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    return partition, None if visible is None else [int(gpu) for gpu in visible.split(",")]


WITH_CPU, MACHINES = "1xcpu+3xv100", "2x(2xv100)"


@pytest.mark.parametrize(
    ("cluster", "devices", "partition", "visible", "remark"),
    [
        (WITH_CPU, [1, 1, 1, 1], [4], None, ""),
        (WITH_CPU, [1, 1, 1, 2], [3, 1], None, ""),
        (WITH_CPU, [3, 1, 1, 1], [1, 3], [2, 0], ""),
        (WITH_CPU, [2, 2, 3, 3], [2, 2], [1, 2], ""),
        (MACHINES, [0, 1, 1, 1], [1, 3], None, ""),
        (MACHINES, [3, 3, 2, 2], [2, 2], [1, 0], ""),
        *(
            (MACHINES, devices, partition, None, f"start Ray on machine {ray}")
            for devices, partition, ray in (
                ([1, 1, 2, 2], [2, 2], "0 with 1, then on machine 1 with 0"),
                ([2, 3, 1, 1], [1, 1, 2], "1 with 0,1, then on machine 0 with 1"),
            )
        ),
    ],
)
def test_vllm_reads_the_layers_and_the_gpu_of_each_rank(
    cluster: str, devices: list[int], partition: list[int], visible: list[int] | None, remark: str
) -> None:
    problem = decoder(8, 400, 8, 60, cluster=cluster)
    exported = FORMATS["vllm"].export(problem, by_layer(problem, devices), STEP)
    assert vllm_partition(exported.content, 4) == (partition, visible)
    assert ": as placed" in exported.remarks[0]
    assert "".join(exported.remarks[2:]).replace("CUDA_VISIBLE_DEVICES=", "") == remark
    assert exported.price is not None
    assert exported.price.runtime == exported.price.runtime_as_placed


def test_layers_on_a_cpu_go_to_gpus() -> None:
    problem = decoder(8, 400, 8, 60, cluster=WITH_CPU)
    exported = FORMATS["vllm"].export(problem, by_layer(problem, [0, 0, 1, 1]), STEP)
    assert exported.price is not None
    assert exported.price.peak_memory[0] == 0
    assert "the best split found" in exported.remarks[0]
    cpus = decoder(8, 400, 8, 60, cluster="2xcpu")
    only = FORMATS["vllm"].export(cpus, by_layer(cpus, [0, 0, 1, 1]), STEP)
    assert vllm_partition(only.content, 4) == ([2, 2], None)


class PipelineModule:
    """What DeepSpeed's does with layers before it builds them, for one rank of a pipeline alone."""

    def __init__(self, layers: list[nn.Module], num_stages: int, stage: int) -> None:
        self.stage_id, self._layer_specs = stage, layers
        self.parts: list[int] = []
        self._partition_layers(method="parameters")
        assert len(self.parts) == num_stages + 1

    def _partition_layers(self, method: str = "uniform") -> None:
        raise NotImplementedError(method)

    def _set_bounds(self, start: int, stop: int) -> None:
        self.built = self._layer_specs[start:stop]


def test_deepspeed_builds_each_layer_in_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = ModuleType("deepspeed.pipe")
    monkeypatch.setattr(pipe, "PipelineModule", PipelineModule, raising=False)
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", pipe)
    problem, model = decoder(8, 400, 8), Decoder(8, 400, 8)
    devices = {"": 1, "embed": 1, "layers.0": 1, "layers.1": 0, "layers.2": 2, "norm": 2, "head": 2}
    exported = FORMATS["deepspeed"].export(problem, placed(problem, devices), STEP)
    names: dict[str, Any] = {}
    exec(exported.content, names)  # noqa: S102 (what the user would run)
    assert "v100:1, v100:0, v100:2" in exported.content
    layers = [model.get_submodule(name) for name in names["LAYERS"]]
    ranks = [names["PlacedPipeline"](layers, num_stages=3, stage=rank) for rank in range(3)]
    assert [layer for rank in ranks for layer in rank.built] == layers
    assert [len(rank.built) for rank in ranks] == [2, 1, 3]
    with pytest.raises(ValueError, match="expected 6 layers, got 5"):
        names["PlacedPipeline"](layers[1:], num_stages=3, stage=0)


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "t5"])
def test_layers_of_library_models_hold_each_parameter_once(name: str) -> None:
    problem, model = small(name)
    chain = ModelChain(problem)
    parameters_of_layers = [set(model.get_submodule(layer).parameters()) for layer in chain.layers]
    assert set.union(*parameters_of_layers) == set(model.parameters())
    tied = [
        weight
        for weight in set.union(*parameters_of_layers)
        if sum(weight in parameters for parameters in parameters_of_layers) > 1
    ]
    assert len(tied) == (name != "mixtral")
    stacks = layer_stacks(chain.scopes)
    assert [len(stack) for stack in stacks.values()] == [2] * len(stacks)
    assert set(chain.layers) >= set().union(*stacks.values())
    half = len(chain.layers) // 2
    later = chain.layers[half:]
    devices = [int(layer in later) for layer in chain.scopes.outermost(chain.layers)]
    placement = problem.placement_of_ops(np.array(devices, np.int32))
    exported = FORMATS["deepspeed"].export(problem, placement, STEP)
    assert exported.details["parts"] == (0, half, len(chain.layers))
    assert exported.remarks[0].endswith(": as placed")
    if name == "mixtral":
        assert pipeline_stages(problem, placement).split_points == later[:1]
