"""``placeto profile``."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from placeto.errors import writing
from placeto.outputs import check_file
from placeto.problems.options import ProblemOptions
from placeto.problems.runnable_steps import runnable_problem, runnable_source
from placeto.problems.sources import JSON_SUFFIXES
from placeto.progress import Progress
from placeto.texts import TextTable, counted, seconds_text, share_text
from placeto_execution.devices import RealDevices
from placeto_execution.measuring.profiles import (
    StepProfile,
    profile_in_place,
    with_measured_times,
    with_overheads,
)
from placeto_graphs import save_problem
from placeto_tools.options import (
    Command,
    devices_options,
    force_option,
    json_option,
    output_option,
    steps_option,
)
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json


@click.command(cls=Command)
@click.argument("source")
@devices_options
@steps_option(20)
@problem_options
@output_option("Problem file to write: .json, or .json.gz to compress it.")
@json_option
@force_option
def profile(
    source: str,
    devices: RealDevices,
    steps: int,
    asked: ProblemOptions,
    output: Path,
    as_json: bool,
    force: bool,
) -> None:
    """Measure each op of a step on this machine.

    By default it measures 20 steps on two CPUs and writes the times into a problem file. SOURCE is
    one of `placeto build` that has a model. One device of each kind runs whole steps; devices of
    one kind get equal times. The time of an op is the mean of its measured times, without the
    lowest and the highest fifth. The time between ops is shared equally by the ops.

    --cluster describes the links and memory of the devices: a file of `placeto calibrate`, or a
    text. By default CPUs have transfers that take no time; GPUs need --cluster.

    \b
    placeto profile inception-v3 --batch-size 2 --devices cpu:0,cpu:1 -o problem.json.gz
    """
    check_file(output, force=force, suffixes=JSON_SUFFIXES)
    with showing_progress() as progress:
        progress.update(f"{source}: making and capturing it ...")
        found = runnable_source(source, asked.choice)
        problem, step = runnable_problem(found, asked, devices, is_measured=True)
        profiles: dict[str, StepProfile] = {}
        for device, name in zip(problem.cluster.devices, devices.names, strict=True):
            if device.kind not in profiles:
                report = partial(_show_progress, progress, name, steps)
                profiles[device.kind] = profile_in_place(step, name, steps, report)
    problem = with_measured_times(problem, profiles)
    problem = replace(problem, cluster=with_overheads(problem.cluster, profiles))
    with writing(output):
        save_problem(problem, output)
    if as_json:
        show_json({"output": str(output), "kinds": {k: _report(p) for k, p in profiles.items()}})
    else:
        show(_table(output, problem.graph.num_ops, profiles))


def _show_progress(progress: Progress, device: str, steps: int, count: int) -> None:
    progress.update(f"{device}: {count} of {steps} steps")


def _report(found: StepProfile) -> dict[str, float]:
    return {
        "runtime": float(np.median(found.runtimes)),
        "op_seconds": float(found.seconds.sum()),
        "spread": found.spread,
        "op_overhead": found.between_ops,
    }


def _table(output: Path, num_ops: int, profiles: dict[str, StepProfile]) -> TextTable:
    return TextTable(
        f"{output}: {counted(num_ops, 'op')}",
        ["kind", ">steps", ">a step", ">its ops", ">spread", ">between ops"],
        [
            [
                kind,
                f"{len(found.runtimes)}",
                seconds_text(float(np.median(found.runtimes))),
                seconds_text(float(found.seconds.sum())),
                share_text(found.spread),
                seconds_text(found.between_ops),
            ]
            for kind, found in profiles.items()
        ],
    )
