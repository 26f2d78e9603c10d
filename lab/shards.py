"""Copies with whole and sharded weights, and in stages, beside published steps.

``python lab/shards.py`` simulates the steps of `shards.toml` with copy r on device r, or with its
stages in machines of their own. The times of ops that depend on the batch are such that the
reference of each row takes its published time; nothing else is fitted. The table is that of
docs/copies.md.
"""

import argparse
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from copies import in_one_group, with_step_time

from ledger.models import Transformer
from placeto import capture_step
from placeto.exporting.layers import ModelChain
from placeto.texts import TextTable
from placeto_graphs import (
    Cluster,
    Grouping,
    PlacementProblem,
    copied,
    parse_cluster,
    repeat_micro_batch_problem,
    sharded,
)
from placeto_simulator import Simulator

ROWS = tomllib.loads(Path(__file__).with_name("shards.toml").read_text())["rows"]
ROUNDS = 2  # in which the time of one device follows from that of the reference


@dataclass(frozen=True)
class Step:
    """Copies of a model, how they share its weights, and the published time of their step."""

    copies: int
    seconds: float
    way: str = "copy"  # "keep": sharded, and gathered weights stay; "shard": gathered again
    stages: int = 1
    micro_batches: int | None = None  # of each copy, if another number than that of the row


@dataclass(frozen=True)
class Row:
    """A model on equal devices of equal machines."""

    source: str
    cluster: str
    model: dict[str, Any]
    reference: dict[str, Any]
    steps: list[dict[str, Any]]
    link: str | None = None
    cards: int = 1  # network cards of each machine
    micro_batches: int = 1

    @property
    def devices(self) -> Cluster:
        """The devices, whose machines have all their network cards."""
        cluster = parse_cluster(self.cluster, link=self.link)
        apart = cluster.machine[:, None] != cluster.machine
        return replace(cluster, bandwidth=cluster.bandwidth * np.where(apart, self.cards, 1))

    def simulated(self, whole: PlacementProblem, step: Step) -> float:
        """Return the seconds of a step, from those of one micro-batch on one device."""
        cluster, count = whole.cluster, step.copies
        micro_batches = step.micro_batches or self.micro_batches
        if step.stages > 1:
            chain = ModelChain(whole)  # what is before and behind the layers is on the outer stages
            number = chain.labels - chain.layers.index("layers.0")
            stage_of_op = np.clip(number * step.stages // self.model["layers"], 0, step.stages - 1)
            names = tuple(map(str, range(step.stages)))
            whole = replace(whole, grouping=Grouping(group_of=stage_of_op, group_names=names))
        copy = repeat_micro_batch_problem(whole, micro_batches)
        per_machine = cluster.num_devices // len(cluster.machine_names)
        devices = np.arange(count)[:, None] + per_machine * np.arange(step.stages)
        machines = cluster.machine[devices[:, 0]].tolist()
        if step.way == "copy":
            problem = copied([copy] * count, machines=machines)
        else:
            keeps = step.way == "keep"
            problem = sharded([copy] * count, machines=machines, keep_weights=keeps)
        placement = devices.ravel().astype(np.int32)
        return float(Simulator(problem, num_threads=1).runtimes(placement[None])[0])

    def results(self) -> Iterator[tuple[Step, float]]:
        """Yield each step, and its simulated seconds."""
        sizes = Transformer(**self.model)
        graph = capture_step(sizes.step(), autocast=sizes.autocast)
        fitted = self.fitted(in_one_group(graph, self.devices), Step(**self.reference))
        for step in self.steps:
            yield Step(**step), self.simulated(fitted, Step(**step))

    def fitted(self, whole: PlacementProblem, reference: Step) -> PlacementProblem:
        """Return a micro-batch with op times by which the reference takes its published time."""
        seconds = reference.seconds / self.micro_batches
        fitted = with_step_time(whole, seconds)
        for _ in range(ROUNDS):
            seconds *= reference.seconds / self.simulated(fitted, reference)
            fitted = with_step_time(whole, seconds)
        return fitted


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="SOURCE")
    only = parser.parse_args().only
    cells, errors = [], []
    for row in (Row(**row) for row in ROWS if only in row["source"]):
        reference = Step(**row.reference)
        for step, seconds in row.results():
            published, simulated = (time / reference.seconds for time in (step.seconds, seconds))
            errors.append(abs(simulated / published - 1))
            sizes = f"{row.model['layers']} x {row.model['width']}"
            stages = f", {step.stages} stages" if step.stages > 1 else ""
            name = f"{row.source}, {sizes}: {step.copies} copies, {step.way}{stages}"
            relative_to = f"{reference.copies}, {reference.way}"
            error = f"{simulated / published - 1:+.1%}"
            cells.append([name, relative_to, f"{published:.3f}", f"{simulated:.3f}", error])
            print(cells[-1], flush=True)
    columns = ["step", "relative to", ">published", ">simulated", ">residual"]
    print(TextTable("", columns, cells).markdown())
    print(f"mean error {np.mean(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
