"""``placeto experiment fidelity``: simulated steps compared with measured ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from placeto.errors import InputError
from placeto.texts import seconds_text, share_text
from placeto.trials.records import Measured
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial, placing
from placeto_execution.devices import RealDevices
from placeto_experiments.paper.fidelity_tasks import (
    TWO_CPUS,
    MeasurePlacements,
    RunnableModel,
    profiling,
)
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import name_of
from placeto_experiments.paper.wording import markdown_table

SHARES = (None, 0.4)  # None: real links
SINGLE = "single"
# Models in sizes of which a step takes some tenths of a second on one core.
MODELS: Mapping[str, Mapping[str, int]] = {
    "inception-v3": {"batch_size": 1},
    "nasnet": {"batch_size": 2, "image_size": 128},
    "nmt-2": {"steps": 8, "batch_size": 32, "units": 256, "vocabulary_size": 2000},
    "cifar10:3": {"filters": 2, "cells_per_stage": 1},
    "ptb:3": {"units": 16, "vocabulary_size": 100},
    "nmt:3": {"units": 32, "vocabulary_size": 1000},
    "transformers:resnet": {"batch_size": 2},
    "transformers:gpt2": {"n_layer": 2, "batch_size": 2, "sequence_length": 64, "vocab_size": 5000},
}
# With a GPU: those of table 1, in sizes of which a step takes some seconds on some cores.
GPU_MODELS: Mapping[str, Mapping[str, int]] = {
    "inception-v3": {"batch_size": 16},
    "nasnet": {"batch_size": 16},
    "nmt-2": {"steps": 16, "batch_size": 64, "units": 1024, "vocabulary_size": 10_000},
}
SMOKE_MODELS: Mapping[str, Mapping[str, int]] = {
    "nmt-2": {"steps": 3, "batch_size": 4, "units": 16, "vocabulary_size": 20},
}


@dataclass(frozen=True)
class Agreement:
    """Agreement of N simulated runtimes with measured ones."""

    simulated: NDArray[np.float64]
    measured: NDArray[np.float64]

    @property
    def errors(self) -> NDArray[np.float64]:
        """float64[N], errors as fractions of the measured runtime."""
        return np.abs(self.simulated / self.measured - 1)

    @property
    def rank_correlation(self) -> float:
        """Spearman's."""
        return float(spearmanr(self.simulated, self.measured).statistic)

    @property
    def regret(self) -> float:
        """Fraction by which the placement that wins in simulation is slower than the fastest."""
        return float(self.measured[self.simulated.argmin()] / self.measured.min() - 1)


def runnable_models(
    chosen: Sequence[str], plan: Plan, devices: RealDevices = TWO_CPUS
) -> dict[Graph, RunnableModel]:
    """Return models that run on two devices of this machine, by their problems.

    They are the chosen ones, by default all; the smoke scale has one tiny model. An unknown model
    is an `InputError`.
    """
    known = SMOKE_MODELS if plan.is_smoke else MODELS if devices.are_cpus else GPU_MODELS
    for source in chosen:
        if source not in known:
            raise InputError(f"{source}: expected one of {', '.join(known)}")
    return {
        Graph(name_of(source)): RunnableModel(
            source, tuple(known[source].items()), plan.scale.num_groups, devices
        )
        for source in chosen or known
    }


def fidelity(chosen: Sequence[str], plan: Plan, devices: RealDevices = TWO_CPUS) -> Experiment:
    """Return the experiment on two devices of this machine; ``seeds`` are runs that count."""
    if len(devices.names) != 2:
        raise InputError(f"--devices: expected two, got {', '.join(devices.names)}")
    models = runnable_models(chosen, plan, devices)
    shares: Sequence[float | None] = SHARES[1:2] if plan.is_smoke else SHARES
    if not devices.are_cpus:
        shares = SHARES[:1]  # links of GPUs are not emulated
    trials: list[Trial] = []
    for graph, model in models.items():
        profile = profiling(graph, model)
        trials.append(profile)
        for share in shares:
            task = MeasurePlacements(graph, model, share, plan.scale.seeds)
            trial = placing(task, f"{share}", graph, None, profile.name)
            trials.append(replace(trial, measured=True))
    names = [graph.name for graph in models]
    return Experiment(
        name="fidelity",
        title="Simulated steps and steps that ran",
        options={
            "models": {model.source: dict(model.sizes) for model in models.values()},
            "devices": devices.names,
            "threads": devices.threads,
        },
        problems={},
        trials=trials,
        page=partial(_page, names=names, shares=shares, runs=plan.scale.seeds, devices=devices),
    )


def _page(
    results: Results,
    names: Sequence[str],
    shares: Sequence[float | None],
    runs: int,
    devices: RealDevices,
) -> Page:
    records = [
        (name, share, results.record(Measured, f"{share}", name, 0))
        for name in names
        for share in shares
    ]
    parts = [
        f"Each placement ran {runs + 1} times on {' and '.join(devices.names)}, with "
        f"{devices.threads} threads for each op on a CPU; the first run does not count, of the "
        "others the median. Devices keep the simulated order. *Links* are those between the "
        "devices (*real*), or emulated ones: bytes leave a process at a bandwidth with which, in a "
        "step that is cut in two halves, the busier link carries tensors for this share of it. Op "
        "times are those of the whole step on one device of each kind. *Error* is the mean, and "
        "*worst* the largest, difference of the simulated runtime from the measured one, as a "
        "fraction of that.",
        _table(records),
        "- *with slowdown*: the error if each op is slower in the simulation while the other "
        "device is busy, by as much as in runs of the whole step on both devices at once.\n"
        "- *with own times*: the error that is left if each op takes in the simulation what it "
        "took in these very runs.\n"
        "- *winner*: by how much the placement that wins in simulation is slower than the "
        "fastest of all that were measured.\n"
        "- *speed-up*: the measured step of the winner, relative to everything on one device.",
    ]
    if not devices.are_cpus:
        parts += [
            "Step of each placement, measured and (simulated):",
            _placements_table([(name, record) for name, _, record in records]),
        ]
    return Page(parts)


def _placements_table(records: Sequence[tuple[str, Measured]]) -> str:
    steps = {
        name: {
            row.placement: f"{seconds_text(row.measured)} ({seconds_text(row.simulated)})"
            for row in record.rows
        }
        for name, record in records
    }
    columns = {f">{name}": _step_of(own) for name, own in steps.items()}
    placements = list(next(iter(steps.values())))
    return markdown_table(placements, {"placement": lambda placement: placement, **columns})


def _step_of(steps: Mapping[str, str]) -> Callable[[str], str]:
    return lambda placement: steps.get(placement, "")


def _agreement(record: Measured, simulated: str = "simulated") -> Agreement:
    pairs = np.array([attrgetter(simulated, "measured")(row) for row in record.rows])
    return Agreement(pairs[:, 0], pairs[:, 1])


def _table(records: Sequence[tuple[str, float | None, Measured]]) -> str:
    def error_of(record: Measured, simulated: str) -> str:
        if any(getattr(row, simulated) is None for row in record.rows):
            return ""
        return share_text(_agreement(record, simulated).errors.mean())

    def speed_up(record: Measured, agreement: Agreement) -> float:
        single = next(row.measured for row in record.rows if row.placement == SINGLE)
        return float(single / agreement.measured[agreement.simulated.argmin()])

    rows = [(name, share, record, _agreement(record)) for name, share, record in records]
    return markdown_table(
        rows,
        {
            "model": lambda row: row[0],
            ">links": lambda row: "real" if row[1] is None else share_text(row[1]),
            ">an op": lambda row: seconds_text(row[2].op_seconds / row[2].ops),
            ">error": lambda row: share_text(row[3].errors.mean()),
            ">worst": lambda row: share_text(row[3].errors.max()),
            ">rank correlation": lambda row: f"{row[3].rank_correlation:.2f}",
            ">with slowdown": lambda row: error_of(row[2], "slowed"),
            ">with own times": lambda row: error_of(row[2], "own_times"),
            ">winner": lambda row: share_text(row[3].regret),
            ">speed-up": lambda row: f"{speed_up(row[2], row[3]):.2f}",
        },
    )
