"""Steps of inference as they are served: fused or eager, with caches of few bits and on the CPU."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto.errors import InputError
from placeto.exporting.formats import FORMATS
from placeto.exporting.llama_cpp import llama_cpp
from placeto.placing.evaluators import STEP
from placeto.placing.max_context import largest_context
from placeto.problems.making import EAGER_SECONDS_PER_OP, problem_of, read_problem, read_source
from placeto.problems.options import ProblemOptions
from placeto.progress import PlainProgress
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS, PlacementProblem, load_problem, parse_cluster, save_problem
from placeto_simulator import Simulator
from small_transformers import SHARED_HEADS, SMALL

CLUSTER = "1xcpu+1xrtx3090"
SIZES = {**SHARED_HEADS, "max_position_embeddings": 2048}


def decoding(cluster: str = CLUSTER, **options: Any) -> PlacementProblem:
    """Return the problem of a decode step of a small model with 100 tokens."""
    return read_problem(
        "transformers:llama", cluster, sizes=SIZES, mode="decode", context=100, **options
    )


def test_the_host_of_eager_pytorch_takes_its_time_for_each_op_of_a_gpu() -> None:
    served, eager = decoding(), decoding(eager=True)
    assert served.graph.num_ops < eager.graph.num_ops
    cpu, gpu = eager.compute_time.T
    overhead = eager.cluster.devices[1].op_overhead
    takes_time = cost_model(eager.graph, "rtx3090") > 0
    np.testing.assert_allclose(gpu[takes_time] + overhead, EAGER_SECONDS_PER_OP)
    assert not gpu[~takes_time].any()
    np.testing.assert_array_equal(cpu, cost_model(eager.graph, "cpu"))
    # A kernel of a server takes 6 us besides its work, of which its launch and the time to the next
    # one are a part that the device has anyway; one of a Mac takes 12.
    for spec, seconds in (("1xcpu+1xrtx3090", 6e-6), ("1xm2-max", 12e-6)):
        problem = decoding(spec)
        device = problem.cluster.devices[-1]
        launch = DEVICE_KINDS[device.kind].launch_overhead + device.op_overhead
        of_model = cost_model(problem.graph, device.kind)
        expected = np.where(of_model > 0, of_model + seconds - launch, 0)
        np.testing.assert_allclose(problem.compute_time[:, -1], expected)
    np.testing.assert_array_equal(served.compute_time[:, 0], cost_model(served.graph, "cpu"))


@pytest.mark.parametrize(("backend", "seconds"), [("cuda", 6e-6), ("metal", 12e-6)])
def test_a_kind_of_ones_own_is_a_mac_by_its_backend_not_its_name(
    backend: str, seconds: float
) -> None:
    kind = replace(DEVICE_KINDS["m2-max"], name="m40", backend=backend)
    macs = parse_cluster("1xm2-max")
    device = replace(macs.devices[0], kind="m40", name="m40:0")
    problem = read_problem(
        "transformers:llama",
        replace(macs, devices=(device,), kinds=(kind,)),
        sizes=SIZES,
        mode="decode",
        context=100,
    )
    of_model = cost_model(problem.graph, kind)
    expected = of_model + seconds - kind.launch_overhead - device.op_overhead
    np.testing.assert_allclose(problem.compute_time[:, 0], np.where(of_model > 0, expected, 0))


def test_another_cluster_of_a_problem_file_issues_ops_as_the_first(tmp_path: Path) -> None:
    for eager in (False, True):
        save_problem(decoding(eager=eager), tmp_path / "problem.json")
        moved = read_problem(tmp_path / "problem.json", "1xa100")
        expected = decoding("1xa100", eager=eager)
        np.testing.assert_array_equal(moved.compute_time, expected.compute_time)


def test_an_op_that_takes_longer_than_its_host_is_as_long_as_its_work() -> None:
    sizes = {**SIZES, "vocab_size": 200_000, "hidden_size": 64, "head_dim": 16}
    problem = read_problem(
        "transformers:llama", "1xrtx3090", sizes=sizes, mode="decode", context=8, eager=True
    )
    head = problem.graph.op_names.index("lm_head/aten.mm")
    seconds = cost_model(problem.graph, "rtx3090")[head]
    assert problem.compute_time[head, 0] == seconds > EAGER_SECONDS_PER_OP


def cache_ops(problem: PlacementProblem) -> list[int]:
    graph = problem.graph
    return [
        op
        for op, (kind, name) in enumerate(zip(graph.op_types, graph.op_names, strict=True))
        if kind == "buffer" and name.startswith("input.")
    ]


@pytest.mark.parametrize("eager", [False, True])
def test_a_cache_on_the_cpu_leaves_weights_to_the_gpu(tmp_path: Path, *, eager: bool) -> None:
    problem = decoding(cache_device="cpu", eager=eager)
    graph = problem.graph
    caches = cache_ops(problem)
    attention = [op for op, kind in enumerate(graph.op_types) if "dot_product" in kind]
    weights = [op for op, kind in enumerate(graph.op_types) if kind == "parameter"]
    assert (len(caches), len(attention)) == (4, 2)
    assert np.isinf(problem.compute_time[[*caches, *attention], 1]).all()
    group_times = problem.group_graph.compute_time
    for level in (problem.grouping, *problem.levels):
        tied = {*level.group_of[[*caches, *attention]].tolist()}
        assert tied.isdisjoint(level.group_of[weights].tolist())
    placement = np.isfinite(group_times[:, 1]).astype(np.int32)
    peaks = Simulator(problem).evaluate(placement[None]).peak_memory[0]
    num_bytes = graph.parameter_bytes
    assert num_bytes[caches].sum() <= peaks[0] < num_bytes[caches].sum() + 10_000
    assert num_bytes[weights].sum() <= peaks[1]
    save_problem(problem, tmp_path / "problem.json")
    read = load_problem(tmp_path / "problem.json")
    assert read == problem
    assert read.graph.cache is not None
    assert read.graph.cache.on_cpu


def test_a_cache_on_the_cpu_needs_one() -> None:
    with pytest.raises(InputError, match=r"expected a cluster with a CPU, .*, got 2xrtx3090"):
        decoding("2xrtx3090", cache_device="cpu")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ""),
        ({"cache_bits": 16}, ""),
        ({"cache_bits": 8}, "--cache-type-k q8_0 --cache-type-v q8_0"),
        ({"cache_bits": 4}, "--cache-type-k q4_0 --cache-type-v q4_0"),
        ({"cache_device": "cpu"}, "--no-kv-offload"),
    ],
)
def test_llama_cpp_has_the_cache_of_the_step(options: dict[str, Any], expected: str) -> None:
    problem = decoding(**options)
    on_gpu = np.isfinite(problem.group_graph.compute_time[:, 1]).astype(np.int32)
    exported = llama_cpp(problem, on_gpu, STEP)
    words = "llama-server --model MODEL --n-gpu-layers 3 --device CUDA0 --ctx-size 100"
    assert exported.content.split() == f"{words} {expected}".split()
    assert exported.op_devices is not None
    on_cpu = options.get("cache_device") == "cpu"
    assert {*exported.op_devices[cache_ops(problem)].tolist()} == {0 if on_cpu else 1}
    weights = [op for op, name in enumerate(problem.graph.op_names) if "q_proj.weight" in name]
    assert {*exported.op_devices[weights].tolist()} == {1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"cache_bits": 8}, "--max-model-len 100 --kv-cache-dtype fp8"), ({}, "--max-model-len 100")],
)
def test_vllm_has_the_cache_of_the_step(options: dict[str, Any], expected: str) -> None:
    problem = decoding("1xrtx3090", **options)
    placement = np.zeros(problem.num_groups, np.int32)
    assert FORMATS["vllm"].export(problem, placement, STEP).content.endswith(f" {expected}\n")
    few_bits = decoding("1xrtx3090", cache_bits=4)
    with pytest.raises(InputError, match=r"a cache of 8 or 16 bits .*, got one of 4 bits on GPUs"):
        FORMATS["vllm"].export(few_bits, placement, STEP)


@pytest.mark.parametrize(
    ("name", "room"), [("llama", 700), ("llama", 100_000), ("mistral", 300), ("mistral", 700)]
)
def test_the_largest_context_is_the_last_that_fits(name: str, room: int) -> None:
    """Of steps of 256 tokens, on one device that has memory for some tokens."""
    sizes = {**SIZES, "sliding_window": 512} if name == "mistral" else SIZES
    of_token = 2 * 2 * 2 * 4 * 2  # bytes: keys and values, 2 layers, 2 heads of 4 numbers
    weights = read_problem(
        f"transformers:{name}", "1xrtx3090", sizes=sizes, mode="decode", context=1
    ).graph.parameter_bytes.sum()
    gpu = replace(
        parse_cluster("1xrtx3090").devices[0],
        memory_bytes=int(weights) + 3000 + of_token * room,
    )
    cluster = replace(parse_cluster("1xrtx3090"), devices=(gpu,))
    options = ProblemOptions.of(cluster, sizes=sizes, mode="decode")
    found = largest_context(f"transformers:{name}", options, 0, PlainProgress(StringIO()))

    def fits(context: int) -> bool:
        with_context = replace(options, choice=replace(options.choice, context=context))
        problem = problem_of(read_source(f"transformers:{name}", with_context), with_context)
        everywhere = np.zeros((1, problem.num_groups), np.int32)
        return bool(Simulator(problem).evaluate(everywhere).peak_memory[0, 0] <= gpu.memory_bytes)

    assert fits(found)
    assert found == 2048 or not fits(found + 256)
    assert (found == 2048) == (room > (512 if name == "mistral" else 2048))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("nmt-2", {}, "--max-context: needs --mode decode"),
        ("transformers:llama", {"mode": "prefill"}, "--max-context: needs --mode decode"),
        ("transformers:llama", {"mode": "decode", "context": 9}, "excludes --context"),
        ("transformers:llama", {"mode": "decode"}, "expected devices with more memory, as tran"),
    ],
)
def test_a_context_that_cannot_be_looked_for_is_named(
    source: str, options: dict[str, Any], message: str
) -> None:
    cluster = parse_cluster("1xrtx3090")
    small = replace(cluster, devices=(replace(cluster.devices[0], memory_bytes=1000),))
    sizes = {} if source == "nmt-2" else SIZES
    with pytest.raises(InputError, match=message):
        largest_context(
            source, ProblemOptions.of(small, sizes=sizes, **options), 0, PlainProgress(StringIO())
        )


@pytest.mark.parametrize(
    "options", [{"cache_bits": 8}, {"cache_device": "cpu"}, {"eager": True}, {"context": 9}]
)
def test_options_of_inference_need_a_step_of_it(options: dict[str, Any]) -> None:
    name = next(iter(options)).replace("_", "-")
    with pytest.raises(InputError, match=f"--{name}: needs --mode prefill or --mode decode"):
        read_problem("transformers:gpt2", sizes=dict(SMALL["gpt2"]), **options)
