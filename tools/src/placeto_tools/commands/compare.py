"""``placeto compare``."""

from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from placeto_tools.comparison import Case
from placeto_tools.comparison import Effort
from placeto_tools.comparison import case_report
from placeto_tools.comparison import scheme_report
from placeto_tools.comparison_folder import FORMAT
from placeto_tools.comparison_folder import PAGE
from placeto_tools.comparison_folder import REPORT
from placeto_tools.comparison_folder import ComparisonFolder
from placeto_tools.comparison_tables import notes
from placeto_tools.comparison_tables import paper_table
from placeto_tools.comparison_tables import scheme_table
from placeto_tools.curve_files import RESULTS
from placeto_tools.errors import InputError
from placeto_tools.errors import RunError
from placeto_tools.grouping_options import GroupingOptions
from placeto_tools.options import Command
from placeto_tools.options import PlacerNames
from placeto_tools.options import force_option
from placeto_tools.options import json_option
from placeto_tools.options import link_option
from placeto_tools.options import output_option
from placeto_tools.placers import PLACER_NAMES
from placeto_tools.placers import SCHEMES
from placeto_tools.problem_options import SourceOptions
from placeto_tools.problem_options import grouping_options
from placeto_tools.problem_options import micro_batches_option
from placeto_tools.problem_options import source_options
from placeto_tools.problems import DEFAULT_NUM_GPUS
from placeto_tools.problems import make_problem
from placeto_tools.problems import read_cluster
from placeto_tools.progress import Progress
from placeto_tools.progress import showing_progress
from placeto_tools.reports.page import MISSING
from placeto_tools.reports.page import has_library
from placeto_tools.sources import Source
from placeto_tools.sources import load_source
from placeto_tools.tables import show
from placeto_tools.tables import show_json

Report = dict[str, Any]
VERSION = 1
SEARCHES_LAST = ("random", "local-search", "coarse-to-fine", "rnn", "placeto")


@click.command(cls=Command)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--gpus",
    type=click.IntRange(min=1, max=1024),
    multiple=True,
    help="On how many GPUs; may be repeated.  [default: 2]",
)
@click.option("--gpu-kind", help="Of which kind.  [default: k80, or what was measured]")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="SPEC|FILE",
    help="Instead of --gpus: the devices, such as 1xcpu+2xk80; may be repeated.",
)
@link_option
@click.option(
    "--placers",
    type=PlacerNames(),
    multiple=True,
    metavar="NAME,...",
    help=f"Which schemes: {', '.join(PLACER_NAMES)}.  [default: all]",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    help="How many placements each search samples.  [default: what takes a few minutes]",
)
@click.option(
    "--rnn-budget",
    type=click.IntRange(min=1),
    help="How many the RNN samples, which takes far longer for each.  "
    f"[default: that of --budget, or {SCHEMES['rnn'].budget}]",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With how many seeds each scheme runs that draws at random.",
)
@source_options
@micro_batches_option
@grouping_options
@output_option(
    "A folder for results.json, results.md, report.html, curves, placements.", required=False
)
@json_option
@force_option
def compare(
    sources: tuple[str, ...],
    gpus: tuple[int, ...],
    gpu_kind: str | None,
    clusters: tuple[str, ...],
    link: str | None,
    placers: tuple[tuple[str, ...], ...],
    budget: int | None,
    rnn_budget: int | None,
    seeds: int,
    choice: SourceOptions,
    micro_batches: int,
    grouping: GroupingOptions,
    output: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Place models with every scheme, by the same simulator: the paper's Table 1 and its peers.

    SOURCES are those of `placeto build`. CPU only has a row of its own, on one CPU; the other
    schemes place on the GPUs. A scheme that fails is left out, and the exit code is 1.

    \b
    placeto compare inception-v3 --gpus 2 -o results
    placeto compare nmt-2 nmt-4 --gpus 2 --gpus 4 --seeds 3 -o results
    placeto compare profile.txt --placers expert,local-search --budget 1000
    """
    if clusters and (gpus or gpu_kind):
        raise InputError("--cluster: expected no --gpus or --gpu-kind beside it")
    folder = ComparisonFolder(output, force=force) if output else None
    effort = Effort(seeds, budget, rnn_budget)
    names = sorted({name for some in placers for name in some}, key=PLACER_NAMES.index)
    reports: list[Report] = []
    with showing_progress() as progress:
        for text in sources:
            progress.update(f"{text}: reading or capturing its graph ...")
            source = load_source(text, choice.sizes, choice.family_seed, micro_batches)
            for case in _cases(source, gpus, gpu_kind, clusters, link, grouping):
                _compare(case, names or PLACER_NAMES, effort, reports, folder, progress)
    if as_json:
        show_json(_document(reports, effort))
    else:
        click.echo()
        show(paper_table(reports), *map(scheme_table, reports))
        if output:
            click.echo(f"\n{output}: {RESULTS}, {PAGE}, and a folder for each problem")
            click.echo(f"{output / REPORT}" if has_library() else MISSING)
    _check_failures(reports)


def _cases(
    source: Source,
    gpus: Sequence[int],
    gpu_kind: str | None,
    clusters: Sequence[str],
    link: str | None,
    grouping: GroupingOptions,
) -> Iterator[Case]:
    if source.problem is not None and not (gpus or gpu_kind or clusters):
        if link:
            raise InputError(f"--link: expected --cluster beside it, as {source.name} has devices")
        problem = make_problem(source, None, grouping)
        kinds = [device.kind for device in problem.cluster.devices]
        spec = "+".join(f"{kinds.count(kind)}x{kind}" for kind in dict.fromkeys(kinds))
        yield Case(source.name, spec, problem)
        return
    kind = gpu_kind or source.kind
    specs = clusters or [f"{count}x{kind}" for count in gpus or (DEFAULT_NUM_GPUS,)]
    for spec in specs:
        name = Path(spec).stem if spec.endswith(".toml") else spec
        devices = read_cluster(spec, link)
        name = f"{name} {link}" if link else name
        yield Case(source.name, name, make_problem(source, devices, grouping))


def _compare(
    case: Case,
    names: Sequence[str],
    effort: Effort,
    reports: list[Report],
    folder: ComparisonFolder | None,
    progress: Progress,
) -> None:
    """Run the schemes, the long ones last, and add their reports in the order of the table."""
    progress.say(
        f"{case.source} on {case.cluster}: {case.problem.graph.num_ops:,} ops in "
        f"{case.problem.num_groups} groups"
    )
    progress.update("lower bound ...")
    reports.append(case_report(case))
    if folder:
        folder.add_case(case)
    found: dict[str, Report] = {}
    for name in sorted(names, key=lambda name: name in SEARCHES_LAST):
        found[name], best = scheme_report(case, name, effort, progress)
        reports[-1]["schemes"] = [found[known] for known in names if known in found]
        if folder:
            folder.add_placement(case, name, best)
            folder.write(_document(reports, effort))
    if folder and has_library():
        progress.update(f"{REPORT} ...")
        folder.write_report(case)


def _document(reports: Sequence[Report], effort: Effort) -> Report:
    return {
        "format": FORMAT,
        "version": VERSION,
        "seeds": effort.seeds,
        "budgets": {name: effort.budget_of(name) for name in PLACER_NAMES},
        "problems": list(reports),
    }


def _check_failures(reports: Sequence[Report]) -> None:
    """Raise if a scheme failed. That a CPU's times are not known is no failure."""
    failed = notes(
        [
            {**report, "schemes": [s for s in report["schemes"] if s["name"] != "cpu"]}
            for report in reports
        ]
    )
    if failed:
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise RunError(f"{failed[0]}{others}")
