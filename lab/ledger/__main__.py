"""Published measurements, and the same steps simulated: ``python -m ledger``, in the folder lab.

``--only TEXT`` selects the entries whose names contain the text. Ratios of times are compared.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ledger.entries import Entry, Verdict, entries, verdicts
from placeto.placing.costs import DOES_NOT_FIT, FITS, MAY_NOT_FIT, verdict_of_memory
from placeto.texts import TextTable, bytes_text, share_text

CLEAR = 1.10  # measured times that differ by more than this factor have an order
EQUAL = 1.001  # simulated times that differ by less have none: rounding alone may order them


class Compared(NamedTuple):
    """A row, its times over those of the base of its entry; the base itself is 1 of 1."""

    text: str
    measured: float
    simulated: float
    error_of_seconds: float  # simulated over measured seconds, less 1; NaN if these are not known

    @property
    def error(self) -> float:
        """The simulated over the measured ratio, less 1."""
        return self.simulated / self.measured - 1


def orderings(rows: Iterable[Compared]) -> tuple[int, int]:
    """Return the number of pairs that are simulated in the measured order, and of all pairs.

    A pair counts if its measured times differ by more than 10 %. Simulated times that differ by
    less than 0.1 % are wrong.
    """
    clear = [
        sorted(pair, key=lambda row: row.measured)
        for pair in combinations(rows, 2)
        if max(row.measured for row in pair) > CLEAR * min(row.measured for row in pair)
    ]
    return sum(EQUAL * first.simulated < second.simulated for first, second in clear), len(clear)


def compared(entry: Entry) -> list[Compared]:
    """Simulate the rows of an entry, and return each relative to the first, the base."""
    print(f"{entry.name} ...", file=sys.stderr)
    base = entry.rows[0].measured
    simulated = [row.setting.seconds() for row in entry.rows]
    unit = entry.seconds or np.nan
    return [
        Compared(
            row.text,
            row.measured / base,
            seconds / simulated[0],
            seconds / (unit * row.measured) - 1,
        )
        for row, seconds in zip(entry.rows, simulated, strict=True)
    ]


def summary(rows_of_entries: Sequence[Sequence[Compared]]) -> str:
    """Return the summary of all entries; their bases count in pairs alone."""
    errors = np.array([abs(row.error) for rows in rows_of_entries for row in rows[1:]])
    right, pairs = np.sum([orderings(rows) for rows in rows_of_entries], axis=0)
    of_seconds = np.abs([row.error_of_seconds for rows in rows_of_entries for row in rows])
    of_seconds = of_seconds[np.isfinite(of_seconds)]
    return (
        f"Mean error of {len(errors)} ratios: {share_text(errors.mean())} "
        f"(median {share_text(np.median(errors))}, {(errors <= 0.15).sum()} within 15 %). "
        f"Orderings right: {right} of {pairs}. "
        f"Mean error of {len(of_seconds)} times in seconds, bases included: "
        f"{share_text(of_seconds.mean() if len(of_seconds) else 0.0)}."
    )


def lines(entry: Entry, compared_rows: Sequence[Compared]) -> list[list[str]]:
    """Return the lines of an entry in its table."""
    base, *rows = compared_rows
    right, pairs = orderings(compared_rows)
    first = [f"**{entry.name}**: {base.text}", "1", "1", f"orderings {right} of {pairs}"]
    return [
        [*first, _signed(base.error_of_seconds)],
        *(
            [
                row.text,
                f"{row.measured:.3f}",
                f"{row.simulated:.3f}",
                _signed(row.error),
                _signed(row.error_of_seconds),
            ]
            for row in rows
        ),
    ]


def verdict_lines(steps: Iterable[Verdict]) -> list[list[str]]:
    """Simulate steps that fitted or did not; return a line of each, and one that counts."""
    lines, right_without, right_with = [], [], []
    for step in steps:
        print(f"{step.text} ...", file=sys.stderr)
        devices, peaks = step.setting.cluster.devices, step.setting.peak_memory()
        found = {verdict_of_memory(*pair) for pair in zip(devices, peaks, strict=True)}
        verdict = next(text for text in (DOES_NOT_FIT, MAY_NOT_FIT, FITS) if text in found)
        right_without.append((verdict != DOES_NOT_FIT) == step.fits)
        right_with.append((verdict == FITS) == step.fits)
        measured = bytes_text(step.measured_bytes) if step.measured_bytes else ""
        outcome = FITS if step.fits else DOES_NOT_FIT
        lines.append([step.text, outcome, measured, bytes_text(int(peaks.max())), verdict])
    counted = f"right: {sum(right_with)} of {len(lines)}; with peaks alone {sum(right_without)}"
    return [*lines, ["all", "", "", "", counted]]


def _signed(error: float) -> str:
    return "" if np.isnan(error) else f"{100 * error:+.1f} %"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the summary and a table of each part."""
    parser = argparse.ArgumentParser(prog="ledger", description=__doc__)
    parser.add_argument("--only", default="", help="text in the names of the entries")
    parser.add_argument("--memory", action="store_true", help="show verdicts of memory instead")
    options = parser.parse_args(arguments)
    only = options.only
    if options.memory:
        steps = [step for step in verdicts() if only in step.text]
        columns = ["step", "measured", ">bytes in use", ">simulated peak", "simulated"]
        print(TextTable("", columns, verdict_lines(steps)).markdown())
        return
    rows_of_entry = {entry: compared(entry) for entry in entries() if only in entry.name}
    if not rows_of_entry:
        raise SystemExit(f"--only: expected a part of a name of an entry, got {only}")
    print(summary(list(rows_of_entry.values())))
    columns = ["entry and row", ">measured ratio", ">simulated ratio", ">error", ">of seconds"]
    sections: dict[str, list[list[str]]] = defaultdict(list)
    for entry, rows in rows_of_entry.items():
        sections[entry.section] += lines(entry, rows)
    for section, section_lines in sections.items():
        print(f"\n{TextTable(f'## {section}', columns, section_lines).markdown()}")


if __name__ == "__main__":
    main()
