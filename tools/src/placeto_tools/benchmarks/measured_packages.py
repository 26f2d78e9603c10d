"""The benchmarks of the packages in one place: each prints Markdown tables, which are read here."""

import io
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

from placeto_tools.tables import TextTable

Main = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of one package.

    Attributes
    ----------
    measures : text
        What it measures.
    main : function
        From command-line arguments to tables on standard output.
    quick : texts
        The arguments of a run of some seconds.
    """

    measures: str
    main: Main
    quick: Sequence[str]


def _graphs(arguments: Sequence[str]) -> None:
    from placeto_graphs.benchmark import main  # noqa: PLC0415 (only what is measured is imported)

    main(arguments)


def _simulator(arguments: Sequence[str]) -> None:
    from placeto_simulator.benchmark import main  # noqa: PLC0415

    main(arguments)


def _workloads(arguments: Sequence[str]) -> None:
    from placeto_workloads.benchmark import main  # noqa: PLC0415

    main(arguments)


def _capture(arguments: Sequence[str]) -> None:
    from placeto_workloads.capture_growth import main  # noqa: PLC0415

    main(arguments)


def _policy(arguments: Sequence[str]) -> None:
    from placeto_tools.benchmarks.policy_benchmark import main  # noqa: PLC0415

    main(arguments)


def _baselines(arguments: Sequence[str]) -> None:
    from placeto_tools.benchmarks.baselines_table import main  # noqa: PLC0415

    main(arguments)


BENCHMARKS: Mapping[str, Benchmark] = {
    "graphs": Benchmark(
        "reading, checking and grouping graphs", _graphs, ["--ops", "1000", "--repeats", "1"]
    ),
    "simulator": Benchmark(
        "placements simulated per second",
        _simulator,
        ["--ops", "1000", "--devices", "2", "--repeats", "1"],
    ),
    "policy": Benchmark(
        "training steps per second, and a greedy pass",
        _policy,
        ["--groups", "16", "--devices", "2", "--updates", "1"],
    ),
    "baselines": Benchmark(
        "every scheme on two problems",
        _baselines,
        ["--evaluations", "20", "--groups", "8", "--ops", "100"],
    ),
    "workloads": Benchmark(
        "capture of the models, their sizes and costs", _workloads, ["--models", "inception-v3"]
    ),
    "capture": Benchmark(
        "seconds and memory of capture as models grow",
        _capture,
        ["--models", "chain", "--layers", "10", "100"],
    ),
}


def run_benchmark(name: str, *, quick: bool) -> tuple[str, list[TextTable]]:
    """Run a benchmark, and return on what it ran and its tables.

    Parameters
    ----------
    name
        One of `BENCHMARKS`.
    quick
        Whether small sizes are enough.
    """
    benchmark = BENCHMARKS[name]
    printed = io.StringIO()
    with redirect_stdout(printed):
        benchmark.main(benchmark.quick if quick else [])
    return parse_markdown(printed.getvalue())


def parse_markdown(text: str) -> tuple[str, list[TextTable]]:
    r"""Return the first line of a text, and its Markdown tables with the lines before them.

    Examples
    --------
    >>> where, tables = parse_markdown("a machine\n\n| op | s |\n|---|---:|\n| add | 1 |\n")
    >>> where, tables[0].columns, tables[0].rows
    ('a machine', ['op', '>s'], [['add', '1']])
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    tables: list[TextTable] = []
    title = ""
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            title = line if number else ""
        elif set(line) <= set("|-: "):
            right = ["---:" in rule for rule in _cells(line)]
            names = _cells(lines[number - 1])
            columns = [f">{n}" if r else n for n, r in zip(names, right, strict=True)]
            tables.append(TextTable(title, columns, []))
            title = ""
        elif tables and tables[-1].columns and not _heads_a_table(lines, number):
            tables[-1].rows.append(_cells(line))  # type: ignore[attr-defined]
    return lines[0] if lines else "", tables


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _heads_a_table(lines: Sequence[str], number: int) -> bool:
    following = lines[number + 1] if number + 1 < len(lines) else ""
    return following.startswith("|") and set(following) <= set("|-: ")
