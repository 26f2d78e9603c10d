"""Fit the efficiencies of device kinds to published step times, and print fit and residuals.

What it prints as efficiencies are the constants of `catalogue.toml` in placeto-graphs, and stands
in docs/costs.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from placeto import load_model_graph
from placeto.texts import TextTable
from placeto_capture import cost_model
from placeto_capture.costs.roofline import is_work
from placeto_graphs import DEVICE_KINDS, DeviceKind, Efficiency, OpGraph, Phase

WHOLE_STEP = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
# A step of plain gradient descent updates a parameter in one cheap op, not in the dozen of Adam.
WITHOUT_UPDATE = (Phase.FORWARD, Phase.BACKWARD)

DATA_SPREAD = 0.01  # of the logarithm of a step's time


@dataclass(frozen=True)
class PublishedStep:
    """How long one training step takes on one device, as published."""

    kind: str
    model: str  # as `load_model_graph` names it
    seconds: float
    phases: tuple[Phase, ...]  # what of our captured step it is the time of
    source: str


_PLACETO = "Addanki et al. 2019, table 1"
PUBLISHED_STEPS = (
    PublishedStep("k80", "inception-v3", 1.56, WHOLE_STEP, _PLACETO),
    PublishedStep("k80", "nasnet", 1.28, WHOLE_STEP, _PLACETO),
    PublishedStep("cpu", "inception-v3", 12.5, WHOLE_STEP, _PLACETO),
    PublishedStep("cpu", "nasnet", 37.5, WHOLE_STEP, _PLACETO),
    PublishedStep(
        "p100", "inception-v3", 64 / 142, WITHOUT_UPDATE, "TensorFlow benchmarks, May 2017"
    ),
    PublishedStep(
        "v100", "inception-v3", 64 / 259, WITHOUT_UPDATE, "Lambda Labs benchmarks, March 2019"
    ),
)


# What the efficiencies plausibly are before any step is looked at, in round figures. Copying memory
# reaches about 80 % of the bandwidth of a K80 (Jia et al. 2018, "Dissecting the NVIDIA Volta GPU
# Architecture via Microbenchmarking"), and elementwise ops come near; normalisation, reductions,
# pooling and strided copies less so, as they read their inputs more than once or out of order.
# Matrix products reach two thirds of the peak of Kepler, large convolutions about 40 %.
K80_CENTRE = Efficiency(
    convolution=0.4,
    matrix_product=0.65,
    tensor_core_convolution=0.8,
    tensor_core_product=0.8,
    attention=0.65,
    depthwise_convolution=0.1,
    product_bytes=0.65,
    normalisation=0.5,
    elementwise=0.75,
    reduction=0.5,
    copy=0.6,
)
# On the CPU without tuned kernels, as TensorFlow was without MKL: matrix products at half the peak,
# convolutions at half of that, memory at half its bandwidth where the access is simple.
CPU_CENTRE = Efficiency(
    convolution=0.25,
    matrix_product=0.5,
    tensor_core_convolution=0.5,
    tensor_core_product=0.5,
    attention=0.5,
    depthwise_convolution=0.01,
    product_bytes=0.5,
    normalisation=0.25,
    elementwise=0.5,
    reduction=0.25,
    copy=0.5,
)
# The classes that are fitted, as the published steps tell most of them, and the factor, up or down,
# that one standard deviation of each is. The other classes stay where they are.
SPREAD = {"convolution": 2.0, "depthwise_convolution": 10.0}


@dataclass(frozen=True)
class Step:
    """A published time, and our graph of the step."""

    published: PublishedStep
    graph: OpGraph

    def runtime(self, device: DeviceKind) -> float:
        """Return the simulated seconds of the step: all its ops run one after another."""
        counted = is_work(self.graph) & np.isin(self.graph.phases, self.published.phases)
        between = (np.count_nonzero(counted) - 1) * device.op_overhead
        return float(cost_model(self.graph, device)[counted].sum() + between)


def fit(steps: Sequence[Step], device: DeviceKind, centre: Efficiency) -> Efficiency:
    """Return the efficiencies most plausible after some steps of one kind, to three digits.

    They minimise the sum of squares of how far the logarithm of each step is from the published
    one, in units of `DATA_SPREAD`, and of how far the logarithm of each fitted efficiency is from
    its centre, in units of the logarithm of its `SPREAD`.

    Parameters
    ----------
    steps
        What was published of the kind, and our graphs of it.
    device
        The kind.
    centre
        Where the efficiencies begin; those that have no `SPREAD` stay there.
    """
    spread = np.log(list(SPREAD.values()))
    start = np.log([getattr(centre, name) for name in SPREAD])

    def changed(logarithms: NDArray[np.float64], digits: int = 17) -> Efficiency:
        values = [float(f"{value:.{digits}g}") for value in np.exp(logarithms)]
        return replace(centre, **dict(zip(SPREAD, values, strict=True)))

    def residuals(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        fitted = replace(device, efficiency=changed(logarithms))
        misses = [np.log(step.runtime(fitted) / step.published.seconds) for step in steps]
        return np.array([*np.array(misses) / DATA_SPREAD, *(logarithms - start) / spread])

    solution = least_squares(residuals, start, method="lm", xtol=1e-6, ftol=1e-6)
    return changed(solution.x, 3)


@dataclass(frozen=True)
class Fit:
    """The efficiencies of one kind, where they began, and the steps that they were fitted to."""

    device: DeviceKind
    centre: Efficiency
    fitted: Efficiency
    steps: tuple[Step, ...]


def fit_all(graphs: Mapping[str, OpGraph]) -> list[Fit]:
    """Fit every kind that has published steps; P100 and V100 begin where the K80 ended.

    Parameters
    ----------
    graphs
        The full-size graphs by the names that `PUBLISHED_STEPS` gives them.
    """
    centres = {"k80": K80_CENTRE, "cpu": CPU_CENTRE}
    fits: dict[str, Fit] = {}
    for kind in ("k80", "p100", "v100", "cpu"):
        device = DEVICE_KINDS[kind]
        steps = tuple(
            Step(published, graphs[published.model])
            for published in PUBLISHED_STEPS
            if published.kind == kind
        )
        centre = centres[kind] if kind in centres else fits["k80"].fitted
        fits[kind] = Fit(device, centre, fit(steps, device, centre), steps)
    return list(fits.values())


def efficiency_table(fits: Sequence[Fit]) -> TextTable:
    """Return the centres and the fitted efficiencies."""
    columns = ["class of op"]
    for fit in fits:
        columns += [f">{fit.device.name} before", ">fitted"]
    rows = []
    for name in asdict(fits[0].centre):
        row = [name.replace("_", " ")]
        for fit in fits:
            row += [f"{getattr(fit.centre, name):g}", f"{getattr(fit.fitted, name):g}"]
        rows.append(row)
    return TextTable("", columns, rows)


def residual_table(fits: Sequence[Fit]) -> TextTable:
    """Return the published and the fitted step times."""
    rows = []
    for fit in fits:
        for step in fit.steps:
            fitted = replace(fit.device, efficiency=fit.fitted)
            published, runtime = step.published, step.runtime(fitted)
            seconds = [f"{published.seconds:.3f} s", f"{runtime:.3f} s"]
            residual = f"{runtime / published.seconds - 1:+.1%}"
            rows.append([published.kind, published.model, *seconds, residual, published.source])
    columns = ["kind", "model", ">published", ">fitted", ">residual", "source"]
    return TextTable("", columns, rows)


def main() -> None:
    """Load the full-size graphs, fit, and print what the constants are to be."""
    graphs = {
        name: load_model_graph(name) for name in sorted({step.model for step in PUBLISHED_STEPS})
    }
    fits = fit_all(graphs)
    print(efficiency_table(fits).markdown(), end="\n\n")
    print(residual_table(fits).markdown())


if __name__ == "__main__":
    main()
