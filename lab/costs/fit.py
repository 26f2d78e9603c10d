"""Fit the efficiencies of device kinds to published step times, and print fit and residuals.

What it prints as efficiencies are the constants of `catalogue.toml` in placeto-graphs, and stands
in docs/costs.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from placeto import load_model_graph
from placeto.texts import TextTable
from placeto_capture.costs.op_classes import OpClass
from placeto_capture.costs.roofline import EFFICIENCIES, efficiency_array, work_of
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
    grouped_convolution=0.06,
    depthwise_convolution=0.1,
    matrix_product=0.65,
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
    grouped_convolution=0.5,
    depthwise_convolution=0.01,
    matrix_product=0.5,
    product_bytes=0.5,
    normalisation=0.25,
    elementwise=0.5,
    reduction=0.25,
    copy=0.5,
)
# The classes that are fitted, as the published steps tell most of them, and the factor, up or down,
# that one standard deviation of each is. The other classes stay where they are.
SPREAD = {OpClass.CONVOLUTION: 2.0, OpClass.DEPTHWISE_CONVOLUTION: 10.0}


@dataclass(frozen=True)
class Step:
    """A published time with what our graph says of it.

    Attributes
    ----------
    published : `PublishedStep`
        The time.
    overhead : float
        Seconds of the step that no efficiency changes: launches, and what passes between ops.
    by_class : float64[efficiencies]
        Seconds at the full peak and bandwidth of the work that reaches each efficiency.
    """

    published: PublishedStep
    overhead: float
    by_class: NDArray[np.float64]

    def runtime(self, efficiency: Efficiency) -> float:
        """Return the seconds of the step with some efficiencies."""
        return self.overhead + float((self.by_class / efficiency_array(efficiency)).sum())


def step_of(published: PublishedStep, graph: OpGraph, device: DeviceKind) -> Step:
    """Return what a graph says of a published time: all its ops run one after another."""
    classes, seconds = work_of(graph, device)
    counted = (classes >= 0) & np.isin(graph.phases, published.phases)
    by_class = np.zeros(len(EFFICIENCIES))
    np.add.at(by_class, classes[counted], seconds[counted])
    num_ops = int(np.count_nonzero(counted))
    overhead = num_ops * device.launch_overhead + max(num_ops - 1, 0) * device.op_overhead
    return Step(published, overhead, by_class)


def fit(steps: Sequence[Step], centre: Efficiency) -> Efficiency:
    """Return the efficiencies most plausible after some steps of one kind, to three digits.

    They minimise the sum of squares of how far the logarithm of each step is from the published
    one, in units of `DATA_SPREAD`, and of how far the logarithm of each fitted efficiency is from
    its centre, in units of the logarithm of its `SPREAD`.

    Parameters
    ----------
    steps
        What was published of the kind, and what our graphs say of it.
    centre
        Where the efficiencies begin; those that have no `SPREAD` stay there.
    """
    fitted = [position for position, op_class in enumerate(EFFICIENCIES) if op_class in SPREAD]
    spread = np.log(list(SPREAD.values()))
    start = np.log(efficiency_array(centre))[fitted]
    published = np.log([step.published.seconds for step in steps])
    by_class = np.array([step.by_class for step in steps])[:, fitted]
    rest = np.array([step.runtime(centre) for step in steps]) - by_class @ np.exp(-start)

    def residuals(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        runtime = rest + by_class @ np.exp(-logarithms)
        return np.concatenate(
            [(np.log(runtime) - published) / DATA_SPREAD, (logarithms - start) / spread]
        )

    solution = least_squares(residuals, start, method="lm", xtol=1e-12, ftol=1e-12)
    rounded = [float(f"{efficiency:.3g}") for efficiency in np.exp(solution.x)]
    return replace(centre, **dict(zip(SPREAD, rounded, strict=True)))


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
            step_of(published, graphs[published.model], device)
            for published in PUBLISHED_STEPS
            if published.kind == kind
        )
        centre = centres[kind] if kind in centres else fits["k80"].fitted
        fits[kind] = Fit(device, centre, fit(steps, centre), steps)
    return list(fits.values())


def efficiency_table(fits: Sequence[Fit]) -> TextTable:
    """Return the centres and the fitted efficiencies."""
    columns = ["class of op"]
    for fit in fits:
        columns += [f">{fit.device.name} before", ">fitted"]
    rows = []
    for op_class in EFFICIENCIES:
        row = [op_class.replace("_", " ")]
        for fit in fits:
            row += [f"{getattr(fit.centre, op_class):g}", f"{getattr(fit.fitted, op_class):g}"]
        rows.append(row)
    return TextTable("", columns, rows)


def residual_table(fits: Sequence[Fit]) -> TextTable:
    """Return the published and the fitted step times."""
    rows = []
    for fit in fits:
        for step in fit.steps:
            published, runtime = step.published, step.runtime(fit.fitted)
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
