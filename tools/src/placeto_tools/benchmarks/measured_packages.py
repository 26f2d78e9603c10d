"""The benchmarks of the packages in one place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast


class BenchmarkReport(Protocol):
    """What a benchmark has measured: a dataclass of numbers, in SI units."""

    @property
    def machine(self) -> str:
        """On what it ran."""
        ...

    def markdown(self) -> str:
        """Return it as text with tables."""
        ...


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of one package.

    Attributes
    ----------
    measures : text
        What it measures.
    module : text
        Has a function ``measured``, from command-line arguments to a `BenchmarkReport`. It is
        imported when it runs: only what is measured is.
    quick : texts
        The arguments of a run of some seconds.
    """

    measures: str
    module: str
    quick: Sequence[str]

    def run(self, *, quick: bool) -> BenchmarkReport:
        """Measure; small sizes are enough for a quick run."""
        measured = import_module(self.module).measured
        return cast(BenchmarkReport, measured(self.quick if quick else []))


BENCHMARKS: Mapping[str, Benchmark] = {
    "graphs": Benchmark(
        "reading, checking and grouping graphs",
        "placeto_graphs.benchmark",
        ["--ops", "1000", "--repeats", "1"],
    ),
    "policy": Benchmark(
        "training steps per second, and a greedy pass",
        "placeto_tools.benchmarks.policy_benchmark",
        ["--groups", "16", "--devices", "2", "--updates", "1"],
    ),
    "baselines": Benchmark(
        "every scheme on two problems",
        "placeto_tools.benchmarks.baselines_table",
        ["--evaluations", "20", "--groups", "8", "--ops", "100"],
    ),
    "workloads": Benchmark(
        "capture of the models, their sizes and costs",
        "placeto_workloads.benchmark",
        ["--models", "inception-v3"],
    ),
    "capture": Benchmark(
        "seconds and memory of capture as models grow",
        "placeto_workloads.capture_growth",
        ["--models", "chain", "--layers", "10", "100"],
    ),
}
