"""``placeto compare``."""

import re
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from placeto_graphs import save_placement
from placeto_graphs import save_problem
from placeto_tools.comparison import Case
from placeto_tools.comparison import Effort
from placeto_tools.comparison import case_report
from placeto_tools.comparison import scheme_report
from placeto_tools.comparison import typical_runtime
from placeto_tools.comparison_tables import markdown
from placeto_tools.comparison_tables import notes
from placeto_tools.comparison_tables import paper_table
from placeto_tools.comparison_tables import scheme_table
from placeto_tools.curve_files import RESULTS
from placeto_tools.errors import InputError
from placeto_tools.errors import RunError
from placeto_tools.errors import writing
from placeto_tools.grouping_options import GroupingOptions
from placeto_tools.options import Command
from placeto_tools.options import force_option
from placeto_tools.options import grouping_options
from placeto_tools.options import json_option
from placeto_tools.options import output_option
from placeto_tools.options import placer_option
from placeto_tools.options import source_options
from placeto_tools.outputs import make_folder
from placeto_tools.outputs import write_json
from placeto_tools.outputs import write_text
from placeto_tools.placers import PLACER_NAMES
from placeto_tools.placers import SCHEMES
from placeto_tools.problems import DEFAULT_NUM_GPUS
from placeto_tools.problems import make_problem
from placeto_tools.problems import read_cluster
from placeto_tools.progress import Progress
from placeto_tools.progress import showing_progress
from placeto_tools.sources import Source
from placeto_tools.sources import load_source
from placeto_tools.sources import parse_sizes
from placeto_tools.tables import show
from placeto_tools.tables import show_json

Report = dict[str, Any]
FORMAT = "placeto-comparison"
VERSION = 1
LEARNERS_LAST = ("random", "local-search", "rnn", "placeto")
CURVES = "curves.png"


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
@placer_option(
    "--placer",
    "Which schemes; may be repeated.  [default: all]",
    multiple=True,
    default=PLACER_NAMES,
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
    "[default: that of --budget, or 300]",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With how many seeds each scheme runs that draws at random.",
)
@source_options
@grouping_options
@output_option("A folder for results.json, results.md, curves and placements.", required=False)
@json_option
@force_option
def compare(
    sources: tuple[str, ...],
    gpus: tuple[int, ...],
    gpu_kind: str | None,
    clusters: tuple[str, ...],
    placer: tuple[str, ...],
    budget: int | None,
    rnn_budget: int | None,
    seeds: int,
    batch_size: int | None,
    sizes: tuple[tuple[str, str], ...],
    family_seed: int,
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
    placeto compare profile.txt --placer expert --placer local-search --budget 1000
    """
    if clusters and (gpus or gpu_kind):
        raise InputError("--cluster: expected no --gpus or --gpu-kind beside it")
    if output:
        make_folder(output, force=force)
    given = parse_sizes(sizes, batch_size)
    effort = Effort(seeds, budget, rnn_budget)
    names = sorted(set(placer), key=PLACER_NAMES.index)
    reports: list[Report] = []
    with showing_progress() as progress:
        for text in sources:
            progress.update(f"{text}: reading or capturing its graph ...")
            source = load_source(text, given, family_seed)
            for case in _cases(source, gpus, gpu_kind, clusters, grouping):
                reports.append(_compare(case, names, effort, output, progress))
                if output:
                    _write(output, reports, effort)
    if as_json:
        show_json(_document(reports, effort))
    else:
        click.echo()
        show(paper_table(reports), *map(scheme_table, reports))
        if output:
            click.echo(f"\n{output}: {RESULTS}, results.md, and a folder for each problem")
    _check_failures(reports)


def _cases(
    source: Source,
    gpus: Sequence[int],
    gpu_kind: str | None,
    clusters: Sequence[str],
    grouping: GroupingOptions,
) -> Iterator[Case]:
    if source.problem is not None and not (gpus or gpu_kind or clusters):
        problem = make_problem(source, None, grouping)
        kinds = [device.kind for device in problem.cluster.devices]
        spec = "+".join(f"{kinds.count(kind)}x{kind}" for kind in dict.fromkeys(kinds))
        yield Case(source.name, spec, problem)
        return
    kind = gpu_kind or source.kind
    specs = clusters or [f"{count}x{kind}" for count in gpus or (DEFAULT_NUM_GPUS,)]
    for spec in specs:
        name = Path(spec).stem if spec.endswith(".toml") else spec
        yield Case(source.name, name, make_problem(source, read_cluster(spec), grouping))


def _compare(
    case: Case, names: Sequence[str], effort: Effort, output: Path | None, progress: Progress
) -> Report:
    """Run the schemes, the long ones last, and return their reports in the order of the table."""
    progress.say(
        f"{case.source} on {case.cluster}: {case.problem.graph.num_ops:,} ops in "
        f"{case.problem.num_groups} groups"
    )
    progress.update("lower bound ...")
    report = case_report(case)
    folder = output / _folder_name(case) if output else None
    if folder:
        with writing(folder):
            folder.mkdir(exist_ok=True)
            save_problem(case.problem, folder / "problem.json.gz")
    found = {}
    for name in sorted(names, key=lambda name: name in LEARNERS_LAST):
        found[name], best = scheme_report(case, name, effort, progress)
        if folder and best is not None and len(best.peak_memory) == case.problem.num_devices:
            with writing(folder):
                save_placement(best.placement, case.problem, folder / f"{name}.json")
    report["schemes"] = [found[name] for name in names]
    if folder:
        progress.update("drawing ...")
        _draw(case, report, folder)
    return report


def _draw(case: Case, report: Report, folder: Path) -> None:
    from placeto_tools.plots.curves import curves_figure  # noqa: PLC0415 (matplotlib)
    from placeto_tools.plots.png import save_png  # noqa: PLC0415

    curves, levels = {}, {"lower bound": report["lower_bound"]}
    for scheme in report["schemes"]:
        of_seeds = [
            np.array([row for row in run["curve"] if row[1] is not None]).reshape(-1, 2)
            for run in scheme["runs"]
        ]
        runtime = typical_runtime(scheme)
        if SCHEMES[scheme["name"]].budget:
            curves[scheme["title"]] = [curve for curve in of_seeds if len(curve)]
        elif scheme["name"] in {"single", "expert", "scotch"} and runtime is not None:
            levels[scheme["title"]] = runtime
    title = f"{case.source} on {case.cluster}"
    save_png(curves_figure(curves, levels, title), folder / CURVES)


def _write(output: Path, reports: Sequence[Report], effort: Effort) -> None:
    """Write what there is so far: a comparison may take hours."""
    pictures = [
        f"{_folder_name_of(report['source'], report['cluster'])}/{CURVES}" for report in reports
    ]
    write_json(output / RESULTS, _document(reports, effort))
    write_text(output / "results.md", markdown(reports, pictures))


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


def _folder_name(case: Case) -> str:
    return _folder_name_of(case.source, case.cluster)


def _folder_name_of(source: str, cluster: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", f"{source}-{cluster}")
