"""Compare steps on one device with published ones, to half of which efficiencies are fitted.

``cd lab && python costs/published.py`` prints a table of all steps, and the mean errors of both
halves. With ``--fit`` it also prints the efficiencies that fit each kind best. It needs timm and
torchvision, and half an hour. `published.toml` has the steps with their sources.
"""

import argparse
import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares

from ledger.models import BERTS
from placeto import capture_step
from placeto.texts import TextTable
from placeto_capture import cost_model
from placeto_capture.costs.roofline import Tf32
from placeto_graphs import DEVICE_KINDS, DeviceKind, OpGraph, Phase
from placeto_workloads import TrainingStep, library_step

# Layers, width and heads of MPT.
GPTS = {
    "gpt-125m": (12, 768, 12),
    "gpt-350m": (24, 1024, 16),
    "gpt-760m": (24, 1536, 12),
    "gpt-1b": (24, 2048, 16),
    "gpt-3b": (32, 2560, 20),
}
PRECISION_OF_BERT = {"mixed": "float16"}  # the mode O2 of apex: weights of 16 bits
AUTOCAST = {"mixed": torch.float16, "mixed-bfloat16": torch.bfloat16}
# The efficiencies that are fitted, each between 0.1 and 1.
FITTED = ("convolution", "matrix_product", "tensor_core_convolution", "tensor_core_product")
SPREAD = 0.3  # of the logarithm of an efficiency, where steps have a spread of 0.1


@dataclass(frozen=True)
class PublishedStep:
    """A step, how many samples (tokens of a gpt) it makes a second, and whether it is fitted."""

    kind: str
    precision: str
    mode: str
    model: str
    batch: int
    size: int  # side of the images, or length of the sequences
    rate: float
    is_fitted: bool

    @property
    def seconds(self) -> float:
        """Published seconds of the step."""
        samples = self.batch * self.size if self.model.startswith("gpt") else self.batch
        return samples / self.rate

    def graph(self) -> OpGraph:
        """Capture the step."""
        autocast = None if self.model in BERTS else AUTOCAST.get(self.precision)
        return capture_step(self.step(), autocast=autocast)

    def step(self) -> TrainingStep:
        """Build the step: gradient descent with momentum for images, Adam for others."""
        if self.model in BERTS:
            sizes = replace(
                BERTS[self.model],
                batch=self.batch,
                length=self.size,
                dropout=True,
                predicts_words=False,
                precision=PRECISION_OF_BERT.get(self.precision, "float32"),
            )
            return sizes.step()
        if self.model.startswith("gpt"):
            return self._gpt()
        step = library_step(self.model, batch_size=self.batch)
        images = torch.empty(self.batch, 3, self.size, self.size, device="meta")
        if self.mode == "inference":
            return TrainingStep(step.model.eval(), (images,), mode="inference")
        make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        return step._replace(example_inputs=(images, *step.example_inputs[1:]), optimizer=make)

    def _gpt(self) -> TrainingStep:
        layers, width, heads = GPTS[self.model.partition(",")[0]]
        step = library_step(
            "transformers:gpt2",
            batch_size=self.batch,
            sequence_length=self.size,
            n_layer=layers,
            n_embd=width,
            n_head=heads,
            n_positions=self.size,
            activation_function="gelu",
            vocab_size=50_368,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
        if self.precision == "bfloat16":
            step.model.to(torch.bfloat16)
        return step._replace(optimizer=partial(torch.optim.SGD, lr=0.1))

    def ratio(self, graph: OpGraph, device: DeviceKind) -> float:
        """Return the simulated over the published time; a gpt counts without its update."""
        tf32: Tf32 = "never" if self.precision == "float32" else "always"
        times = cost_model(graph, device, tf32=tf32) + device.op_overhead
        is_counted = times > device.op_overhead
        if self.model.startswith("gpt"):
            is_counted &= graph.phases != Phase.UPDATE
        return float(times[is_counted].sum() / self.seconds)


def published_steps() -> list[PublishedStep]:
    """Return the steps of `published.toml`, of which every second one of a table is fitted."""
    text = Path(__file__).with_suffix(".toml").read_text()
    tables: list[dict[str, Any]] = tomllib.loads(text)["tables"]
    return [
        PublishedStep(
            kind=table["kind"],
            precision=table["precision"],
            mode=table.get("mode", "training"),
            model=model,
            batch=row[0],
            size=row[1],
            rate=row[2],
            is_fitted=position % 2 == 0,
        )
        for table in tables
        for position, (model, row) in enumerate(table["rows"].items())
    ]


def with_efficiencies(device: DeviceKind, values: Iterable[float]) -> DeviceKind:
    """Return a kind with other efficiencies of products."""
    changes = dict(zip(FITTED, values, strict=True))
    return replace(device, efficiency=replace(device.efficiency, **changes))


def fit(device: DeviceKind, steps: Sequence[tuple[PublishedStep, OpGraph]]) -> DeviceKind:
    """Return a kind whose efficiencies fit some steps best, and stay near those that it has."""
    start = np.log([getattr(device.efficiency, name) for name in FITTED])

    def residuals(logarithms: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
        changed = with_efficiencies(device, np.exp(logarithms).tolist())
        misses = [math.log(step.ratio(graph, changed)) / 0.1 for step, graph in steps]
        return [*misses, *((logarithms - start) / SPREAD)]

    solution = least_squares(residuals, start, bounds=(math.log(0.1), 1e-9), diff_step=0.02)
    return with_efficiencies(device, [float(f"{value:.2g}") for value in np.exp(solution.x)])


def error_line(title: str, ratios: Iterable[float]) -> str:
    """Return the mean error of some steps, and how many are within 15 and 30 %."""
    errors = np.abs(np.array(list(ratios)) - 1)
    within = [np.count_nonzero(errors <= limit) for limit in (0.15, 0.3)]
    return (
        f"{title}: mean error {errors.mean():.1%} of {len(errors)} steps, {within[0]} within 15 %, "
        f"{within[1]} within 30 %"
    )


def main() -> None:
    """Print the table, and the efficiencies that fit best if they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    wants_fit = parser.parse_args().fit
    graphs = {step: step.graph() for step in published_steps()}
    if wants_fit:
        for kind in dict.fromkeys(step.kind for step in graphs):
            fitted = [(step, graphs[step]) for step in graphs if step.kind == kind]
            fitted = [(step, graph) for step, graph in fitted if step.is_fitted]
            efficiency = fit(DEVICE_KINDS[kind], fitted).efficiency
            print(kind, {name: getattr(efficiency, name) for name in FITTED})
    ratios = {step: step.ratio(graph, DEVICE_KINDS[step.kind]) for step, graph in graphs.items()}
    rows = [
        [
            step.kind,
            step.precision,
            step.mode,
            step.model,
            "fitted" * step.is_fitted,
            f"{ratio:.2f}",
        ]
        for step, ratio in ratios.items()
    ]
    columns = ["kind", "precision", "step", "model", "", ">simulated / published"]
    print(TextTable("", columns, rows).markdown())
    for mode in ("training", "inference"):
        of_mode = {step: ratio for step, ratio in ratios.items() if step.mode == mode}
        for title, is_fitted in (("fitted", True), ("not fitted", False)):
            half = [ratio for step, ratio in of_mode.items() if step.is_fitted == is_fitted]
            print(error_line(f"{mode}, {title}", half))


if __name__ == "__main__":
    main()
