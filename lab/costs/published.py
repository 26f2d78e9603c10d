"""Compare the training of nets with depthwise or grouped convolutions with timm's published rates.

Two efficiencies, of depthwise and of grouped convolutions, are fitted to every second net. The
table has all nets: ``cd lab && python costs/published.py``. It needs timm, and four minutes.

timm publishes images per second of training on an RTX 3090, under autocast to float16, by PyTorch
1.12, in both memory formats: results/benchmark-train-amp-{nhwc,nchw}-pt112-cu113-rtx3090.csv of
huggingface/pytorch-image-models at 5e7d47ca. A net counts in the format in which it is faster.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from placeto import capture_step
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS, DeviceKind, OpGraph
from placeto_workloads import library_step

# Batch, side of the images, and images per second.
DEPTHWISE = {
    "convmixer_1024_20_ks9_p14": (256, 224, 307.81),
    "convmixer_768_32": (96, 224, 187.17),
    "convnext_base": (128, 224, 338.68),
    "convnext_tiny": (256, 224, 819.24),
    "efficientnet_b0": (512, 224, 1751.72),
    "efficientnet_b2": (256, 256, 978.68),
    "efficientnet_b3": (128, 288, 572.18),
    "efficientnet_lite0": (512, 224, 2079.28),
    "efficientnetv2_s": (128, 288, 559.15),
    "fbnetc_100": (512, 224, 2397.58),
    "ghostnet_100": (512, 224, 2129.82),
    "lcnet_100": (512, 224, 5354.67),
    "mixnet_s": (512, 224, 1365.54),
    "mnasnet_100": (512, 224, 2929.31),
    "mobilenetv2_100": (512, 224, 2313.1),
    "mobilenetv3_large_100": (512, 224, 2732.43),
    "mobilenetv3_small_100": (512, 224, 8035.08),
    "mobilevitv2_100": (256, 256, 907.45),
    "rexnet_100": (384, 224, 1447.81),
    "xception41": (128, 299, 391.05),
    "xception65": (96, 299, 281.11),
}
GROUPED = {
    "regnetx_002": (512, 224, 4105.04),
    "regnetx_004": (512, 224, 2695.23),
    "regnetx_008": (512, 224, 1632.2),
    "regnetx_016": (512, 224, 1139.3),
    "regnetx_032": (384, 224, 787.5),
    "regnetx_040": (384, 224, 624.89),
    "regnetx_080": (256, 224, 454.56),
    "regnetx_160": (192, 224, 266.55),
    "regnety_002": (512, 224, 3777.81),
    "regnety_008": (512, 224, 1498.63),
    "regnety_016": (512, 224, 954.26),
    "regnety_032": (384, 224, 696.58),
    "regnety_040": (384, 224, 640.15),
    "regnety_080": (256, 224, 385.84),
    "regnetz_b16": (256, 224, 862.05),
    "repvgg_b1g4": (512, 224, 584.26),
    "resnext101_32x4d": (256, 224, 609.01),
    "resnext101_32x8d": (128, 224, 312.8),
    "resnext101_64x4d": (128, 224, 363.79),
    "resnext50_32x4d": (384, 224, 1001.03),
    "seresnext50_32x4d": (256, 224, 814.69),
}
PUBLISHED = DEPTHWISE | GROUPED
FITTED = {*list(DEPTHWISE)[::2], *list(GROUPED)[::2]}
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
    parts = {"depthwise_convolution": depthwise, "grouped_convolution": grouped}
    return replace(card, efficiency=replace(card.efficiency, **parts))


def main() -> None:
    """Print the two efficiencies that fit best, and the table with those of the catalogue."""
    graphs = {name: graph_of(name) for name in PUBLISHED}

    def error(pair: tuple[float, float]) -> float:
        card = with_efficiencies(*pair)
        return sum(abs(math.log(ratio(name, graphs[name], card))) for name in FITTED)

    print("depthwise and grouped:", min(CANDIDATES, key=error))
    found = {name: ratio(name, graphs[name], DEVICE_KINDS["rtx3090"]) for name in PUBLISHED}
    for name, each in found.items():
        print(f"| {name} | {'fitted' if name in FITTED else ''} | {each:.2f} |")
    for what, names in (("fitted", FITTED), ("not fitted", PUBLISHED.keys() - FITTED)):
        errors = np.array([abs(found[name] - 1) for name in names])
        within = np.count_nonzero(errors <= 0.3)
        print(f"{what}: mean error {errors.mean():.1%}, {within} of {len(errors)} within 30 %")


if __name__ == "__main__":
    main()
