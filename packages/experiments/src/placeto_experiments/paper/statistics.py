"""Means over graphs, with their spread over seeds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto.trials.curves import best_after, evaluations_until
from placeto.trials.records import Outcome, Placed
from placeto.trials.trials import Results


@dataclass(frozen=True)
class Spread:
    """One number for each seed; one alone where no seed changes it.

    Examples
    --------
    >>> Spread((1.0, 3.0, 2.0)).text(lambda value: f"{value:.1f}")
    '2.0 (1.0 to 3.0)'
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.values))

    def text(self, shown: Callable[[float], str]) -> str:
        """Return the mean, and the least and the most of all seeds if they differ."""
        least, most = min(self.values), max(self.values)
        mean = shown(self.mean)
        return mean if least == most else f"{mean} ({shown(least)} to {shown(most)})"


@dataclass(frozen=True)
class Summary:
    """Results of placers on some graphs with some seeds."""

    results: Results
    graphs: Sequence[str]
    seeds: Sequence[int]

    def costs(self, placer: str, seed: int) -> NDArray[np.float64]:
        """Return float64[G], the memory-penalised runtime on each graph."""
        return self._of_graphs(placer, seed, "cost")

    def mean_cost(self, placer: str) -> Spread:
        """Return the mean over the graphs."""
        return self._over_seeds(lambda seed: self.costs(placer, seed).mean())

    def mean_ratio(self, placer: str, other: str) -> Spread:
        """Return the mean over the graphs of the ratio of two placers' runtimes."""
        return self._over_seeds(
            lambda seed: (self.costs(placer, seed) / self.costs(other, seed)).mean()
        )

    def all_costs(self, placer: str) -> NDArray[np.float64]:
        """Return the runtimes on all graphs with all seeds."""
        return np.concatenate([self.costs(placer, seed) for seed in self.seeds])

    def median_seconds(self, placer: str) -> float:
        """Return the median seconds of placing."""
        every = [self._of_graphs(placer, seed, "seconds") for seed in self.seeds]
        return float(np.median(np.concatenate(every)))

    def median_evaluations(self, placer: str) -> float:
        """Return the median number of evaluations."""
        every = [self._of_graphs(placer, seed, "evaluations") for seed in self.seeds]
        return float(np.median(np.concatenate(every)))

    def out_of_memory(self, placer: str) -> float:
        """Return the share of graphs and seeds on which the placement did not fit the memory."""
        every = [self._of_graphs(placer, seed, "fits") for seed in self.seeds]
        return float(1 - np.concatenate(every).mean())

    def where_some_fit(self, placers: Sequence[str]) -> "Summary":
        """Return the summary of the graphs of which some placer found a placement that fits."""
        every = [self._of_graphs(placer, seed, "fits") for placer in placers for seed in self.seeds]
        some = np.any(every, axis=0)
        found = [graph for graph, fits in zip(self.graphs, some, strict=True) if fits]
        return replace(self, graphs=found)

    def reached(self, search: str, target: str) -> tuple[float, float, float]:
        """Return when a search was as fast as another placer at its end.

        The result is the share of graphs and seeds on which it was, and the median evaluations and
        seconds until then. These are infinite if it never was. Seconds are taken as proportional
        to evaluations.
        """
        found = []
        for graph in self.graphs:
            for seed in self.seeds:
                run = self.results.record(Placed, search, graph, seed)
                goal = replace(self, graphs=[graph]).costs(target, seed).item()
                evaluations = evaluations_until(run.curve, goal)
                found.append((evaluations, evaluations / run.evaluations * run.seconds))
        evaluations, seconds = np.median(found, axis=0).tolist()
        return float(np.isfinite(found)[:, 0].mean()), evaluations, seconds

    def mean_ratio_after(self, search: str, target: str, other: str) -> Spread:
        """Return the ratio of a search, stopped after as many evaluations as a placer, to another.

        For each seed it is the mean over the graphs.
        """
        return self._over_seeds(
            lambda seed: float(
                np.mean(self._costs_after(search, target, seed) / self.costs(other, seed))
            )
        )

    def ahead(self, target: str, search: str) -> float:
        """Return the share of graphs and seeds on which a search is slower than a placer.

        The search is stopped after as many evaluations as the placer had.
        """
        behind = [
            self._costs_after(search, target, seed) > self.costs(target, seed)
            for seed in self.seeds
        ]
        return float(np.mean(behind))

    def _costs_after(self, search: str, target: str, seed: int) -> NDArray[np.float64]:
        """Return float64[graphs], the best of a search after the evaluations of a placer."""
        found = []
        for graph in self.graphs:
            curve = self.results.record(Placed, search, graph, seed).curve
            evaluations = self.results.record(Outcome, target, graph, seed).evaluations
            found.append(best_after(curve, evaluations))
        return np.array(found, np.float64)

    def _of_graphs(self, placer: str, seed: int, field: str) -> NDArray[np.float64]:
        records = [self.results.record(Outcome, placer, graph, seed) for graph in self.graphs]
        values = [getattr(record, field) for record in records]
        return np.array([np.inf if value is None else value for value in values], np.float64)

    def _over_seeds(self, value: Callable[[int], float]) -> Spread:
        return spread(value(seed) for seed in self.seeds)


def spread(values: Iterable[float]) -> Spread:
    """Return one number for each seed."""
    return Spread(tuple(map(float, values)))
