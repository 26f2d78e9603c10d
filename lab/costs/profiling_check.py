"""Do the times of single ops add up?  ``python lab/costs/profiling_check.py``.

Measures each op of small models on a device, and the same training step as PyTorch runs it.
"""

import argparse
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import torch
from torch import nn

from placeto_capture.profiling.profiler import median_seconds, profile

TOLERANCE = 0.25
WARMUP = 2  # runs before those that count
SGD = partial(torch.optim.SGD, lr=1e-3, momentum=0.9, foreach=False)


def convolutional_network() -> tuple[nn.Module, torch.Tensor]:
    """Return a network of six convolutions, and a batch of 32 images."""
    layers: list[nn.Module] = []
    for number, channels in enumerate((3, 32, 32, 64, 64, 128)):
        width = (32, 32, 64, 64, 128, 128)[number]
        stride = 2 if number in (2, 4) else 1
        layers += [
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(32, 3, 32, 32)


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    """Return a network of four matrix products, and a batch of 256 vectors."""
    widths = (512, 1024, 1024, 1024, 10)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(256, 512)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "convolutional network": convolutional_network,
    "perceptron": perceptron,
}


@dataclass(frozen=True)
class Row:
    """A training step: the number of ops that take time, and the medians of what was measured.

    The ratio is the median of the ratios of the rounds, each of which measures the sum of ops and
    the eager step right after each other.
    """

    model: str
    num_ops: int
    sum_of_ops: float
    eager_step: float
    ratio: float


def measure(name: str, device: torch.device, rounds: int, repeats: int) -> Row:
    """Measure one model in both ways, several times in turn, as machines have slower moments."""
    model, inputs = MODELS[name]()
    model, inputs = model.to(device), inputs.to(device)
    optimizer = SGD(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()

    num_ops, sums, steps = 0, [], []
    for number in range(rounds):
        times = profile(
            model, inputs, device, optimizer=SGD, warmup=WARMUP, repeats=repeats, seed=number
        )
        num_ops = int((times > 0).sum())
        sums.append(float(times.sum()))
        steps.append(median_seconds(step, device, WARMUP, repeats))
    ratio = median(total / eager for total, eager in zip(sums, steps, strict=True))
    return Row(name, num_ops, median(sums), median(steps), ratio)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; the exit code is 1 when a sum is further than 25 % from the eager step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5, help="of measuring both ways")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each op and of the step")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    rows = [
        measure(name, options.device, options.rounds, options.repeats) for name in options.models
    ]
    print(f"torch {torch.__version__} on {options.device}, {platform.machine()}, ", end="")
    print(f"{torch.get_num_threads()} thread(s)\n")
    print("| model | ops | sum of op times | eager step | ratio |")
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row.model} | {row.num_ops} | {row.sum_of_ops * 1e3:.1f} ms "
            f"| {row.eager_step * 1e3:.1f} ms | {row.ratio:.2f} |"
        )
    return int(any(abs(row.ratio - 1) > TOLERANCE for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
