"""Speed-ups of data parallel training, simulated beside published ones: ``python lab/copies.py``.

The rows are those of `copies.toml`. Each op of a step that depends on the batch takes such a
part of its modelled time that one device has the published rate, so that only what copies add is
left to the model. What collectives reach of PCI Express is fitted to the rows in float32 of
Lambda; all others are shown. The table is that of docs/copies.md. It needs torchvision. With
``--default-buckets`` all models have buckets of 25 MiB, as in PyTorch.
"""

import argparse
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ledger.models import BERTS
from placeto import capture_step
from placeto.problems.making import compute_times
from placeto.texts import TextTable
from placeto_graphs import (
    Cluster,
    Grouping,
    OpGraph,
    PlacementProblem,
    copied,
    parse_cluster,
    parts_of_batch,
)
from placeto_simulator import Simulator
from placeto_workloads import library_step

ROWS = tomllib.loads(Path(__file__).with_name("copies.toml").read_text())["rows"]
CAPTURED_BATCH = 8  # what depends on the batch is scaled to the published rate
LENGTH_OF_BERT = 384  # words of a sequence
KINDS = {"a100-80gb-pcie": "a100-80gb"}
LINKS = {"v100": "pcie-3-x16", "rtx3090": "pcie-4-x16", "a100-80gb-pcie": "pcie-4-x16"}
DEFAULT_BUCKET = 25 * 2**20  # bytes
ONE_BUCKET = 2**40
FRACTIONS = [fraction / 100 for fraction in range(10, 101)]


class Ratio(NamedTuple):
    """A published speed-up over one device, and the problem of it."""

    name: str
    link: str
    is_fitted: bool
    published: float
    seconds: float  # of one device
    problem: PlacementProblem  # with all of the bandwidth


@dataclass(frozen=True)
class Row:
    """What one model reaches on 1, 2, 4 and 8 devices."""

    source: str
    kind: str
    model: str
    precision: str
    batch: int
    rates: list[float]

    @property
    def link(self) -> str:
        """The link of the devices; the eight cards of server-gear share a host bridge."""
        return LINKS[self.kind] if self.source == "lambda" else "pcie-shared"

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a bucket of gradients: of BERT and of TensorFlow all of them."""
        is_convolutional = self.model not in BERTS
        return DEFAULT_BUCKET if is_convolutional and self.source == "lambda" else ONE_BUCKET

    def cluster(self, count: int) -> Cluster:
        """Return the devices, on whose links collectives reach all of the bandwidth."""
        link = self.link if count > 1 else None
        cluster = parse_cluster(f"{count}x{KINDS.get(self.kind, self.kind)}", link=link)
        return replace(cluster, collective_fraction=None)

    def step(self, count: int) -> PlacementProblem:
        """Return the problem of one copy, whose step takes as long as published."""
        whole = in_one_group(captured(self.model, self.precision), self.cluster(count))
        return with_step_time(whole, self.batch / self.rates[0])

    def ratios(self, bucket_bytes: int) -> Iterator[Ratio]:
        """Yield each speed-up over one device."""
        for count, rate in zip((2, 4, 8), self.rates[1:], strict=False):
            step = self.step(count)
            first = 2**20 if bucket_bytes == DEFAULT_BUCKET else bucket_bytes
            problem = copied([step] * count, bucket_bytes=bucket_bytes, first_bucket_bytes=first)
            yield Ratio(
                f"{self.source}, {self.model}, {self.precision}, {self.batch}, {count} {self.kind}",
                self.link,
                self.source == "lambda" and self.precision == "float32",
                rate / self.rates[0],
                self.batch / self.rates[0],
                problem,
            )


def in_one_group(graph: OpGraph, cluster: Cluster) -> PlacementProblem:
    """Return the problem of a step whose ops are all in one group."""
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=compute_times(graph, cluster),
        grouping=Grouping(group_of=np.zeros(graph.num_ops, np.int32), group_names=("all",)),
    )


def with_step_time(whole: PlacementProblem, seconds: float) -> PlacementProblem:
    """Return a step that takes some time alone: ops that depend on the batch take other times."""
    part = parts_of_batch(whole, [1, 1])[0]
    of_batch = part.compute_time < whole.compute_time
    rest = np.where(of_batch, 0.0, whole.compute_time)
    alone = rest[:, 0].sum() + whole.overhead_time[:, 0].sum()
    scale = (seconds - alone) / (whole.compute_time - rest)[:, 0].sum()
    return replace(whole, compute_time=np.where(of_batch, scale, 1.0) * whole.compute_time)


@cache
def captured(model: str, precision: str) -> OpGraph:
    """Return a step; BERT in float16 keeps its weights and gradients in it, as apex does."""
    if model in BERTS:
        sizes = replace(BERTS[model], batch=CAPTURED_BATCH, precision=precision)
        return capture_step(replace(sizes, length=LENGTH_OF_BERT, predicts_words=False).step())
    step = library_step(f"torchvision:{model.replace('-', '_')}", batch_size=CAPTURED_BATCH)
    step = step._replace(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    return capture_step(step, autocast=torch.float16 if precision == "float16" else None)


def speed_up(ratio: Ratio, fraction: float) -> float:
    """Return the simulated speed-up with copy r on device r, if collectives reach a fraction."""
    cluster = ratio.problem.cluster
    problem = replace(
        ratio.problem, cluster=replace(cluster, bandwidth=cluster.bandwidth * fraction)
    )
    placement = np.arange(problem.num_groups, dtype=np.int32)
    seconds = Simulator(problem, num_threads=1).runtimes(placement[None])[0]
    return float(problem.num_devices * ratio.seconds / seconds)


def fitted_fraction(ratios: list[Ratio]) -> float:
    """Return the fraction of the bandwidth with the least mean error."""

    def error(fraction: float) -> float:
        return sum(abs(math.log(speed_up(ratio, fraction) / ratio.published)) for ratio in ratios)

    low, high = 0, len(FRACTIONS) - 1  # the error has one minimum
    while high - low > 2:
        third = (high - low) // 3
        if error(FRACTIONS[low + third]) < error(FRACTIONS[high - third]):
            high -= third
        else:
            low += third
    return min(FRACTIONS[low : high + 1], key=error)


def main() -> None:
    """Print what collectives reach of each link, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--default-buckets", action="store_true")
    are_default = parser.parse_args().default_buckets
    rows = [Row(**row) for row in ROWS]
    ratios = [
        ratio
        for row in rows
        for ratio in row.ratios(DEFAULT_BUCKET if are_default else row.bucket_bytes)
    ]
    fractions = {"pcie-shared": 1.0}
    for link in dict.fromkeys(LINKS.values()):
        of_link = [ratio for ratio in ratios if ratio.link == link and ratio.is_fitted]
        fractions[link] = fitted_fraction(of_link)
        print(f"{link}: {fractions[link]:.2f} of the bandwidth")
    cells, errors = [], {"fitted": list[float](), "not fitted": list[float]()}
    for ratio in ratios:
        simulated = speed_up(ratio, fractions[ratio.link])
        error = simulated / ratio.published - 1
        errors["fitted" if ratio.is_fitted else "not fitted"].append(abs(error))
        mark = "fitted" if ratio.is_fitted else ""
        cells.append(
            [ratio.name, mark, f"{ratio.published:.2f}", f"{simulated:.2f}", f"{error:+.0%}"]
        )
    columns = ["source, model, precision, batch", "", ">published", ">simulated", ">residual"]
    print(TextTable("", columns, cells).markdown())
    errors["all"] = errors["fitted"] + errors["not fitted"]
    for title, of_title in errors.items():
        within = np.count_nonzero(np.array(of_title) <= 0.2)
        mean = np.mean(of_title)
        print(f"{title}: mean error {mean:.1%}, {within} of {len(of_title)} within 20 %")


if __name__ == "__main__":
    main()
