"""The graphs of the paper's models, and the seconds of a step on one device: two tables."""

import numpy as np

from costs.fit import PUBLISHED_STEPS
from placeto import load_model_graph
from placeto.texts import TextTable
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS, OpGraph, Phase
from placeto_workloads import MODELS

# As Addanki et al. (2019) give them.
OPS_IN_TENSORFLOW = {"inception-v3": 3002, "nasnet": 12942, "nmt-2": 6361, "nmt-4": 10812}
INPUT_TYPES = ("buffer", "input", "parameter")
KINDS = ("cpu", "k80", "p100", "v100", "a100", "h100", "h200")
# Seconds that efficiencies were fitted to, and the width of NMT (nmt-4), by model and kind.
FITTED = {(step.model, step.kind): step.seconds for step in PUBLISHED_STEPS}
FITTED["nmt-4", "cpu"] = 33.5


def graph_row(name: str, graph: OpGraph) -> list[str]:
    """Return how many ops of each phase a graph has, and what they compute."""
    computing = ~np.isin(graph.op_types, INPUT_TYPES)
    phases = [np.count_nonzero(computing & (graph.phases == phase)) for phase in Phase]
    counts = [graph.num_ops, *phases, np.count_nonzero(~computing), OPS_IN_TENSORFLOW[name]]
    return [name, *(f"{count:,}" for count in counts), f"{graph.flops.sum() / 1e12:.3g}"]


def seconds(name: str, graph: OpGraph, kind: str) -> str:
    """Return the seconds of a step on one device, and the published ones that it was fitted to."""
    of_ops = cost_model(graph, kind)
    between = np.count_nonzero(of_ops) * DEVICE_KINDS[kind].op_overhead
    simulated = f"{of_ops.sum() + between:.3g}"
    published = FITTED.get((name, kind))
    return simulated if published is None else f"{simulated} (fitted to {published:.3g})"


def main() -> None:
    """Print both tables."""
    graphs = {name: load_model_graph(name) for name in MODELS}
    columns = ["model", ">ops", ">forward", ">backward", ">update", ">parameters, inputs"]
    columns += [">ops in TensorFlow", ">TFLOP"]
    rows = [graph_row(name, graph) for name, graph in graphs.items()]
    print(TextTable("", columns, rows).markdown(), end="\n\n")
    rows = [
        [name, *(seconds(name, graph, kind) for kind in KINDS)] for name, graph in graphs.items()
    ]
    columns = ["model", *(f">{kind}, s" for kind in KINDS)]
    print(TextTable("", columns, rows).markdown())


if __name__ == "__main__":
    main()
