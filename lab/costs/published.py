"""Compare the training of nets with depthwise or grouped convolutions with timm's published rates.

Two efficiencies, of depthwise and of grouped convolutions, are fitted to every second net. The
table has all nets: ``cd lab && python costs/published.py``. It needs timm, and four minutes.

A net counts in the memory format in which it is faster; `published.toml` names the source.
"""

import math
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from placeto import capture_step
from placeto.texts import TextTable
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS, DeviceKind, OpGraph
from placeto_workloads import library_step

# By kind of convolution and name of the net: batch, side of the images, images per second.
NETS = tomllib.loads(Path(__file__).with_name("published.toml").read_text())
PUBLISHED: dict[str, tuple[int, int, float]] = NETS["depthwise"] | NETS["grouped"]
FITTED = {*list(NETS["depthwise"])[::2], *list(NETS["grouped"])[::2]}
CANDIDATES = [(d / 100, g / 1000) for d in range(20, 42, 2) for g in range(40, 85, 5)]


def graph_of(name: str) -> OpGraph:
    """Capture a step of gradient descent with momentum."""
    batch, side, _ = PUBLISHED[name]
    step = library_step(f"timm:{name}", batch_size=batch)
    images = torch.empty(batch, 3, side, side, device="meta")
    inputs = (images, *step.example_inputs[1:])
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    step = step._replace(example_inputs=inputs, optimizer=make)
    return capture_step(step, autocast=torch.float16)


def ratio(name: str, graph: OpGraph, device: DeviceKind) -> float:
    """Return the simulated over the published time."""
    batch, _, rate = PUBLISHED[name]
    seconds = cost_model(graph, device)
    between = np.count_nonzero(seconds) * device.op_overhead
    return float((seconds.sum() + between) * rate / batch)


def with_efficiencies(depthwise: float, grouped: float) -> DeviceKind:
    """Return an RTX 3090 with two efficiencies."""
    card = DEVICE_KINDS["rtx3090"]
    efficiency = replace(
        card.efficiency, depthwise_convolution=depthwise, grouped_convolution=grouped
    )
    return replace(card, efficiency=efficiency)


def main() -> None:
    """Print the two efficiencies that fit best, and the table with those of the catalogue."""
    graphs = {name: graph_of(name) for name in PUBLISHED}

    def error(pair: tuple[float, float]) -> float:
        card = with_efficiencies(*pair)
        return sum(abs(math.log(ratio(name, graphs[name], card))) for name in FITTED)

    print("depthwise and grouped:", min(CANDIDATES, key=error))
    ratios = {name: ratio(name, graphs[name], DEVICE_KINDS["rtx3090"]) for name in PUBLISHED}
    rows = [
        [name, "fitted" if name in FITTED else "", f"{simulated:.2f}"]
        for name, simulated in ratios.items()
    ]
    print(TextTable("", ["net", "", ">simulated / published"], rows).markdown())
    for title, names in (("fitted", FITTED), ("not fitted", PUBLISHED.keys() - FITTED)):
        errors = np.array([abs(ratios[name] - 1) for name in names])
        within = np.count_nonzero(errors <= 0.3)
        print(f"{title}: mean error {errors.mean():.1%}, {within} of {len(errors)} within 30 %")


if __name__ == "__main__":
    main()
