"""The graphs of the paper's models, and the seconds of a step on one device: two tables."""

import numpy as np

from placeto import load_model_graph
from placeto.texts import TextTable
from placeto_capture.costs.roofline import single_device_runtime
from placeto_graphs import DEVICE_KINDS, OpGraph, Phase
from placeto_workloads import MODELS

# As Addanki et al. (2019) give them.
OPS_IN_TENSORFLOW = {"inception-v3": 3002, "nasnet": 12942, "nmt-2": 6361, "nmt-4": 10812}
INPUT_TYPES = ("buffer", "input", "parameter")


def graph_row(name: str, graph: OpGraph) -> list[str]:
    """Return how many ops of each phase a graph has, and what they read and compute."""
    computing = ~np.isin(graph.op_types, INPUT_TYPES)
    phases = [np.count_nonzero(computing & (graph.phases == phase)) for phase in Phase]
    read = graph.tensor_bytes[graph.edges[:, 0]].sum()
    counts = [graph.num_ops, *phases, np.count_nonzero(~computing), len(graph.edges)]
    return [
        name,
        *(f"{count:,}" for count in counts),
        f"{read / 1e9:.1f} GB",
        f"{OPS_IN_TENSORFLOW[name]:,}",
        f"{graph.flops.sum() / 1e12:.3f} T",
    ]


def main() -> None:
    """Print both tables."""
    graphs = {name: load_model_graph(name) for name in MODELS}
    columns = ["model", ">ops", ">forward", ">backward", ">update", ">parameters, inputs", ">edges"]
    columns += [">read along edges", ">ops in TensorFlow", ">FLOPs"]
    rows = [graph_row(name, graph) for name, graph in graphs.items()]
    print(TextTable("", columns, rows).markdown(), end="\n\n")
    seconds = [
        [name, *(f"{single_device_runtime(graph, kind):.3g} s" for kind in DEVICE_KINDS)]
        for name, graph in graphs.items()
    ]
    print(TextTable("", ["model", *(f">{kind}" for kind in DEVICE_KINDS)], seconds).markdown())


if __name__ == "__main__":
    main()
