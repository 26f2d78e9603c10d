"""Compare steps in several precisions with published ones, to which no efficiency is fitted.

ResNet-50 v1.5, trained in batches of 256 by gradient descent with momentum. It needs torchvision.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from placeto import capture_step
from placeto.texts import TextTable
from placeto_capture import cost_model
from placeto_capture.costs.roofline import Tf32
from placeto_graphs import DEVICE_KINDS, OpGraph
from placeto_workloads import library_step

MODEL, BATCH_SIZE = "torchvision:resnet50", 256


# By kind of device and precision ("float32", "tf32", or "mixed" for autocast to float16), how many
# images a second it trains with, reading them included. NVIDIA's Deep Learning Examples, ResNet-50
# v1.5 for PyTorch, container 21.03: one GPU of a DGX-1 of 16 GB, and one of a DGX A100 of 80 GB,
# whose memory is a third faster than that of 40 GB.
PUBLISHED_RATES = {
    ("v100", "float32"): 367,
    ("v100", "mixed"): 1200,
    ("a100", "tf32"): 938,
    ("a100", "mixed"): 2470,
}


def graphs_of(model: str, batch_size: int) -> dict[str, OpGraph]:
    """Capture a training step in float32 and in mixed precision, by these names."""
    step = library_step(model, batch_size=batch_size)
    step = step._replace(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    return {"float32": capture_step(step), "mixed": capture_step(step, autocast=torch.float16)}


def rate(graphs: Mapping[str, OpGraph], kind: str, precision: str, batch_size: int) -> float:
    """Return how many images a second a kind of device trains with by the cost model."""
    graph = graphs["mixed" if precision == "mixed" else "float32"]
    tf32: Tf32 = "never" if precision == "float32" else "always"
    seconds = cost_model(graph, kind, tf32=tf32)
    between = np.count_nonzero(seconds) * DEVICE_KINDS[kind].op_overhead
    return float(batch_size / (seconds.sum() + between))


def rate_table(graphs: Mapping[str, OpGraph]) -> TextTable:
    """Return published and modelled rates."""
    rows = []
    for (kind, precision), published in PUBLISHED_RATES.items():
        modelled = rate(graphs, kind, precision, BATCH_SIZE)
        rates = [f"{published:,.0f} images/s", f"{modelled:,.0f} images/s"]
        rows.append([kind, precision, *rates, f"{modelled / published - 1:+.0%}"])
    return TextTable("", ["kind", "precision", ">published", ">by the model", ">residual"], rows)


def main() -> None:
    """Capture the steps and print the table."""
    print(rate_table(graphs_of(MODEL, BATCH_SIZE)).markdown())


if __name__ == "__main__":
    main()
