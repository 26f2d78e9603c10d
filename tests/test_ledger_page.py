"""The pages of the ledger have the rows of its entries, and what is simulated for them."""

import re
from pathlib import Path

import pytest

from placeto_experiments.ledger.command import Compared, compared, orderings
from placeto_experiments.ledger.entries import entries

PAGE = Path("docs/ledger.md").read_text()
TABLES = Path("docs/results/ledger.md").read_text()


def rows_of_page() -> dict[str, list[list[str]]]:
    """Return the cells of the rows of each entry, of which the first is the base."""
    found: dict[str, list[list[str]]] = {}
    for line in re.findall(r"^\| (.+) \|$", TABLES, re.MULTILINE):
        cells = line.split(" | ")
        if base := re.fullmatch(r"\*\*(.+)\*\*: (.+)", cells[0]):
            name = base[1]
            found[name] = [[base[2], *cells[1:]]]
        elif found and len(cells) == 4 and cells[3].endswith("%"):
            found[name].append(cells)
    return found


ROWS = rows_of_page()


def test_the_page_has_each_row_with_what_was_measured() -> None:
    assert list(ROWS) == [entry.name for entry in entries()]
    for entry in entries():
        measured = [row.measured for row in compared(entry, [1.0] * len(entry.rows))]
        assert [cells[0] for cells in ROWS[entry.name]] == [row.text for row in entry.rows]
        texts = ["1", *(f"{ratio:.3f}" for ratio in measured[1:])]
        assert [cells[1] for cells in ROWS[entry.name]] == texts


def test_errors_and_the_line_of_all_entries_follow_from_the_ratios() -> None:
    errors = []
    for base, *rows in ROWS.values():
        for _, measured, simulated, error in rows:
            ratio = float(simulated) / float(measured)
            rounding = 0.0006 * (1 + ratio) / float(measured) + 0.0006
            assert float(error[:-1]) / 100 == pytest.approx(ratio - 1, abs=rounding)
            errors.append(abs(float(error[:-1])))
        numbers = [Compared("", float(cells[1]), float(cells[2])) for cells in (base, *rows)]
        right, pairs = orderings(numbers)
        assert base[3] == f"orderings {right} of {pairs}"
    found = re.search(r"Mean error of (\d+) ratios: ([\d.]+) % .* (\d+) within 15 %", PAGE)
    assert found
    assert int(found[1]) == len(errors)
    assert float(found[2]) == pytest.approx(sum(errors) / len(errors), abs=0.06)
    assert int(found[3]) == sum(error <= 15.0 for error in errors)
    counts = [[int(n) for n in re.findall(r"\d+", rows[0][3])] for rows in ROWS.values()]
    right, pairs = (sum(column) for column in zip(*counts, strict=True))
    assert f"Orderings right: {right} of {pairs}." in PAGE
    told = re.search(r"orderings are wrong:(.+?)\n## ", PAGE, re.DOTALL)
    assert told
    assert sum(int(number) for number in re.findall(r"\((\d+)", told[1])) == pairs - right


@pytest.mark.parametrize("part", ["GPT-J", "PiPPy", "TensorRT"])
def test_what_is_simulated_is_what_the_page_says(part: str) -> None:
    (entry,) = (entry for entry in entries() if part in entry.name)
    rows = compared(entry, [row.setting.seconds() for row in entry.rows])
    simulated = [f"{row.simulated:.3f}" for row in rows[1:]]
    assert simulated == [cells[2] for cells in ROWS[entry.name][1:]]
