"""What micro-batches gain, as Markdown: ``python -m placeto_tools.benchmarks.micro_batch_table``.

Reads folders of ``placeto compare``, one for each number of micro-batches, and puts the speed-up of
every scheme over the undivided step on one device side by side.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path

from placeto_tools.errors import InputError
from placeto_tools.experiments.wording import NOTHING
from placeto_tools.reports.comparison import ProblemReport, typical
from placeto_tools.reports.curve_files import RESULTS, read_results
from placeto_tools.tables import TextTable, seconds_text

Key = tuple[str, int, int]  # model, GPUs, micro-batches
OMITTED = ("cpu", "single")


def read_problems(folders: Sequence[Path]) -> dict[Key, ProblemReport]:
    """Return the reports in some folders by model, number of GPUs and of micro-batches, in order.

    Parameters
    ----------
    folders
        Folders of ``placeto compare``.
    """
    found = {}
    for folder in folders:
        for problem in read_results(folder / RESULTS):
            divided = re.fullmatch(r"(.*) in (\d+) micro-batches", problem.source)
            name, parts = divided.groups() if divided else (problem.source, 1)
            found[name, problem.gpus, int(parts)] = problem
    models = list(dict.fromkeys(model for model, _, _ in found))
    return {key: found[key] for key in sorted(found, key=lambda key: (models.index(key[0]), *key))}


def speedups(problems: dict[Key, ProblemReport]) -> TextTable:
    """Return how much faster each scheme is than one device with the undivided step.

    Parameters
    ----------
    problems
        The reports; of each model and number of GPUs one is of an undivided step.
    """
    titles = {
        scheme.name: scheme.title
        for problem in problems.values()
        for scheme in problem.schemes
        if scheme.name not in OMITTED
    }
    columns = ["model", ">GPUs", ">micro-batches", ">single GPU, undivided"]
    return TextTable(
        "Step time of a single GPU over that of each scheme",
        [*columns, *[f">{title}" for title in titles.values()]],
        list(_rows(problems, list(titles))),
    )


def _rows(problems: dict[Key, ProblemReport], names: Sequence[str]) -> Iterator[list[str]]:
    for (model, gpus, parts), problem in problems.items():
        single, fits = _single(problems, model, gpus)
        cells = [_speedup(problem, name, single) for name in names]
        mark = "" if fits else " (OOM)"
        yield [model, str(gpus), str(parts), seconds_text(single) + mark, *cells]


def _single(problems: dict[Key, ProblemReport], model: str, gpus: int) -> tuple[float, bool]:
    """Return the runtime on one GPU, which is known also where its memory does not suffice."""
    undivided = problems.get((model, gpus, 1))
    for run in undivided.find("single").runs if undivided else []:
        if run.runtime is not None:
            return run.runtime, run.fits
    raise InputError(f"{model} on {gpus} GPUs: expected an undivided step on a single GPU")


def _speedup(problem: ProblemReport, name: str, single: float) -> str:
    scheme = problem.find(name)
    if not scheme.runs:
        return NOTHING
    runtime = typical(scheme, "runtime")
    return "OOM" if isnan(runtime) else f"{single / runtime:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of some folders."""
    parser = argparse.ArgumentParser(
        prog="placeto_tools.benchmarks.micro_batch_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, help="of placeto compare -o")
    try:
        print(speedups(read_problems(parser.parse_args(arguments).folders)).markdown())
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
