"""Fit the efficiencies of device kinds to published step times, and print fit and residuals.

What it prints as efficiencies are the constants of `kinds.py`, and stands in docs/workloads.md.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import OpGraph
from placeto_graphs import Phase
from placeto_workloads.costs.kinds import CPU
from placeto_workloads.costs.kinds import K80
from placeto_workloads.costs.kinds import P100
from placeto_workloads.costs.kinds import V100
from placeto_workloads.costs.kinds import DeviceKind
from placeto_workloads.costs.kinds import Efficiency
from placeto_workloads.costs.op_classes import OpClass
from placeto_workloads.costs.roofline import overhead_between
from placeto_workloads.costs.roofline import work_of

WHOLE_STEP = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
# A step of plain gradient descent updates a parameter in one cheap op, not in the dozen of Adam.
WITHOUT_UPDATE = (Phase.FORWARD, Phase.BACKWARD)

DATA_SPREAD = 0.01  # of the logarithm of a step's time
ROUNDS = 50


@dataclass(frozen=True)
class PublishedStep:
    """How long one training step takes, as published.

    Attributes
    ----------
    kind : text
        The kind of the one device that it ran on.
    model : text
        As `load` names it.
    seconds : float
        Of the step.
    phases
        What of our captured step it is the time of.
    source : text
        Where it was published.
    """

    kind: str
    model: str
    seconds: float
    phases: tuple[Phase, ...]
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


# Round figures. Copying memory reaches about 80 % of the bandwidth of a K80 (Jia et al. 2018,
# "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking"), and elementwise ops are not
# far from it; reductions, pooling, normalisation and strided copies are, as they read their inputs
# more than once or out of order. Matrix products reach two thirds of the peak of Kepler, large
# convolutions about 40 %.
K80_CENTRE = Efficiency(
    convolution=0.4,
    depthwise_convolution=0.1,
    matrix_product=0.65,
    normalisation=0.5,
    elementwise=0.75,
    reduction=0.5,
    copy=0.6,
)
# Round figures, too, of frameworks without a library of tuned kernels for the CPU, as TensorFlow
# was without MKL: matrix products on all cores at half the peak, convolutions at half of that, and
# memory at half its bandwidth where the access is simple.
CPU_CENTRE = Efficiency(
    convolution=0.25,
    depthwise_convolution=0.01,
    matrix_product=0.5,
    normalisation=0.25,
    elementwise=0.5,
    reduction=0.25,
    copy=0.5,
)
# The factor, up or down, that one standard deviation is.
SPREAD = {
    OpClass.CONVOLUTION: 2.0,
    OpClass.DEPTHWISE_CONVOLUTION: 10.0,
    OpClass.MATRIX_PRODUCT: 1.5,
    OpClass.NORMALISATION: 1.5,
    OpClass.ELEMENTWISE: 1.2,
    OpClass.REDUCTION: 1.5,
    OpClass.COPY: 1.5,
}


@dataclass(frozen=True)
class Step:
    """A published time with what our graph says of it.

    Attributes
    ----------
    published : `PublishedStep`
        The time.
    overhead : float
        Seconds of the step that no efficiency changes: launches, and what passes between ops.
    by_class : float64[classes]
        Seconds that the work of each class takes at the full peak and bandwidth.
    """

    published: PublishedStep
    overhead: float
    by_class: NDArray[np.float64]

    def runtime(self, efficiency: Efficiency) -> float:
        """Return the seconds of the step with some efficiencies."""
        return self.overhead + float((self.by_class / _as_array(efficiency)).sum())


def step_of(published: PublishedStep, graph: OpGraph, device: DeviceKind) -> Step:
    """Return what a graph says of a published time: all its ops run one after another."""
    work = work_of(graph, device)
    counted = ~work.resident & np.isin(graph.phases, published.phases)
    by_class = np.zeros(len(OpClass))
    np.add.at(by_class, work.op_class[counted], work.seconds[counted])
    num_ops = np.count_nonzero(counted)
    overhead = num_ops * device.launch_overhead + overhead_between(num_ops, device.name)
    return Step(published, overhead, by_class)


def fit(steps: Sequence[Step], centre: Efficiency) -> Efficiency:
    """Return the efficiencies most plausible after some steps of one kind, to three digits.

    They minimise the sum of squares of how far the logarithm of each step is from the published
    one, in units of `DATA_SPREAD`, and of how far the logarithm of each efficiency is from its
    centre, in units of the logarithm of its `SPREAD` (Gauss-Newton with halved steps).
    """
    start = np.log(_as_array(centre))
    spread = np.log([SPREAD[op_class] for op_class in OpClass])
    published = np.log([step.published.seconds for step in steps])
    by_class = np.array([step.by_class for step in steps])
    overhead = np.array([step.overhead for step in steps])

    def residuals(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        runtime = overhead + (by_class / np.exp(logarithms)).sum(axis=1)
        return np.concatenate(
            [(np.log(runtime) - published) / DATA_SPREAD, (logarithms - start) / spread]
        )

    current = start
    for _ in range(ROUNDS):
        shares = by_class / np.exp(current)
        slopes = -shares / (overhead + shares.sum(axis=1))[:, None] / DATA_SPREAD
        jacobian = np.concatenate([slopes, np.diag(1 / spread)])
        before = residuals(current)
        change = np.linalg.lstsq(jacobian, -before)[0]
        while (residuals(current + change) ** 2).sum() > (before**2).sum():
            change /= 2
        current += change
    rounded = [float(f"{value:.3g}") for value in np.exp(current)]
    return Efficiency(**dict(zip(OpClass, rounded, strict=True)))


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
    k80 = _fit_kind(K80, K80_CENTRE, graphs)
    return [
        k80,
        _fit_kind(P100, k80.fitted, graphs),
        _fit_kind(V100, k80.fitted, graphs),
        _fit_kind(CPU, CPU_CENTRE, graphs),
    ]


def _fit_kind(device: DeviceKind, centre: Efficiency, graphs: Mapping[str, OpGraph]) -> Fit:
    steps = tuple(
        step_of(published, graphs[published.model], device)
        for published in PUBLISHED_STEPS
        if published.kind == device.name
    )
    return Fit(device, centre, fit(steps, centre), steps)


def efficiency_table(fits: Sequence[Fit]) -> str:
    """Return the centres and the fitted efficiencies as a Markdown table."""
    lines = [
        "| class of op | "
        + " | ".join(f"{fit.device.name} before | fitted" for fit in fits)
        + " |",
        "|---|" + "---:|---:|" * len(fits),
    ]
    for op_class in OpClass:
        cells = [
            f"{getattr(fit.centre, op_class):g} | {getattr(fit.fitted, op_class):g}" for fit in fits
        ]
        lines.append(f"| {op_class.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def residual_table(fits: Sequence[Fit]) -> str:
    """Return the published and the fitted step times as a Markdown table."""
    lines = [
        "| kind | model | published | fitted | residual | source |",
        "|---|---|---:|---:|---:|---|",
    ]
    for fit in fits:
        for step in fit.steps:
            published, runtime = step.published, step.runtime(fit.fitted)
            lines.append(
                f"| {published.kind} | {published.model} | {published.seconds:.3f} s "
                f"| {runtime:.3f} s | {runtime / published.seconds - 1:+.1%} | {published.source} |"
            )
    return "\n".join(lines)


def share_table(fits: Sequence[Fit]) -> str:
    """Return where the time of the fitted steps goes as a Markdown table."""
    header = ["overhead", *(op_class.replace("_", " ") for op_class in OpClass)]
    lines = [
        f"| kind | model | {' | '.join(header)} |",
        "|---|---|" + "---:|" * len(header),
    ]
    for fit in fits:
        for step in fit.steps:
            seconds = [step.overhead, *(step.by_class / _as_array(fit.fitted))]
            shares = " | ".join(f"{part / sum(seconds):.1%}" for part in seconds)
            lines.append(f"| {fit.device.name} | {step.published.model} | {shares} |")
    return "\n".join(lines)


def _as_array(efficiency: Efficiency) -> NDArray[np.float64]:
    return np.array([getattr(efficiency, op_class) for op_class in OpClass])


def main() -> None:
    """Load the full-size graphs, fit, and print what the constants are to be."""
    graphs = {name: load(name) for name in sorted({step.model for step in PUBLISHED_STEPS})}
    fits = fit_all(graphs)
    print(efficiency_table(fits))
    print(f"\n{residual_table(fits)}")
    print(f"\n{share_table(fits)}")


if __name__ == "__main__":
    main()
