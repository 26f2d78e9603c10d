"""Simulated tokens per second beside published ones: ``cd lab && python decode.py``.

`decode.toml` has the published rates. The last lines have the errors of those to which efficiencies
are fitted, and of the others: the numbers of docs/fidelity.md. It takes some minutes.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from placeto import capture_step
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto.texts import TextTable
from placeto_capture import fused
from placeto_graphs import Cluster, OpGraph, colocate, colocate_by_id, parse_cluster
from placeto_graphs.clusters.devices import decoded_kinds
from placeto_graphs.schema.cluster import Device
from placeto_simulator import Simulator
from placeto_workloads import TrainingStep, inference_step

TABLES = tomllib.loads(Path(__file__).with_name("decode.toml").read_text())
KINDS = {kind.name: kind for kind in decoded_kinds(TABLES.pop("kinds"))}
LLAMA_2 = {"vocab_size": 32_000, "max_position_embeddings": 8192}
LLAMA_3 = {"vocab_size": 128_256, "max_position_embeddings": 8192}


def sizes(width: int, inner: int, layers: int, heads: int, shared: int) -> Mapping[str, int]:
    """Return settings of a configuration."""
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
    }


MODELS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "llama-7b": ("llama", {**sizes(4096, 11008, 32, 32, 32), **LLAMA_2}),
    "llama-13b": ("llama", {**sizes(5120, 13824, 40, 40, 40), **LLAMA_2}),
    "llama-30b": ("llama", {**sizes(6656, 17920, 60, 52, 52), **LLAMA_2}),
    "llama-65b": ("llama", {**sizes(8192, 22016, 80, 64, 64), **LLAMA_2}),
    "llama2-70b": ("llama", {**sizes(8192, 28672, 80, 64, 8), **LLAMA_2}),
    "llama3-8b": ("llama", {**sizes(4096, 14336, 32, 32, 8), **LLAMA_3}),
    "llama3-70b": ("llama", {**sizes(8192, 28672, 80, 64, 8), **LLAMA_3}),
    "qwen2.5-14b": ("qwen2", {**sizes(5120, 13824, 48, 40, 8), "vocab_size": 152_064}),
    "gpt-j": ("gptj", {}),
}
# Bits of a weight of linear layers, and of the output layer. Of Q4_K_M, values and the last product
# of a layer have 6.5625 in half of the layers. GPTQ of exllama has a scale and a zero for 128
# weights, int4 of gpt-fast for 32.
BITS: Mapping[str, tuple[float, float]] = {
    "f16": (16, 16),
    "q8_0": (8.5, 8.5),
    "q4_0": (4.5, 6.5625),
    "q4_k_m": (4.5, 6.5625),
    "gptq": (4.16, 16),
    "int8": (8, 8),
    "int4": (5, 5),
}
MORE_BITS = re.compile(r"layers\.(\d+)\..*(v_proj|down_proj)")
LAYER = re.compile(r"(?:.*?\.)?(?:layers|h)\.(\d+)")
LINEAR = re.compile(r".*(_proj|fc_in|fc_out|lm_head)\.weight")


@dataclass(frozen=True)
class Row:
    """A published rate.

    Attributes
    ----------
    table
        Table of `decode.toml`.
    model, quantization
        Keys of `MODELS` and `BITS`.
    kinds, layers
        Kinds of the devices, and number of layers on each; none for all on the first.
    context
        Number of tokens before the new one.
    rate
        Published tokens per second.
    """

    table: str
    model: str
    quantization: str
    kinds: tuple[str, ...]
    layers: tuple[int, ...]
    context: int
    rate: float

    @property
    def is_fitted(self) -> bool:
        """Whether efficiencies may follow it."""
        return bool(TABLES[self.table]["fitted"])

    @property
    def is_eager(self) -> bool:
        """Whether PyTorch issues each op."""
        return bool(TABLES[self.table].get("eager", False))

    @property
    def name(self) -> str:
        """What it is a rate of."""
        devices = " + ".join(
            f"{kind} ({count})" if count else kind
            for kind, count in zip(self.kinds, self.layers or (0,) * len(self.kinds), strict=True)
        )
        return f"{devices}, {self.model}, {self.quantization}, {self.context}"

    @cached_property
    def seconds(self) -> float:
        """Simulated seconds of a token."""
        graph = graph_of(self.model, self.quantization, self.context)
        source = Source(self.model, graph if self.is_eager else fused(graph))
        problem = make_problem(source, cluster_of(self.kinds))
        problem = replace(
            problem, grouping=colocate(problem.graph, [colocate_by_id]), hierarchy=None
        )
        layers = self.layers or (MODELS[self.model][1].get("num_hidden_layers", 28),)
        device_of_layer = np.repeat(np.arange(len(layers)), layers)
        last = len(layers) - 1
        op_devices = np.full(problem.graph.num_ops, last, np.int32)
        for op, scope in enumerate(problem.graph.scopes):
            match = LAYER.match(scope)
            if match:
                op_devices[op] = device_of_layer[int(match[1])]
            elif "embed" in scope or "rotary" in scope:
                op_devices[op] = 0
        placement = problem.placement_of_ops(op_devices)
        return float(Simulator(problem, num_threads=1).evaluate(placement[None]).runtime[0])

    @property
    def difference(self) -> float:
        """Simulated seconds over published ones, less 1."""
        return self.seconds * self.rate - 1


def cluster_of(kinds: tuple[str, ...]) -> Cluster:
    """Return devices of some kinds in one machine, also of those of `decode.toml`."""
    known = [KINDS[kind] for kind in dict.fromkeys(kinds) if kind in KINDS]
    spec = "+".join(f"1x{'rtx4090' if kind in KINDS else kind}" for kind in kinds)
    if any(kind.startswith("cpu-ddr5-6400") for kind in kinds):
        spec = "1xcpu-ddr5-2ch"
    cluster = parse_cluster(spec)
    devices = [
        replace(device, kind=kind, memory_bytes=KINDS[kind].memory_bytes)
        if kind in KINDS
        else device
        for device, kind in zip(cluster.devices, kinds, strict=True)
    ]
    named: list[Device] = [
        replace(device, name=f"{device.kind}:{index}") for index, device in enumerate(devices)
    ]
    return replace(cluster, devices=tuple(named), kinds=tuple(known))


@cache
def graph_of(model: str, quantization: str, context: int) -> OpGraph:
    """Return the graph of a decode step with a cache of some tokens."""
    model_type, sizes = MODELS[model]
    settings: Mapping[str, Any] = sizes
    step = inference_step(
        f"transformers:{model_type}", mode="decode", context=context, **settings, dtype="float16"
    )
    return capture_step(step._replace(parameter_bytes=bytes_of_weights(step, quantization)))


def bytes_of_weights(step: TrainingStep, quantization: str) -> dict[str, int]:
    """Return the bytes of the weights of linear layers."""
    named: list[tuple[str, Any]] = list(step.model.named_parameters())
    numbers = [int(match[1]) for name, _ in named if (match := LAYER.match(name))]
    count = max(numbers) + 1
    num_bytes = {}
    for name, weight in named:
        if not LINEAR.fullmatch(name):
            continue
        bits, bits_of_output = BITS[quantization]
        match = MORE_BITS.search(name) if quantization == "q4_k_m" else None
        has_more = match is not None and has_more_bits(int(match[1]), count)
        if has_more or name.startswith("lm_head"):
            bits = bits_of_output
        num_bytes[name] = ceil(weight.numel() * bits / 8)
    return num_bytes


def has_more_bits(layer: int, count: int) -> bool:
    """Return whether llama.cpp gives a layer of Q4_K_M more bits: the first, last, each third."""
    first = count // 8
    return layer < first or layer >= 7 * count // 8 or (layer - first) % 3 == 2


def main() -> None:
    """Print all rows, and the errors of those that were fitted and of the others."""
    rows = [
        Row(name, model, quantization, tuple(kinds), tuple(layers), context, rate)
        for name, table in TABLES.items()
        for model, quantization, kinds, layers, context, rate in table["rows"]
    ]
    cells = [
        [
            row.name,
            "fitted" if row.is_fitted else "",
            f"{row.rate:.4g}",
            f"{1 / row.seconds:.4g}",
            f"{row.difference:+.0%}",
        ]
        for row in rows
    ]
    heads = ["step", "", ">published", ">simulated", ">seconds"]
    print(TextTable("", heads, cells).markdown())
    kinds: dict[str, Callable[[Any], bool]] = {
        "GPU": lambda row: not row.is_eager and is_gpu(row),
        "Mac": lambda row: row.kinds[0].startswith("m"),
        "CPU": lambda row: all(kind.startswith("cpu") for kind in row.kinds),
        "CPU and GPU": lambda row: len({kind.startswith("cpu") for kind in row.kinds}) > 1,
        "eager": lambda row: row.is_eager,
        "all": lambda row: not row.is_eager,
    }
    for name, is_of_kind in kinds.items():
        for is_fitted in (True, False):
            of_kind = [row for row in rows if is_of_kind(row) and row.is_fitted == is_fitted]
            if of_kind:
                print(f"{name}, {'' if is_fitted else 'not '}fitted: {error_text(of_kind)}")
    quantizations_of_bits = {4: ("q4_0", "q4_k_m", "gptq", "int4"), 16: ("f16",)}
    for name in ("GPU", "Mac"):
        for bits, quantizations in quantizations_of_bits.items():
            of_bits = [
                row for row in rows if kinds[name](row) and row.quantization in quantizations
            ]
            print(f"{name}, {bits} bits: {error_text(of_bits)}")


def is_gpu(row: Row) -> bool:
    """Return whether all devices are NVIDIA's."""
    return not any(kind.startswith(("cpu", "m1", "m2", "m3")) for kind in row.kinds)


def error_text(rows: list[Row]) -> str:
    """Return the mean error of seconds, their bias, and the range of the differences of rates."""
    errors = np.array([row.difference for row in rows])
    rates = 1 / (1 + errors) - 1
    return (
        f"{len(errors)} rows, seconds: mean error {abs(errors).mean():.1%}, bias "
        f"{errors.mean():+.1%}; rates {rates.min():+.0%} to {rates.max():+.0%}"
    )


if __name__ == "__main__":
    main()
