"""``placeto experiment ledger``: published measurements, and the same steps simulated."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import ClassVar, NamedTuple

import click
import numpy as np

from placeto.errors import InputError
from placeto.texts import TextTable, share_text
from placeto.trials.records import Outcome
from placeto.trials.trials import Experiment, Page, Results, Trial, Watch, Workspace
from placeto_experiments.ledger.entries import Entry, entries
from placeto_experiments.ledger.settings import Setting
from placeto_experiments.options import FOLDER_HELP, run_experiment
from placeto_tools.options import Command, force_option, jobs_option, output_option

CLEAR = 1.10  # measured times that differ by more than this factor have an order
EQUAL = 1.001  # simulated times that differ by less have none: rounding alone may order them


@click.command("ledger", cls=Command)
@click.option(
    "--only",
    metavar="TEXT",
    multiple=True,
    help="Text in the names of the entries; may be repeated.  [default: all]",
)
@jobs_option
@output_option(FOLDER_HELP)
@force_option
def run_ledger(only: tuple[str, ...], jobs: int, output: Path, *, force: bool) -> None:
    """Compare simulated steps with published measurements.

    Ratios of times are compared. By default all entries take part. Nothing was fitted to them
    (docs/ledger.md).

    \b
    placeto experiment ledger -o results/ledger
    placeto experiment ledger --only GPipe -o results/ledger-gpipe
    """
    chosen = [entry for entry in entries() if not only or any(text in entry.name for text in only)]
    if not chosen:
        raise InputError(f"--only: expected a part of a name of an entry, got {', '.join(only)}")
    run_experiment(ledger(chosen), output, jobs=jobs, force=force)


@dataclass(frozen=True)
class Simulating:
    """Simulates one row."""

    setting: Setting
    kind = "simulating"
    modules: ClassVar = ("placeto_workloads",)  # it has the models of settings

    def run(self, _workspace: Workspace, watch: Watch) -> Outcome:
        """Return the seconds per sample."""
        watch.update(self.setting.devices)
        began = time.process_time()
        seconds = self.setting.seconds()
        taken = time.process_time() - began
        return Outcome(runtime=seconds, cost=seconds, fits=True, evaluations=1, seconds=taken)


def ledger(chosen: Sequence[Entry]) -> Experiment:
    """Return the experiment: each row of each entry simulated, once for each setting."""
    return Experiment(
        name="ledger",
        title="Ledger",
        options={"entries": [entry.name for entry in chosen]},
        problems={},
        trials=[
            Trial(f"{entry.name}/{row.text}", Simulating(row.setting))
            for entry in chosen
            for row in entry.rows
        ],
        page=lambda results: Page(ledger_parts(chosen, results)),
        command="placeto experiment ledger",
    )


class Compared(NamedTuple):
    """A row, its times over those of the base of its entry; the base itself is 1 of 1."""

    text: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """The simulated over the measured ratio, less 1."""
        return self.simulated / self.measured - 1


def mean_error(rows: Iterable[Compared]) -> float:
    """Return the mean absolute error.

    Examples
    --------
    >>> mean_error([Compared("", 2.0, 3.0), Compared("", 1.0, 0.9)])
    0.3
    """
    return float(np.mean([abs(row.error) for row in rows]))


def orderings(rows: Iterable[Compared]) -> tuple[int, int]:
    """Return the number of pairs that are simulated in the measured order, and of all pairs.

    A pair counts if its measured times differ by more than 10 %. Simulated times that differ by
    less than 0.1 % are wrong.

    Examples
    --------
    >>> orderings([Compared("", 1.0, 1.0), Compared("", 1.05, 0.9), Compared("", 1.2, 1.0)])
    (1, 2)
    """
    clear = [
        sorted(pair, key=lambda row: row.measured)
        for pair in combinations(rows, 2)
        if max(row.measured for row in pair) > CLEAR * min(row.measured for row in pair)
    ]
    return sum(EQUAL * first.simulated < second.simulated for first, second in clear), len(clear)


def compared(entry: Entry, simulated: Sequence[float]) -> list[Compared]:
    """Return the rows of an entry, of the simulated seconds of each; the first is the base."""
    base = entry.rows[0].measured
    return [
        Compared(row.text, row.measured / base, seconds / simulated[0])
        for row, seconds in zip(entry.rows, simulated, strict=True)
    ]


def ledger_parts(chosen: Sequence[Entry], results: Results) -> list[str]:
    """Return the summary and the tables."""
    found: dict[str, list[Compared]] = {}
    for entry in chosen:
        records = [results.records[f"{entry.name}/{row.text}"] for row in entry.rows]
        seconds = [record.runtime or np.nan for record in records if isinstance(record, Outcome)]
        found[entry.name] = compared(entry, seconds)
    tables = []
    for name in dict.fromkeys(entry.part for entry in chosen):
        lines = [line for entry in chosen if entry.part == name for line in _lines(entry, found)]
        columns = ["entry and row", ">measured ratio", ">simulated ratio", ">error"]
        tables.append(TextTable(f"## {name}", columns, lines).markdown())
    return [summary(found), *tables]


def summary(found: dict[str, list[Compared]]) -> str:
    """Return the summary of all entries; their bases count in pairs alone."""
    others = [row for rows in found.values() for row in rows[1:]]
    counts = np.sum([orderings(rows) for rows in found.values()], axis=0)
    median = np.median([abs(row.error) for row in others])
    within = sum(abs(row.error) <= 0.15 for row in others)
    return (
        f"Mean error of {len(others)} ratios: {share_text(mean_error(others))} "
        f"(median {share_text(float(median))}, {within} within 15 %). "
        f"Orderings right: {counts[0]} of {counts[1]}."
    )


def _lines(entry: Entry, found: dict[str, list[Compared]]) -> list[list[str]]:
    base, *rows = found[entry.name]
    right, pairs = orderings([base, *rows])
    head = [f"**{entry.name}**: {base.text}", "1", "1", f"orderings {right} of {pairs}"]
    return [
        head,
        *(
            [row.text, f"{row.measured:.3f}", f"{row.simulated:.3f}", f"{100 * row.error:+.1f} %"]
            for row in rows
        ),
    ]
