"""Files by hand: of clusters with all that one may have, and in formats of others."""

from typing import Any

HEAD = 'format = "placeto-cluster"\nversion = 3\n'
V100S = "".join(f'[[devices]]\nname = "{name}"\nkind = "v100"\n' for name in "abcd")


def link(name: str, source: str, destination: str, options: str) -> str:
    ends = f'sources = ["{source}"]\ndestinations = ["{destination}"]\n'
    return f'[[links]]\nname = "{name}"\n{ends}{options}\n'


LINKED = (
    HEAD
    + V100S
    + '[machines]\nleft = ["a", "b"]\nright = ["c", "d"]\n'
    + link("NVLink", "left", "left", 'for_each = "pair"\nbandwidth = 150e9\nlatency = 2e-6')
    + link("bus", "right", "right", 'for_each = "source"\nbandwidth = 15e9')
    + link("ethernet", "left", "right", "bandwidth = 1e9")
    + link("ethernet", "right", "left", "bandwidth = 2e9")
)
CARD = (
    HEAD
    + """
bandwidth = 31.5e9

[kinds.card]
memory_bytes = 24_000_000_000
memory_bandwidth = 1008e9
peak_flops = 82.6e12
peak_flops_in = { float16 = 165.2e12, bfloat16 = 165.2e12 }
efficiency = { matrix_product = 0.8 }

[[devices]]
name = "card:0"
kind = "card"

[[devices]]
name = "card:1"
kind = "card"
memory_bytes = 20_000_000_000
op_overhead = 2e-6
"""
)
OWN = (
    HEAD
    + """
[[devices]]
name = "a"
kind = "rtx3090"
memory = "22.5 GB"

[[devices]]
name = "b"
kind = "rtx3060"
host_link = "pcie-3-x4"

[[devices]]
name = "c"
kind = "cpu-ddr5-2ch"
memory = "1.5 GiB"

[kinds.rtx3090]
speed = 0.5
"""
)


# Two layers, and the gradient of the first one, which shares its colour.
NODES: list[dict[str, Any]] = [
    {"id": 4, "name": "a", "cpuLatency": 50, "fpgaLatency": 2.5, "size": 1e6, "colorClass": 9},
    {"id": 2, "name": "b", "cpuLatency": 8.0, "fpgaLatency": 0, "size": 5, "colorClass": 3},
    {"id": 7, "name": "a", "cpuLatency": 1.0, "fpgaLatency": 4.0, "size": 0, "colorClass": 9},
]
NODES[1]["supportedOnFpga"] = 0
NODES[2]["isBackwardNode"] = True
EDGES: list[dict[str, Any]] = [
    {"sourceId": 4, "destId": 2, "cost": 0.125, "size": 777},
    {"sourceId": 4, "destId": 7, "cost": 0.125},
    {"sourceId": 2, "destId": 7, "cost": 0.0},
]
DEVICES = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 16e9}


def node(name: str, layer: str, *values: object) -> str:
    keys = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
    measures = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
    return f"{name} -- {layer} -- {measures}\n"


# Out of order, as in the published files; the layer in the middle has two outputs.
LAYERS = [
    node("node3", "Linear(in_features=4, out_features=2)", 2.0, 4.0, "16.0", "40.0"),
    node("node1", "Input", 0.0, 0.0, 8.0, 0.0),
    node("node2", "LSTM(2, 4)", 1.5, 3.25, "[32.0; 64.000]", 96.0),
]
PROFILE = "".join(LAYERS) + "\tnode2 -- node3\n\tnode1 -- node2\n"
