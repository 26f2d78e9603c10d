"""Arguments of llama.cpp: read as llama.cpp reads them, they are the placement."""

import re
import shlex
from dataclasses import replace
from functools import cache
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.formats import FORMATS
from placeto.exporting.forms import Exported
from placeto.exporting.llama_cpp import device_names, llama_cpp
from placeto.placing.evaluators import STEP
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_capture import StepSpec, capture, capture_step
from placeto_graphs import DEVICE_KINDS, PlacementProblem, colocate, colocate_by_id, parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import inference_step
from small_transformers import DECODER, SMALL
from weight_files import CONFIGS, MIXTRAL, stored_tensors, tiny_model

LAYERS = 6


def read_by_llama_cpp(command: str, tensors: list[str], num_layers: int) -> dict[str, str]:
    """Return the device of each tensor, as llama.cpp's documentation and source describe it.

    The layers and the output, which comes behind them, are numbered. The last ``--n-gpu-layers`` of
    them are on GPUs. The shares of ``--tensor-split`` are added up and divided by their sum, all in
    float32. A layer is on the first GPU whose sum is larger than the part of these layers that come
    before it. ``--override-tensor`` is cut at commas and then at the first equals sign; the first
    regular expression that is found anywhere in a name wins. Only the CPU and the GPUs of
    ``--device`` have backends. The embedding of tokens is on the CPU.
    """
    options: dict[str, str] = dict(zip(*[iter(shlex.split(command))] * 2, strict=True))
    devices = [device for device in options.pop("--device", "").split(",") if device]
    on_gpus = int(options.pop("--n-gpu-layers"))
    shares = [float(share) for share in options.pop("--tensor-split", "1").split(",")]
    overrides = [
        override for override in options.pop("--override-tensor", "").split(",") if override
    ]
    assert options in ({}, {"--split-mode": "layer"})
    sums = np.cumsum(np.array(shares, np.float32), dtype=np.float32)
    sums /= sums[-1]
    begin = max(num_layers + 1 - on_gpus, 0)

    def of_layer(layer: int) -> str:
        if layer < begin:
            return "CPU"
        fraction_before = np.float32(layer - begin) / np.float32(min(on_gpus, num_layers + 1))
        device: str = devices[int(np.searchsorted(sums, fraction_before, side="right"))]
        return device

    result = {}
    for tensor in tensors:
        block = re.match(r"blk\.(\d+)\.", tensor)
        result[tensor] = of_layer(int(block[1]) if block else num_layers)
        if tensor.startswith("token_embd"):
            result[tensor] = "CPU"
        for override in overrides:
            pattern, _, device = override.partition("=")
            assert device in (*devices, "CPU")
            if re.search(pattern, tensor):
                result[tensor] = device
                break
    return result


CONFIGURATIONS = {
    "llama": CONFIGS["llama"],
    "mixtral": MIXTRAL,
    "qwen2": CONFIGS["qwen2"],  # its output is its embedding
    "qwen2moe": CONFIGS["qwen2moe"],  # with an expert that all tokens go to
}


@cache
def problem_of(name: str, cluster: str = "1xcpu+3xv100") -> PlacementProblem:
    """Return a model of six layers, in which ops are apart that can be."""
    model = tiny_model({**CONFIGURATIONS[name], "num_hidden_layers": LAYERS, "use_cache": False})
    words = {"input_ids": torch.zeros(1, 8, dtype=torch.int64, device="meta")}
    graph = capture(model, words, mode="inference")
    problem = make_problem(Source("small", graph), parse_cluster(cluster))
    return replace(problem, grouping=colocate(graph, [colocate_by_id]), hierarchy=None)


def part_of(scope: str) -> tuple[str, int]:
    """Return the part of a model that llama.cpp can have on a device of its own, and its layer."""
    match = re.match(r"model\.layers\.(\d+)\.?(.*)", scope)
    if match is None:
        return ("output" if scope in ("lm_head", "model.norm") else "input"), 0
    inside = match[2]
    is_apart = re.match(r"mlp(\.experts\b.*|\.(gate|up|down)_proj|\.act_fn|)$", inside)
    return ("feed-forward" if is_apart else "layer"), int(match[1])


def placed(
    problem: PlacementProblem, layers: list[int], feed_forward: list[int], output: int
) -> NDArray[np.int32]:
    devices = {"layer": layers, "feed-forward": feed_forward, "output": [output], "input": [0]}
    components = [part_of(scope) for scope in problem.graph.scopes]
    of_ops = np.array([devices[component][layer] for component, layer in components], np.int32)
    return problem.placement_of_ops(of_ops)


def parameter_tensors(name: str, problem: PlacementProblem) -> dict[int, list[str]]:
    """Return the tensors of a GGUF file in which the parameter of an op is."""
    config: Any = tiny_model(CONFIGURATIONS[name] | {"num_hidden_layers": LAYERS}).config
    architecture = "llama" if name == "mixtral" else name
    shape = (1, 2, 2)
    return {
        op: list(stored_tensors(problem.graph.op_names[op], shape, architecture, config))
        for op, kind in enumerate(problem.graph.op_types)
        if kind == "parameter"
    }


def arguments_of(exported: Exported) -> str:
    return exported.content.removeprefix("llama-server --model MODEL ").removesuffix("\n")


def check(
    name: str, problem: PlacementProblem, placement: NDArray[np.int32]
) -> tuple[Exported, list[int]]:
    """Check that llama.cpp puts each tensor where the exported placement has its parameter.

    Return what is exported, and the device of each layer.
    """
    exported = llama_cpp(problem, placement, STEP)
    assert exported.op_devices is not None
    assert exported.price is not None
    of_ops = exported.op_devices.tolist()
    devices = device_names(problem.cluster)
    tensors = parameter_tensors(name, problem)
    read = read_by_llama_cpp(
        arguments_of(exported), [tensor for names in tensors.values() for tensor in names], LAYERS
    )
    for op, names in tensors.items():
        if names != ["token_embd.weight"] or name != "qwen2":
            assert {read[tensor] for tensor in names} == {devices[of_ops[op]]}, names
    if name == "qwen2":
        assert "=^" not in exported.content
    ops = replace(problem, grouping=colocate(problem.graph, []), hierarchy=None)
    peaks = Simulator(ops).evaluate(exported.op_devices[None]).peak_memory[0]
    assert exported.price.peak_memory == tuple(peaks.tolist())
    norms = (f"model.layers.{layer}.input_layernorm.weight" for layer in range(LAYERS))
    return exported, [of_ops[problem.graph.op_names.index(norm)] for norm in norms]


device = st.integers(0, 3)
layer_devices = st.lists(device, min_size=LAYERS, max_size=LAYERS)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@given(layers=layer_devices, apart=st.none() | layer_devices, output=device)
@example(layers=[1] * LAYERS, apart=None, output=1)
@settings(max_examples=10, deadline=None)
def test_llama_cpp_puts_tensors_where_their_parameters_are(
    name: str, layers: list[int], apart: list[int] | None, output: int
) -> None:
    problem = problem_of(name)
    placement = placed(problem, layers, apart or layers, output)
    exported, exported_layers = check(name, problem, placement)
    # Each device has some layers in a row, the CPU the first ones.
    assert in_order(exported_layers)
    moved = int(np.not_equal(exported_layers, layers).sum())
    sentence = (
        f"The exported command moves {moved} layer{'' if moved == 1 else 's'} to another device."
    )
    assert exported.remarks[:-1] == ((sentence,) if moved else ())
    # Where feed-forward modules are apart, another chain of whole layers may be better.
    assert exported_layers == layers or apart is not None or not in_order(layers)


def in_order(layers: list[int]) -> bool:
    return len(list(groupby(layers))) == len(set(layers)) and 0 not in layers[layers.count(0) :]


@pytest.mark.parametrize("slower", [1, 30])
@pytest.mark.parametrize("layers", [[1] * 6, [0, 1, 0, 1, 0, 1]])
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_what_fits_comes_first_and_overrides_where_they_gain_more_than_the_simulation_errs(
    name: str, layers: list[int], slower: float
) -> None:
    """The GPU has room for a part, and the CPU needs longer for what is not feed-forward.

    All that llama.cpp can have: some layers on the CPU, and feed-forward parts of others.
    """
    problem = problem_of(name, "1xcpu+1xv100")
    cpu, gpu = problem.cluster.devices
    gpu = replace(gpu, memory_bytes=int(0.6 * problem.graph.parameter_bytes.sum()))
    slow = np.array([part_of(scope)[0] == "layer" for scope in problem.graph.scopes])
    problem = replace(
        problem,
        cluster=replace(problem.cluster, devices=(cpu, gpu)),
        compute_time=problem.compute_time * np.where(slow[:, None], [slower, 1], 1),
    )
    forms = [
        ([0] * first + [1] * (LAYERS - first), [0] * first + list(on_gpu))
        for first in range(LAYERS + 1)
        for on_gpu in product((0, 1), repeat=LAYERS - first)
    ]
    every = np.stack([placed(problem, *form, output=form[0][-1]) for form in forms])
    costs = Simulator(problem).evaluate(every)
    runtimes = np.where(
        (costs.peak_memory <= problem.cluster.memory_bytes).all(1), costs.runtime, 9
    )
    whole = runtimes[[layers == feed_forward for layers, feed_forward in forms]].min()
    exported = llama_cpp(problem, placed(problem, layers, layers, 1), STEP)
    assert exported.price is not None
    assert exported.price.fits
    overrides = bool(exported.details["override_tensor"])
    assert overrides == (whole > 1.15 * runtimes.min()) == (slower > 1)
    assert exported.price.runtime <= (1.1 * runtimes.min() if overrides else whole)


SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("qwen2", DECODER), ("gemma3_text", {**DECODER, **SLIDING}), ("gpt2", SMALL["gpt2"])],
)
def test_servers_are_given_the_context_and_the_memory_of_the_step(
    model: str, sizes: dict[str, Any]
) -> None:
    """Of three sequences. vLLM takes 90 % of a GPU unless it is told to take more."""
    name = f"transformers:{model}"
    step = inference_step(name, mode="decode", context=48, batch_size=3, **sizes)
    graph = capture_step(StepSpec(**step._asdict()))
    problem = make_problem(Source(model, graph), parse_cluster("1xcpu+1xv100"))
    everywhere = np.ones(problem.num_groups, np.int32)
    line = llama_cpp(problem, everywhere, STEP).content
    assert line.endswith(" --ctx-size 144 --parallel 3\n")
    for fraction, option in ((0.5, ""), (0.97, " --gpu-memory-utilization 0.98")):
        room = fraction * problem.cluster.devices[1].memory_bytes / graph.parameter_bytes.sum()
        parameter_bytes = (room * graph.parameter_bytes).astype(np.int64)
        large = replace(problem, graph=replace(graph, parameter_bytes=parameter_bytes))
        line = FORMATS["vllm"].export(large, everywhere, STEP).content
        assert line.endswith(f" --max-model-len 48{option}\n")


ALL_LAYERS = "--n-gpu-layers 7 --device CUDA0"


@pytest.mark.parametrize(
    ("name", "layers", "feed_forward", "output", "expected"),
    [
        ("llama", [1, 1, 1, 1, 2, 2], None, 2, "--n-gpu-layers 7 --device CUDA0,CUDA1 4,3"),
        ("llama", [0, 0, 2, 2, 1, 1], None, 1, "--n-gpu-layers 5 --device CUDA1,CUDA0 2,3"),
        ("llama", [1, 1, 1, 1, 1, 1], None, 3, "--n-gpu-layers 7 --device CUDA0,CUDA2 6,1"),
        ("llama", [0] * 6, None, 0, "--n-gpu-layers 0"),
        ("llama", [0] * 6, None, 2, "--n-gpu-layers 1 --device CUDA1"),
        ("llama", [1] * 6, None, 0, r"--n-gpu-layers 7 --device CUDA0 ^output(_norm)?\.=CPU"),
        ("qwen2", [1] * 6, None, 0, ALL_LAYERS),
        (
            *("llama", [1] * 6, [1, 1, 1, 3, 3, 1], 1),
            rf"{ALL_LAYERS},CUDA2 7,0 blk\.(3|4)\.ffn_(gate|up|down)\.=CUDA2",
        ),
        (
            *("mixtral", [1, 1, 1, 1, 2, 2], [1, 2, 1, 0, 0, 1], 2),
            rf"{ALL_LAYERS},CUDA1 4,3 blk\.1\.ffn_.*_exps\.=CUDA1,"
            r"blk\.(3|4)\.ffn_.*_exps\.=CPU,blk\.5\.ffn_.*_exps\.=CUDA0",
        ),
    ],
)  # fmt: skip
def test_placements_that_llama_cpp_can_express_stay_as_they_are(
    name: str, layers: list[int], feed_forward: list[int] | None, output: int, expected: str
) -> None:
    problem = problem_of(name)
    placement = placed(problem, layers, feed_forward or layers, output)
    exported, exported_layers = check(name, problem, placement)
    line = arguments_of(exported)
    for option in ("--split-mode layer --tensor-split ", "--override-tensor "):
        line = line.replace(option, "")
    assert shlex.split(line) == expected.split()
    assert exported_layers == layers


def test_devices_have_the_names_of_their_backends() -> None:
    cluster = parse_cluster("1xcpu+2xv100")
    kinds = ("mi300x", "m2-max", "v100")
    devices = tuple(
        replace(device, kind=kind) for device, kind in zip(cluster.devices, kinds, strict=True)
    )
    assert device_names(replace(cluster, devices=devices)) == ["ROCm0", "MTL0", "CUDA0"]
    m99 = replace(DEVICE_KINDS["k40"], name="m99")
    rx9999 = replace(DEVICE_KINDS["mi300x"], name="rx9999")
    described = replace(
        cluster,
        devices=tuple(
            replace(device, kind=kind)
            for device, kind in zip(cluster.devices, ("m99", "rx9999", "m99"), strict=True)
        ),
        kinds=(m99, rx9999),
    )
    assert device_names(described) == ["CUDA0", "ROCm0", "CUDA1"]
    unknown = replace(described, kinds=(replace(m99, backend=""), rx9999))
    with pytest.raises(InputError, match=r"cpu:0: expected a kind .*\[kinds.m99\].*, got none"):
        device_names(unknown)
    with pytest.raises(InputError, match=r"v100:0: expected .*\[kinds.rx9999\]"):
        device_names(replace(described, kinds=(m99,)))
    with pytest.raises(InputError, match="expected one CPU at most"):
        device_names(parse_cluster("2xcpu+1xv100"))


def test_a_cluster_without_a_cpu_has_the_embedding_with_the_first_layer() -> None:
    problem = problem_of("llama", "2xv100")
    placement = placed(problem, [1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], 0)
    exported = llama_cpp(problem, placement, STEP)
    assert exported.details["devices"] == ["CUDA1", "CUDA0"]
    assert exported.details["n_gpu_layers"] == sum(exported.details["tensor_split"]) == LAYERS + 1  # type: ignore[call-overload]
    assert exported.op_devices is not None
    assert exported.op_devices[problem.graph.op_names.index("model.embed_tokens.weight")] == 1
    graph = problem.graph
    without_layers = replace(problem, graph=replace(graph, scopes=("one",) * graph.num_ops))
    with pytest.raises(InputError, match="PROBLEM: expected one stack of layers"):
        llama_cpp(without_layers, placement, STEP)
