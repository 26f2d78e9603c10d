"""``placeto profile``."""

from pathlib import Path

import click
import numpy as np

from placeto.errors import writing
from placeto.problems.making import runnable_problem, runnable_source
from placeto.problems.options import ProblemOptions
from placeto.problems.sources import JSON_SUFFIXES
from placeto.texts import counted
from placeto_execution.devices import RealDevices
from placeto_execution.measuring import StepProfile, profile_in_place, with_measured_times
from placeto_graphs import save_problem
from placeto_tools.options import Command, devices_options, result_options, steps_option
from placeto_tools.problem_options import problem_options
from placeto_tools.screen import show_report, showing_progress, table_of


@click.command(cls=Command)
@click.argument("source", metavar="MODEL")
@devices_options
@steps_option(20)
@problem_options
@result_options("Problem file to write: .json, or .json.gz to compress it.", *JSON_SUFFIXES)
def profile(
    source: str,
    devices: RealDevices,
    steps: int,
    options: ProblemOptions,
    output: Path,
    as_json: bool,
) -> None:
    """Measure each op of a step on this machine.

    By default it measures 20 steps on two CPUs and writes the times into a problem file. MODEL is
    one of `placeto build` that has a model. One device of each kind runs whole steps; devices of
    one kind get equal times. The time of an op is the mean of its measured times, without the
    lowest and the highest fifth. The time between ops is shared equally by the ops.

    --cluster describes the links and memory of the devices: a file of `placeto calibrate`, or a
    text. By default CPUs have transfers that take no time; GPUs need --cluster.

    \b
    placeto profile inception-v3 --batch-size 2 --devices cpu:0,cpu:1 -o problem.json.gz
    """
    with showing_progress() as progress:
        progress.update(f"{source}: making and capturing it ...")
        model = runnable_source(source, options.choice)
        problem, step = runnable_problem(model, options, devices, is_measured=True)
        profiles: dict[str, StepProfile] = {}
        for device, name in zip(problem.cluster.devices, devices.names, strict=True):

            def show(count: int, name: str = name) -> None:
                progress.update(f"{name}: {count} of {steps} steps")

            if device.kind not in profiles:
                profiles[device.kind] = profile_in_place(step, name, steps, show)
    problem = with_measured_times(problem, profiles)
    with writing(output):
        save_problem(problem, output)
    kinds = {
        kind: {
            "runtime": float(np.median(profile_of_kind.runtimes)),
            "op_seconds": float(profile_of_kind.seconds.sum()),
            "spread": profile_of_kind.spread,
            "op_overhead": profile_of_kind.between_ops,
        }
        for kind, profile_of_kind in profiles.items()
    }
    rows = [
        {"kind": kind, "steps": len(profiles[kind].runtimes), **row} for kind, row in kinds.items()
    ]
    table = table_of(
        f"{output}: {counted(problem.graph.num_ops, 'op')}",
        rows,
        "kind | >steps | >a step: runtime | >its ops: op_seconds | >spread | "
        ">between ops: op_overhead",
    )
    show_report({"output": str(output), "kinds": kinds}, table, as_json=as_json)
