"""``placeto export``."""

from dataclasses import asdict, replace
from pathlib import Path

import click

from placeto.errors import InputError
from placeto.exporting.formats import FORMATS
from placeto.outputs import check_file, write_text
from placeto.placing.evaluators import STEP, evaluator_spec
from placeto_tools.options import (
    Command,
    NearestChoice,
    evaluator_option,
    force_option,
    json_option,
    output_option,
)
from placeto_tools.problem_options import PlacementArguments, placed_options
from placeto_tools.screen import show_json, showing_progress


@click.command(cls=Command)
@click.option(
    "--to",
    "form",
    type=NearestChoice(tuple(FORMATS)),
    required=True,
    help="Export format: accelerate, for dispatch_model; torch, stages of "
    "torch.distributed.pipelining, or copies for torchrun; deepspeed-zero, copies; vllm, "
    "deepspeed or llama.cpp, layers of each device; dot or graphml, the graph of groups.",
)
@evaluator_option
@placed_options
@output_option(
    "File to write: .json for accelerate and deepspeed-zero; .sh for vllm and llama.cpp; .py for "
    "torch and deepspeed; .dot, .gv or .graphml.  [default: standard output]",
    required=False,
)
@json_option
@force_option
def export(
    form: str,
    objective: str | None,
    arguments: PlacementArguments,
    output: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Write a placement in the format of another library.

    PROBLEM and PLACEMENT are as in `placeto simulate`. accelerate places whole modules. The other
    libraries give each device consecutive layers; llama.cpp can also have feed-forward parts and
    experts elsewhere. If the format cannot express the placement, modules or layers move to where
    they cost least by --objective, and a line shows the cost.

    \b
    placeto export problem.json.gz placement.json --to accelerate -o device_map.json
    placeto export problem.json.gz placement.json --to vllm --objective throughput
    """
    if output is not None:
        check_file(output, force=force, suffixes=FORMATS[form].suffixes)
    if objective and not FORMATS[form].is_priced:
        raise InputError(f"--objective: excludes --to {form}, which writes the placement as it is")
    priced_by = replace(evaluator_spec(objective or STEP.name), schedule=arguments.schedule)
    problem, placement = arguments.read(waits=False)
    with showing_progress() as progress:
        progress.update(f"{form} ...")
        exported = FORMATS[form].export(problem, placement, priced_by)
    if output is not None:
        write_text(output, exported.content)
    if as_json:
        price = {} if exported.price is None else asdict(exported.price)
        price.pop("remark", None)  # which says the same
        file = None if output is None else str(output)
        head = {"output": file, "format": form, "objective": priced_by.objective}
        show_json({**head, **price, **exported.details})
    elif output is None:
        click.echo(exported.content, nl=False)
        for remark in exported.remarks:
            click.echo(remark, err=True)
    else:
        click.echo(f"{output}: {form}")
        for remark in exported.remarks:
            click.echo(remark)
