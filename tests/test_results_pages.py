"""Tables of results print what the code computes now, or their page says that it is older.

Two rows of a table are computed again, in the columns that no seed and no training decides. If one
of them differs, the page has `NOTICE`; if none does, it has not.
"""

import re
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from placeto import make_placer, read_problem
from placeto.placing.costs import cost_of_result
from placeto_baselines import lower_bound
from placeto_experiments.paper.plan import chosen_plan, family_problems
from placeto_graphs import PlacementProblem
from placeto_simulator import Simulator

NOTICE = "**Older costs.** Numbers of this page differ from those that the present code computes."
BOUND = "lower bound"
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3}
NUMBER = re.compile(r"(\d+(?:\.(\d+))?)(?: (m?s)\b)?")
PLACERS = {
    "CPU only": "cpu",
    "Single GPU": "single",
    "Expert": "expert",
    "Scotch": "scotch",
    "Critical path": "critical-path",
    "HEFT": "heft",
    "m-ETF": "m-etf",
    "m-SCT": "m-sct",
    "Placeto, pretrained": "pretrained",
    "lower bound": BOUND,
}
# Rows of the pages of `placeto experiment generalise`, which have means over the unseen graphs.
MEANS = {"Single GPU": "single", "Lower bound": BOUND}
FAMILIES = ("nmt", "ptb", "cifar10")
# Page; heading of the section; row and column, by how they begin; devices and placer, of
# Inception-V3.
TABLE_1 = "docs/results/table1.md"
RESULTS = "docs/results.md"
CELLS = [
    *(
        (TABLE_1, f"inception-v3 on {gpus}xk80", row, "runtime", f"{gpus}xk80", placer)
        for gpus in (2, 4)
        for row, placer in PLACERS.items()
    ),
    *(
        (TABLE_1, "Runtimes", f"inception-v3 on {gpus}xk80", column, f"{gpus}xk80", placer)
        for gpus in (2, 4)
        for column, placer in (("CPU only", "cpu"), ("single GPU", "single"), ("expert", "expert"))
    ),
    *(
        (RESULTS, "Table 1", f"Inception-V3, {gpus}", column, f"{gpus}xk80", column.lower())
        for gpus in (2, 4)
        for column in ("expert", "Scotch", "pretrained")
    ),
    *(
        ("README.md", "Results", f"Inception-V3, {gpus}", column, f"{gpus}xk80", placer)
        for gpus in (2, 4)
        for column, placer in (("single GPU", "single"), ("lower bound", BOUND))
    ),
]


@cache
def problem_on(devices: str) -> PlacementProblem:
    return read_problem("inception-v3", cluster=devices)


@cache
def seconds_of(devices: str, placer: str) -> float:
    """Return the runtime of the placement of a placer, infinite if it does not fit."""
    problem = problem_on("1xcpu" if placer == "cpu" else devices)
    seconds, fits = cost(problem, placer)
    return seconds if fits else float("inf")


def cost(problem: PlacementProblem, placer: str) -> tuple[float, bool]:
    """Return the memory-penalised runtime of a placer or the bound, and whether it fits."""
    if placer == BOUND:
        return lower_bound(problem), True
    result = make_placer(placer, problem).place(problem, Simulator(problem, num_threads=1))
    return cost_of_result(problem, result), result.fits(problem.cluster)


def cell(page: str, heading: str, row: str, column: str) -> str:
    """Return the text of a cell of the first table below a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}.*$", page, flags=re.MULTILINE)[1]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    heads, *rows = ([text.strip() for text in line.strip("|").split("|")] for line in lines)
    (index,) = [index for index, head in enumerate(heads) if head.startswith(column)]
    return next(texts[index] for texts in rows if texts[0].startswith(row))


def agrees(text: str, seconds: float) -> bool:
    """Return True if the first number of a cell is a number of seconds, rounded as the cell is."""
    number = NUMBER.search(text)
    if number is None:
        return text.startswith("OOM") and seconds == float("inf")
    printed, decimals, unit = number.groups()
    return printed == f"{seconds / UNITS[unit or '']:.{len(decimals or '')}f}"


@pytest.mark.parametrize("name", sorted({cell[0] for cell in CELLS}))
def test_a_page_has_the_numbers_of_the_present_code_or_says_that_it_has_not(name: str) -> None:
    page = Path(name).read_text()
    differences = [
        f"{heading}, {row}, {column}: {text}, now {seconds:.6g} s"
        for page_name, heading, row, column, devices, placer in CELLS
        if page_name == name
        for text in [cell(page, heading, row, column)]
        for seconds in [seconds_of(devices, placer)]
        if not agrees(text, seconds)
    ]
    assert bool(differences) == (NOTICE in page), differences


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_means_over_a_family_are_those_of_the_present_code_or_the_page_says_so(family: str) -> None:
    page = Path(f"docs/results/generalise-{family}.md").read_text()
    numbers: dict[str, Any] = {
        name: int(number[1])
        for name in ("test_graphs", "groups")
        if (number := re.search(rf"--{name.replace('_', '-')} (\d+)", page))
    }
    problems = family_problems(family, chosen_plan("generalise", "small", **numbers))
    unseen = [problems.makers[graph.name]() for graph in problems.test]
    differences = [
        f"{row}: {text}, now {seconds:.6g} s"
        for row, placer in MEANS.items()
        for text in [cell(page, "Runtimes", row, "runtime")]
        for seconds in [fmean(cost(problem, placer)[0] for problem in unseen)]
        if not agrees(text, seconds)
    ]
    assert bool(differences) == (NOTICE in page), differences


def test_cells_are_read_as_they_are_printed() -> None:
    first = "## First\n\n| row | x |\n|---|---|\n| b | 3 |\n"
    page = f"{first}## Second\n\n| row | x, s |\n|---|---|\n| a | 998.2 ms *f* |\n"
    text = cell(page, "Second", "a", "x")
    assert text == "998.2 ms *f*"
    assert agrees(text, 0.99817)
    assert not agrees(text, 0.9983)
    assert agrees("1.283 / 1.28", 1.2834)
    assert agrees("1.55", 1.548)
    assert agrees("OOM / OOM", float("inf"))
    assert not agrees("OOM", 1.0)
    assert not agrees("1.0", float("inf"))
