"""``placeto experiment fidelity``: simulated steps compared with measured ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

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
from placeto_experiments.paper.pages import paragraphs, table
from placeto_experiments.paper.plan import Plan, name_of

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
            source, tuple(known[source].items()), plan.groups or None, devices
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
            task = MeasurePlacements(graph, model, share, len(plan.seeds))
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
        page=partial(_page, names=names, shares=shares, runs=len(plan.seeds), devices=devices),
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
    placements = ""
    if not devices.are_cpus:
        told = _placements_table([(name, record) for name, _, record in records])
        placements = f"Step of each placement, measured and (simulated):\n\n{told}"
    names_of_devices = " and ".join(devices.names)
    errors = _table(records)
    return Page(
        paragraphs(
            "fidelity",
            runs=runs + 1,
            names=names_of_devices,
            devices=devices,
            errors=errors,
            placements=placements,
        )
    )


def _placements_table(records: Sequence[tuple[str, Measured]]) -> str:
    steps = {
        name: {
            row.placement: f"{seconds_text(row.measured)} ({seconds_text(row.simulated)})"
            for row in record.rows
        }
        for name, record in records
    }
    placements = next(iter(steps.values()))
    rows = [[each, *(of.get(each, "") for of in steps.values())] for each in placements]
    return table("|>".join(["placement", *steps]), rows)


def _table(records: Sequence[tuple[str, float | None, Measured]]) -> str:
    return table(
        "model|>links|>an op|>error|>worst|>rank correlation|>with slowdown|>with own times"
        "|>winner|>speed-up",
        [_row(*each) for each in records],
    )


def _row(name: str, share: float | None, record: Measured) -> list[str]:
    def values(field: str) -> NDArray[np.float64]:
        return np.array([getattr(row, field) for row in record.rows], np.float64)

    def errors(field: str) -> NDArray[np.float64]:
        """Return errors as fractions of the measured runtime, NaN where nothing is known."""
        return np.abs(values(field) / values("measured") - 1)

    simulated, measured = values("simulated"), values("measured")
    mean = {field: errors(field).mean() for field in ("simulated", "slowed", "own_times")}
    single = next(row.measured for row in record.rows if row.placement == SINGLE)
    winner = measured[simulated.argmin()]
    return [
        name,
        "real" if share is None else share_text(share),
        seconds_text(record.op_seconds / record.ops),
        share_text(mean["simulated"]),
        share_text(errors("simulated").max()),
        f"{spearmanr(simulated, measured).statistic:.2f}",
        "" if np.isnan(mean["slowed"]) else share_text(mean["slowed"]),
        share_text(mean["own_times"]),
        share_text(winner / measured.min() - 1),
        f"{single / winner:.2f}",
    ]
