"""``placeto export``."""

from dataclasses import asdict
from pathlib import Path

import click

from placeto.exporting.formats import FORMATS
from placeto.outputs import check_file, write_text
from placeto.placing.placements import resolve_placement
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto_tools.options import Command, NearestChoice, force_option, json_option, output_option
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show_json


@click.command(cls=Command)
@click.argument("problem")
@click.argument("placement")
@click.option(
    "--to",
    "form",
    type=NearestChoice(tuple(FORMATS)),
    required=True,
    help="device-map: for dispatch_model of accelerate; pipeline: split points for "
    "torch.distributed.pipelining; dot, graphml: the graph of groups.",
)
@problem_options
@output_option("The file: .json for device-map and pipeline, .dot or .gv, .graphml.")
@json_option
@force_option
def export(
    problem: str,
    placement: str,
    form: str,
    asked: ProblemOptions,
    output: Path,
    as_json: bool,
    force: bool,
) -> None:
    """Write a placement in a form that another library takes.

    PROBLEM and PLACEMENT are as in `placeto simulate`. A device map and a pipeline place whole
    modules: what the placement splits goes to where it costs least, and the simulated price of that
    is shown. A pipeline needs a placement that is a chain of stages.

    \b
    placeto export problem.json.gz placement.json --to device-map -o device_map.json
    placeto export problem.json.gz placement.json --to graphml -o groups.graphml
    """
    check_file(output, force=force, suffixes=FORMATS[form].suffixes)
    read = read_problem(problem, asked)
    with showing_progress() as progress:
        read, found = resolve_placement(placement, read, progress)
        progress.update(f"{form} ...")
        exported = FORMATS[form].export(read, found)
    write_text(output, exported.content)
    if as_json:
        price = {} if exported.price is None else asdict(exported.price)
        show_json({"output": str(output), "format": form, **price})
    else:
        click.echo("; ".join([f"{output}: {form}", *exported.remarks[:1]]))
        for remark in exported.remarks[1:]:
            click.echo(remark)
