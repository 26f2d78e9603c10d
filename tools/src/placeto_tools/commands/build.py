"""``placeto build``."""

from pathlib import Path

import click

from placeto_graphs import PlacementProblem
from placeto_graphs import save_problem
from placeto_tools.errors import writing
from placeto_tools.grouping_options import GroupingOptions
from placeto_tools.options import Command
from placeto_tools.options import force_option
from placeto_tools.options import grouping_options
from placeto_tools.options import json_option
from placeto_tools.options import link_option
from placeto_tools.options import micro_batches_option
from placeto_tools.options import output_option
from placeto_tools.options import source_options
from placeto_tools.outputs import check_file
from placeto_tools.problems import default_cluster
from placeto_tools.problems import make_problem
from placeto_tools.problems import read_cluster
from placeto_tools.progress import showing_progress
from placeto_tools.sources import JSON_SUFFIXES
from placeto_tools.sources import load_source
from placeto_tools.sources import parse_sizes
from placeto_tools.tables import show_json


@click.command(cls=Command)
@click.argument("source")
@click.option(
    "--cluster",
    metavar="SPEC|FILE",
    help="The devices: a text such as 2xk80 or 1xcpu+4xk80, or a TOML file.  [default: 2xk80, or "
    "what the source was measured on]",
)
@link_option
@source_options
@micro_batches_option
@grouping_options
@output_option("The problem file: .json, or .json.gz to pack it.")
@json_option
@force_option
def build(
    source: str,
    cluster: str | None,
    link: str | None,
    batch_size: int | None,
    sizes: tuple[tuple[str, str], ...],
    family_seed: int,
    micro_batches: int,
    grouping: GroupingOptions,
    output: Path,
    as_json: bool,
    force: bool,
) -> None:
    """Make a problem file: a graph, the devices, the times of ops on them, the groups.

    SOURCE is a registered model, a member of a family (nmt:7), a PipeDream profile, a problem file,
    or package.module:factory, a function of yours that returns a PyTorch model and its example
    inputs (and a loss function, if the model does not return the loss).

    \b
    placeto build inception-v3 --cluster 2xk80 --groups 128 -o problem.json.gz
    placeto build nmt-2 --batch-size 64 --set steps=16 -o nmt.json.gz
    placeto build inception-v3 --cluster 4xk80 --micro-batches 8 -o pipeline.json.gz
    placeto build my_model:make --cluster 1xcpu+2xv100 -o mine.json.gz
    placeto build nmt-4 --cluster "2x(4xv100)" --link nvlink+infiniband-hdr -o machines.json.gz
    """
    check_file(output, force=force, suffixes=JSON_SUFFIXES)
    devices = read_cluster(cluster, link) if cluster else None
    given = parse_sizes(sizes, batch_size)
    with showing_progress() as progress:
        progress.update(f"{source}: reading or capturing its graph ...")
        loaded = load_source(source, given, family_seed, micro_batches)
        if link and devices is None:
            devices = default_cluster(loaded, link)
        problem = make_problem(loaded, devices, grouping)
    with writing(output):
        save_problem(problem, output)
    if as_json:
        show_json({"output": str(output), **_summary(problem)})
    else:
        click.echo(
            f"{output}: {problem.graph.num_ops:,} ops in {problem.num_groups} groups on "
            f"{', '.join(problem.cluster.device_names)}"
        )


def _summary(problem: PlacementProblem) -> dict[str, object]:
    return {
        "ops": problem.graph.num_ops,
        "groups": problem.num_groups,
        "devices": list(problem.cluster.device_names),
    }
